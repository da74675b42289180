"""The terminal, signals and end status: as without the box."""

from __future__ import annotations

import os
import shlex
import signal
import termios

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.live import processes_with, state_of, wait_until
from support.terminal import COUNT, LINES, Terminal, interrupt, suspend_and_resume

TIERS = ("standard", "strict")
SIZE = ("import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [28])\nsignal.signal(28, lambda *a: None)\nprint('ready', flush=True)\n"
        "signal.sigwait([28])\nprint('size', *os.get_terminal_size(0), '.', flush=True)")


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", [None, *TIERS])
def test_one_ctrl_c_is_one_sigint(actor: Actor, tier: str | None) -> None:
    with _terminal(actor, [PYTHON, "-c", COUNT], tier) as terminal:
        assert interrupt(terminal).endswith("count 1 .")
        assert terminal.wait() == 0


def _terminal(actor: Actor, argv: list[str], tier: str | None) -> Terminal:
    return Terminal.bare(actor, argv) if tier is None else Terminal.boxed(actor, argv, tier=tier)


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", [None, *TIERS])
def test_an_unhandled_ctrl_c_ends_by_sigint(actor: Actor, tier: str | None) -> None:
    with _terminal(actor, ["/bin/sh", "-c", "echo ready; exec sleep 60"], tier) as terminal:
        terminal.read_until("ready")
        if tier is not None:
            wait_until(lambda: terminal.foreground() != terminal.process.pid, "the box has the terminal")
        terminal.type(b"\x03")
        assert terminal.wait() == -signal.SIGINT


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", [None, *TIERS])
def test_a_resize_reaches_the_program(actor: Actor, tier: str | None) -> None:
    with _terminal(actor, [PYTHON, "-c", SIZE], tier) as terminal:
        terminal.read_until("ready")
        terminal.resize(33, 99)
        assert terminal.read_until(" .").endswith("size 99 33 .")
        assert terminal.wait() == 0


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", [None, *TIERS])
def test_suspend_and_foreground_work_from_a_shell(actor: Actor, tier: str | None) -> None:
    program = [PYTHON, "-c", LINES]
    suspend_and_resume(actor, program if tier is None else actor.plan(program, tier=tier)["argv"], actor.env)


@requirement("C.terminal_as_without", "C.odd_callers")
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("way", ["bare", "line", "command"])
def test_a_terminal_that_hangs_up_takes_its_job_along(actor: Actor, way: str, stopped: bool) -> None:
    """The shell is gone and so is the terminal; a suspended job must not linger for ever."""
    mark = f"hangup-{os.urandom(4).hex()}"
    program = ["/bin/sh", "-c", f": {mark}; echo one; read x; echo $x"]
    command = [PYTHON, "-B", "-m", "stockade", "run", "--quiet", "--tier", "strict", "--net", "none", "--", *program]
    line = shlex.join({"bare": program, "command": command, "line": actor.plan(program, tier="strict")["argv"]}[way])
    script = actor.put(f"{actor.workspace}/hangup.sh", f"exec {line}\n", 0o755)
    env = {**actor.env, "PS1": "prompt> ", "HISTFILE": "", "PYTHONPATH": str(actor.stage.lib)}
    with Terminal.bare(actor, ["/bin/bash", "--norc", "--noprofile", "-i"], env=env) as terminal:
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


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", TIERS)
def test_an_inner_interactive_shell_has_job_control(actor: Actor, tier: str) -> None:
    with Terminal.boxed(actor, ["/bin/bash", "--norc", "--noprofile", "-i"], tier=tier, set_env={"PS1": "inner> "}) as terminal:
        assert "no job control" not in terminal.read_until("inner> ")
        terminal.type(b"sleep 60\n")
        terminal.read_until("\n")
        wait_until(lambda: b"sleep" in _foreground_command(terminal), "sleep runs in the foreground")
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


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", TIERS)
def test_terminal_modes_are_restored_when_the_command_dies(actor: Actor, tier: str) -> None:
    with Terminal.boxed(actor, ["/bin/sh", "-c", "stty raw -echo; kill -KILL $$"], tier=tier) as terminal:
        assert terminal.wait() == -signal.SIGKILL
        assert termios.tcgetattr(terminal.master) == terminal.modes


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", TIERS)
def test_the_terminal_has_a_name_inside(actor: Actor, tier: str) -> None:
    with Terminal.boxed(actor, ["/bin/sh", "-c", "tty; test -c \"$(tty)\" && echo there; test -t 0 && echo in"], tier=tier) as terminal:
        for text in ("/dev/console", "there", "in"):
            terminal.read_until(text)
        assert terminal.wait() == 0


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", TIERS)
def test_without_a_terminal_there_is_none_inside(actor: Actor, tier: str) -> None:
    script = "exec 2>&1; (: < /dev/tty) && echo tty || echo none; test -t 0 && echo in; tty"
    bare = actor.call(["setsid", "--wait", "/bin/sh", "-c", script]).stdout.split()
    run = actor.run(["/bin/sh", "-c", script], tier=tier, before=["setsid", "--wait"])
    assert bare[-2:] == run.stdout.encode().split()[-2:]
    assert "none" in run.stdout


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("exit 125", 125), ("exit 255", 255), ("kill -SEGV $$", -11), ("kill -KILL $$", -9),
                                                ("kill -TERM $$", -15), ("kill -ABRT $$", -6), ("kill -PIPE $$", -13)])
