"""A terminal that was lent for one direction, and a supervisor that was stopped."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.live import descendants, processes_with, state_of, wait_until

TIERS = ("standard", "guarded", "strict")
OTHER = {os.O_RDONLY: os.O_WRONLY, os.O_WRONLY: os.O_RDONLY}
# What the command got on descriptor argv[1] it tries to open for the way argv[2], by every name it may have.
LOOK = """import json, os, sys
def how(name):
    try:
        os.close(os.open(name, int(sys.argv[2]) | os.O_NOCTTY))
        return "opened"
    except OSError as error:
        return os.strerror(error.errno)
number = sys.argv[1]
names = ["/dev/console", f"/proc/self/fd/{number}", f"/dev/fd/{number}", "/dev/tty"]
told = json.dumps({"names": {name: how(name) for name in names}, "tty": os.isatty(int(number)), "console": os.path.exists("/dev/console")})
os.write(2, told.encode())
"""


@pytest.fixture
def terminal(actor: Actor) -> Iterator[str]:
    """Name of a terminal that is the account's own and nobody's controlling one."""
    master, slave = pty.openpty()
    os.fchown(slave, actor.uid, actor.gid)
    yield os.ttyname(slave)
    os.close(slave)
    os.close(master)


def _lend(actor: Actor, terminal: str, mode: int, way: int, tier: str | None) -> dict[str, object]:
    """Lend it as standard input, or output for writing alone, to a program in a session of its own."""
    number = 1 if mode == os.O_WRONLY else 0
    argv = [PYTHON, "-c", LOOK, str(number), str(way)]
    lent = os.open(terminal, mode | os.O_NOCTTY)
    try:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, ("stdin", "stdout")[number]: lent}
        before = ["setsid", "--wait"]
        child = actor.spawn([*before, *argv], **streams) if tier is None else actor.drive(
            {"mode": "exec", "argv": argv, "kwargs": actor._grants(tier, None, {})}, before=before, **streams)
        _, err = child.communicate(timeout=60)
    finally:
        os.close(lent)
    return dict(json.loads(err))


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("mode", [os.O_RDONLY, os.O_WRONLY], ids=["stdin-to-read", "stdout-to-write"])
def test_a_terminal_lent_for_one_direction_has_no_name_that_opens_it_for_the_other(actor: Actor, terminal: str, tier: str, mode: int) -> None:
    bare = _lend(actor, terminal, mode, OTHER[mode], None)
    assert "opened" in {bare["names"][f"/proc/self/fd/{int(mode == os.O_WRONLY)}"]}, bare  # type: ignore[index]
    boxed = _lend(actor, terminal, mode, OTHER[mode], tier)
    assert boxed["tty"] is True and boxed["console"] is False, boxed
    if tier == "strict":  # below, what is handed over may be read again, as every file of the host: limitations
        assert "opened" not in boxed["names"].values(), boxed  # type: ignore[attr-defined]


@requirement("C.terminal_as_without")
@pytest.mark.parametrize("tier", TIERS)
def test_a_terminal_lent_for_both_directions_has_its_name(actor: Actor, terminal: str, tier: str) -> None:
    boxed = _lend(actor, terminal, os.O_RDWR, os.O_RDWR, tier)
    assert boxed["tty"] is True and boxed["console"] is True, boxed
    # Box root is nobody to the kernel, and the terminal is root's own: its descriptor is enough.
    assert boxed["names"]["/dev/console"] == ("Permission denied" if actor.is_root else "opened"), boxed  # type: ignore[index]


# The command is stopped and continued without a pause by a process of its box.
FLOOD = """import os, signal, sys, time
command = os.getpid()
if sys.argv[1] == "inside" and os.fork() == 0:
    while True:
        os.kill(command, signal.SIGSTOP)
        os.kill(command, signal.SIGCONT)
os.write(1, b"ready\\n")
while True: time.sleep(60)
"""


@requirement("limits", "proc.reaped")
@pytest.mark.parametrize("tier", ["standard", "strict"])
@pytest.mark.parametrize("where", ["nowhere", "inside", "outside"])
def test_a_flood_of_stops_does_not_keep_a_box_whose_supervisor_is_stopped(actor: Actor, tier: str, where: str) -> None:
    """Each stop and continue is told to the supervisor, which reads nothing: process 1 keeps the wall clock all the same."""
    mark = f"flood-{os.urandom(4).hex()}"
    child = actor.live([PYTHON, "-c", FLOOD, where, mark], tier=tier, kwargs={"limits": {"wall": "2s"}}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(child.pid) == "T", "the supervisor stands still")
    command = descendants(child.pid)[1]
    over = threading.Event()
    flood = threading.Thread(target=_flood, args=(command, over))
    try:
        if where == "outside":
            flood.start()
        assert mark.encode() in Path(f"/proc/{command}/cmdline").read_bytes()
        wait_until(lambda: [pid for pid in processes_with(mark) if pid != child.pid] == [], "the box has ended without its supervisor")
        assert state_of(child.pid) == "T"
    finally:
        over.set()
        child.send_signal(signal.SIGCONT)
        if where == "outside":
            flood.join()
    assert child.wait(20) == 124
    child.stdout.close()


def _flood(pid: int, over: threading.Event) -> None:
    while not over.is_set():
        try:
            os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
