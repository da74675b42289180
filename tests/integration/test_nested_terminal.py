"""The terminal, signals and end status of a box inside a box: as without either."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import termios
from typing import Any

import pytest

from requirements import requirement
from support.actors import PYTHON, WAIT_S, Actor
from support.cli import inside
from support.live import processes_with, wait_until
from support.terminal import COUNT, LINES, Terminal, interrupt, suspend_and_resume

AROUND = ("standard", "guarded")
SIZE = ("import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [28])\nsignal.signal(28, lambda *a: None)\nprint('ready', flush=True)\n"
        "signal.sigwait([28])\nprint('size', *os.get_terminal_size(0), '.', flush=True)")


def inner(actor: Actor, argv: list[str], *options: str, tier: str = "strict") -> list[str]:
    """The command line of ``stockade run`` as a program in a box types it."""
    return inside(actor, "run", "--quiet", "--tier", tier, "--net", "none", *options, "--", *argv)


def on_terminal(actor: Actor, argv: list[str], around: str = "standard", **more: Any) -> Terminal:
    """A command in a strict box in a box, on a terminal."""
    return Terminal.boxed(actor, inner(actor, argv), tier=around, **more)


@requirement("nest.terminal")
@pytest.mark.parametrize("around", AROUND)
def test_one_ctrl_c_is_one_sigint_inside(actor: Actor, around: str) -> None:
    with on_terminal(actor, [PYTHON, "-c", COUNT], around) as terminal:
        assert interrupt(terminal).endswith("count 1 .")
        assert terminal.wait() == 0


@requirement("nest.terminal")
def test_an_unhandled_ctrl_c_ends_all_by_sigint(actor: Actor) -> None:
    with on_terminal(actor, ["/bin/sh", "-c", "read x < /dev/tty; echo ready; exec sleep 60"]) as terminal:
        # Who reads from the terminal has it.
        terminal.type(b"x\n")
        terminal.read_until("ready")
        terminal.type(b"\x03")
        assert terminal.wait() == -signal.SIGINT


@requirement("nest.terminal")
def test_a_resize_reaches_the_program_inside(actor: Actor) -> None:
    with on_terminal(actor, [PYTHON, "-c", SIZE]) as terminal:
        terminal.read_until("ready")
        terminal.resize(33, 99)
        assert terminal.read_until(" .").endswith("size 99 33 .")
        assert terminal.wait() == 0


@requirement("nest.terminal")
@pytest.mark.parametrize("around", AROUND)
def test_suspend_and_foreground_work_from_a_shell_outside(actor: Actor, around: str) -> None:
    suspend_and_resume(actor, actor.plan(inner(actor, [PYTHON, "-c", LINES]), tier=around)["argv"], actor.env)


@requirement("nest.terminal")
def test_suspend_and_foreground_work_from_a_shell_in_the_outer_box(actor: Actor) -> None:
    script = actor.put(f"{actor.workspace}/line.sh", f"exec {shlex.join(inner(actor, [PYTHON, '-c', LINES]))}\n", 0o755)
    shell = ["/bin/bash", "--norc", "--noprofile", "-i"]
    with Terminal.boxed(actor, shell, tier="standard", set_env={"PS1": "outer> ", "HISTFILE": ""}) as terminal:
        terminal.read_until("outer> ")
        terminal.type(f"sh {script}\n".encode())
        terminal.read_until("one")
        terminal.type(b"\x1a")
        terminal.read_until("Stopped")
        terminal.read_until("outer> ")
        terminal.type(b"echo bet''ween\n")
        terminal.read_until("between")
        terminal.read_until("outer> ")
        terminal.type(b"fg\n")
        terminal.read_until("\n")
        terminal.type(b"hello\n")
        assert "got hello ." in terminal.read_until("hello .")
        terminal.read_until("outer> ")
        terminal.type(b"exit 3\n")
        assert terminal.wait() == 3


@requirement("nest.terminal")
def test_terminal_modes_are_restored_when_the_command_inside_dies(actor: Actor) -> None:
    with on_terminal(actor, ["/bin/sh", "-c", "stty raw -echo; kill -KILL $$"]) as terminal:
        assert terminal.wait() == -signal.SIGKILL
        assert termios.tcgetattr(terminal.master) == terminal.modes


@requirement("nest.terminal")
def test_an_interactive_shell_inside_has_job_control(actor: Actor) -> None:
    with Terminal.boxed(actor, inner(actor, ["/bin/bash", "--norc", "--noprofile", "-i"], "--env", "PS1=inner> "), tier="standard") as terminal:
        assert "no job control" not in terminal.read_until("inner> ")
        terminal.type(b"sh -c 'echo le''ft; exec sleep 60'\n")
        terminal.read_until("left")
        terminal.type(b"\x1a")
        terminal.read_until("Stopped")
        terminal.read_until("inner> ")
        terminal.type(b"fg\n")
        wait_until(lambda: b"sleep" in _foreground_command(terminal), "sleep runs in the foreground again")
        terminal.type(b"\x03")
        terminal.read_until("inner> ")
        terminal.type(b"exit 3\n")
        assert terminal.wait() == 3


def _foreground_command(terminal: Terminal) -> bytes:
    try:
        with open(f"/proc/{terminal.foreground()}/cmdline", "rb") as handle:
            return handle.read()
    except OSError:
        return b""


@requirement("nest.terminal")
def test_one_ctrl_c_is_one_sigint_also_where_the_supervisor_keeps_the_terminal(actor: Actor) -> None:
    """Its standard output is none, so it hands nothing over; every process of its group gets the signal."""
    line = shlex.join(actor.plan(inner(actor, ["/bin/sh", "-c", f"exec {PYTHON} -c {shlex.quote(COUNT)} >&2"]), tier="standard")["argv"])
    with Terminal.bare(actor, ["/bin/sh", "-c", f"exec {line} > /dev/null"]) as terminal:
        assert interrupt(terminal).endswith("count 1 .")
        assert terminal.wait() == 0


@requirement("nest.terminal", "nest.ends_with")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_terminal_that_hangs_up_takes_the_box_inside_along(actor: Actor, stopped: bool) -> None:
    mark = f"hangup-{os.urandom(4).hex()}"
    line = actor.plan(inner(actor, ["/bin/sh", "-c", f": {mark}; echo one; read x; echo $x"]), tier="standard")["argv"]
    script = actor.put(f"{actor.workspace}/hangup.sh", f"exec {shlex.join(line)}\n", 0o755)
    with Terminal.bare(actor, ["/bin/bash", "--norc", "--noprofile", "-i"], env={**actor.env, "PS1": "prompt> ", "HISTFILE": ""}) as terminal:
        terminal.read_until("prompt> ")
        terminal.type(f"sh {script}\n".encode())
        terminal.read_until("one")
        wait_until(lambda: terminal.foreground() != terminal.process.pid, "the program has the terminal")
        if stopped:
            terminal.type(b"\x1a")
            terminal.read_until("Stopped")
        terminal.process.kill()
        terminal.process.wait()
    wait_until(lambda: processes_with(mark) == [], "nothing of the job is left")


TRAPS = "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.05; done"


@requirement("nest.signals")
@pytest.mark.parametrize("around", AROUND)
def test_signals_from_outside_reach_the_command_inside_and_its_answer_comes_back(actor: Actor, around: str) -> None:
    argv = inner(actor, ["/bin/sh", "-c", TRAPS])
    with actor.live(argv, tier=around, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGUSR1)
        assert child.stdout.readline() == b"usr1\n"
        child.terminate()
        assert child.stdout.readline() == b"term\n"
        assert child.wait(WAIT_S) == 9


@requirement("nest.signals")
@pytest.mark.parametrize(("script", "status"), [
    ("exit 0", 0), ("exit 7", 7), ("exit 125", 125), ("kill -TERM $$", -signal.SIGTERM), ("kill -KILL $$", -signal.SIGKILL), ("kill -USR2 $$", -signal.SIGUSR2)])
def test_a_command_inside_ends_as_it_ends(actor: Actor, script: str, status: int) -> None:
    assert actor.run(inner(actor, ["/bin/sh", "-c", script]), tier="standard").returncode == status


@requirement("nest.signals")
def test_a_time_limit_inside_ends_the_whole_tree_with_124(actor: Actor) -> None:
    mark = f"late-{os.urandom(4).hex()}"
    run = actor.run(inner(actor, ["/bin/sh", "-c", f": {mark}; sleep 1000 & sleep 1000"], "--timeout", "3s"), tier="standard")
    assert run.returncode == 124, run.stderr
    assert processes_with(mark) == []