def test_the_end_of_the_command_is_the_end_of_the_launcher(actor: Actor, tier: str, script: str, status: int) -> None:
    child = actor.live(["/bin/sh", "-c", script], tier=tier, stdin=-3, stdout=-3, stderr=-3)
    assert child.wait(30) == status
    assert actor.run(["/bin/sh", "-c", script], tier=tier).returncode == status


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", TIERS)
def test_a_signal_to_the_supervisor_reaches_the_command_once(actor: Actor, tier: str) -> None:
    script = "import signal, time\nn = [0]\nsignal.signal(15, lambda *a: n.__setitem__(0, n[0] + 1))\nprint('ready', flush=True)\nwhile not n[0]: time.sleep(0.01)\ntime.sleep(0.2)\nprint(n[0], flush=True)"
    child = actor.live([PYTHON, "-c", script], tier=tier, stdin=-3, stdout=-1, stderr=-3)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == b"1\n"
        assert child.wait(20) == 0


@requirement("C.odd_callers")
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("oddity", ["ignchld", "thread"])
def test_callers_that_ignore_children_or_lose_a_thread_get_the_right_end(actor: Actor, tier: str, oddity: str) -> None:
    argv = actor.plan(["/bin/sh", "-c", "sleep 0.3; echo done; exit 5"], tier=tier)["argv"]
    done = actor.call([str(actor.stage.bin / "orphan"), oddity, *argv])
    assert done.stdout == b"done\n", done.stderr
    assert done.returncode == (0 if oddity == "ignchld" else 5)


@requirement("C.odd_callers")
@pytest.mark.parametrize("tier", TIERS)
def test_a_caller_that_dies_early_leaves_a_whole_box_or_none(actor: Actor, tier: str) -> None:
    """A stored launch line has no caller to watch: the box goes on and ends by itself."""
    marker = f"{actor.workspace}/orphan-{os.urandom(4).hex()}"
    argv = actor.plan(["/bin/sh", "-c", f"sleep 0.3; echo whole > {marker}"], tier=tier)["argv"]
    done = actor.call([str(actor.stage.bin / "orphan"), "die", *argv])
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stderr.split()[1])
    wait_until(lambda: state_of(pid) in (None, "Z"), "the supervisor ended")
    assert not actor.host(marker).exists() or actor.host(marker).read_text() == "whole\n"
    actor.remove(marker)
