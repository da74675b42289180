"""Programs of the terminal: an editor that is suspended, shells in scripts, recorders, a multiplexer inside.

What one key does is in ``tests/integration/test_terminal.py``; here are the programs themselves, typed
at a shell with job control, without a box and in one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from requirements import requirement
from support.actors import Actor
from support.live import wait_until
from support.terminal import Terminal
from tools.support import Tool
from tools.table import BARE, measured

WAYS = (BARE, "standard", "strict")
PROMPT = "outer> "


@contextmanager
def _shell(actor: Actor, cwd: str) -> Iterator[Terminal]:
    """A person's shell, its prompt awaited."""
    env = {**actor.env, "PS1": PROMPT, "HISTFILE": "", "TERM": "xterm"}
    with Terminal.bare(actor, ["/bin/bash", "--norc", "--noprofile", "-i"], env=env, cwd=cwd) as terminal:
        terminal.read_until(PROMPT)
        yield terminal
        terminal.type(b"exit 0\n")
        assert terminal.wait() == 0


def _line(actor: Actor, argv: list[str], way: str, **kwargs: object) -> str:
    """What is typed; the stored launch line is short that way."""
    line = argv if way == BARE else actor.plan(argv, tier=way, **kwargs)["argv"]
    script = actor.put(f"{actor.home}/work/typed.sh", f"exec {shlex.join(line)}\n", 0o755)
    return f"sh {script}\n"


@requirement("E.terminal_programs")
@pytest.mark.parametrize("way", WAYS)
def test_vim_is_suspended_comes_back_and_saves(actor: Actor, fresh_repo: str, debian: Callable[..., Tool], way: str) -> None:
    debian("vim", "vim")
    with measured("vim, Ctrl-Z and fg", actor.name, way), _shell(actor, fresh_repo) as terminal:
        terminal.type(_line(actor, ["vim", "-u", "NONE", "-n", "README"], way, cwd=fresh_repo, set_env={"TERM": "xterm"}).encode())
        terminal.read_until("hello")
        terminal.type(b"ofirst\x1b")
        terminal.read_until("first")
        terminal.type(b"\x1a")
        terminal.read_until("Stopped")
        terminal.read_until(PROMPT)
        terminal.type(b"stty -a | tr ' ' '\\n' | grep -x -e -icanon -e -echo; echo coo''ked\n")
        assert "-icanon" not in terminal.read_until("cooked").split("ked\r", 1)[1], "the shell has its modes back"
        terminal.read_until(PROMPT)
        terminal.type(b"fg\n")
        terminal.read_until("first")  # it paints its screen again
        terminal.type(b"osecond\x1b")
        terminal.read_until("second")
        terminal.type(b":wq\r")
        terminal.read_until(PROMPT)
    assert actor.host(f"{fresh_repo}/README").read_text(encoding="utf-8") == "hello\nfirst\nsecond\n"


@requirement("E.terminal_programs")
@pytest.mark.parametrize("way", WAYS)
def test_an_interactive_shell_in_a_script_gives_the_terminal_back(actor: Actor, fresh_repo: str, way: str) -> None:
    text = "echo before; bash --norc --noprofile -i -c 'sleep 0.1 & wait; set -o | grep monitor'; echo between; bash --norc --noprofile -i; read x; echo read-$x"
    with measured("bash -i in a script", actor.name, way), _shell(actor, fresh_repo) as terminal:
        terminal.type(_line(actor, ["/bin/sh", "-c", text], way, cwd=fresh_repo, set_env={"PS1": "inner> "} if way != BARE else {}).encode())
        assert "monitor" in terminal.read_until("between")
        terminal.read_until("> ")
        terminal.type(b"echo in-the-inner; exit\n")
        terminal.read_until("in-the-inner")
        terminal.read_until("exit\r\n")
        terminal.type(b"typed\n")
        terminal.read_until("read-typed")
        terminal.read_until(PROMPT)


@requirement("E.terminal_programs")
@pytest.mark.parametrize("way", WAYS)
def test_script_records_a_session(actor: Actor, fresh_repo: str, way: str) -> None:
    with measured("script", actor.name, way), _shell(actor, fresh_repo) as terminal:
        terminal.resize(40, 100)
        terminal.type(_line(actor, ["script", "-q", "-e", "-c", "tty; stty size; read x; echo got-$x; exit 5", "typescript"], way, cwd=fresh_repo).encode())
        terminal.read_until("/dev/pts/")
        terminal.read_until("40 100")
        terminal.type(b"typed\n")
        terminal.read_until("got-typed")
        terminal.read_until(PROMPT)
        terminal.type(b"echo status-$?\n")
        terminal.read_until("status-5")
        terminal.read_until(PROMPT)
    assert "got-typed" in actor.host(f"{fresh_repo}/typescript").read_text(encoding="utf-8")


@requirement("E.terminal_programs")
@pytest.mark.parametrize("way", WAYS)
def test_tmux_runs_inside(actor: Actor, fresh_repo: str, debian: Callable[..., Tool], way: str) -> None:
    """A server of its own, two panes, a resize that reaches them, detach and attach."""
    debian("tmux", "tmux")
    pane = "stty size; read x; tmux detach-client; echo got-$x; read y"
    text = f"tmux -f /dev/null new-session -s t '{pane}'; echo left-$?; tmux attach -t t; tmux ls 2>&1; echo ov''er"
    with measured("tmux inside", actor.name, way), _shell(actor, fresh_repo) as terminal:
        terminal.resize(30, 90)
        terminal.type(_line(actor, ["/bin/sh", "-c", text], way, cwd=fresh_repo, **({} if way == BARE else {"set_env": {"TERM": "xterm"}})).encode())
        try:
            terminal.read_until("29 90")
            terminal.type(b"typed\r")
            terminal.read_until("detached")
            terminal.read_until("left-0")
            terminal.read_until("got-typed")  # attached again: it paints the pane
            terminal.type(b"\r")
            terminal.read_until("over")
            terminal.read_until(PROMPT)
        finally:
            actor.call(["tmux", "kill-server"])  # of a test that failed half way; in a box it ends with the box


@requirement("E.terminal_programs")
@pytest.mark.parametrize("way", WAYS)
def test_one_ctrl_c_ends_a_pipeline_once(actor: Actor, fresh_repo: str, way: str) -> None:
    """The box is one member of a pipeline of the shell: the key reaches everybody, and the shell goes on."""
    program = "trap 'echo interrupted >> count; exit 130' INT; echo ready; while :; do sleep 0.05; done"
    with measured("Ctrl-C in a pipeline", actor.name, way), _shell(actor, fresh_repo) as terminal:
        typed = _line(actor, ["/bin/sh", "-c", program], way, cwd=fresh_repo).strip()
        terminal.type(f"{typed} | cat\n".encode())
        terminal.read_until("ready")
        wait_until(lambda: terminal.foreground() != terminal.process.pid, "the pipeline has the terminal")
        terminal.type(b"\x03")
        terminal.read_until(PROMPT)
        wait_until(lambda: actor.host(f"{fresh_repo}/count").exists(), "the program was told")
    assert actor.host(f"{fresh_repo}/count").read_text(encoding="utf-8") == "interrupted\n"
