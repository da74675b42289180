"""Where the attack program runs: without a box, in a box of a tier, in another sandbox.

Owns: starting it, one question and one answer at a time, and the end of each. Fails closed: a
program that does not answer, or that cannot do what it is allowed to (write into its project), has
shown nothing: ``prove_failed``, never a promise that looks kept. Read next: ``attack.py``, ``run.py``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import tty
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stockade.errors import DowngradeWarning, LaunchFailed, Refused
from stockade.paths import StateHome, canonical
from stockade.process import _exec
from stockade.process.api import Popen
from stockade.process.prepare import ruled
from stockade.process.receipt import Receipt
from stockade.prove import peers
from stockade.prove.model import Answer, Shape
from stockade.prove.stage import HERE, Stage, python
from stockade.rules.tiers import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Start = Callable[[Stage, Shape, int], Any]

PROGRAM = f"{HERE}/attack.py"
WAIT_S = 30.0
WALL_S = 1.0
# After SIGKILL of a supervisor the kernel ends the box on its own.
DEATH_S = 10.0
SHAPES = (
    Shape(name="plain"),
    Shape(name="net", net="host"),
    Shape(name="limits", limits={"files": 64, "processes": 40}, ending="limit"),
    Shape(name="wall", limits={"wall": WALL_S}, ending="wait"),
    Shape(name="killed", ending="kill"),
)


class Session:
    """One run of the attack program. ``start``: one of the functions below."""

    def __init__(self, stage: Stage, shape: Shape, start: Start) -> None:
        self.receipt: Receipt | None = None
        self._bare = start is bare
        self._shape, self._fifo = shape, stage.fifo
        self._leash = os.open(stage.fifo, os.O_RDWR | os.O_CLOEXEC)
        master, self.terminal = os.openpty()
        self._master = master
        self._pending = b""
        self._family: list[int] = []
        try:
            tty.setraw(self.terminal)
            self._process = start(stage, shape, self.terminal)
            self.receipt = getattr(self._process, "receipt", None)
        except BaseException:
            self._close_descriptors()
            raise

    def ask(self, op: Mapping[str, Any]) -> Answer:
        """Have one operation done. Raises: LaunchFailed ``prove_failed``."""
        if "fd" in op:
            op = {**op, "fd": self.terminal}
        try:
            self._process.stdin.write(json.dumps(op).encode() + b"\n")
            self._process.stdin.flush()
            told = json.loads(self._line())
            return Answer(errno=told["errno"], value=told["value"])
        except (OSError, ValueError, KeyError):
            if self._shape.ending in ("limit", "wait") and self.receipt is not None:
                return Answer(errno="ended")  # by its limit: which one that was, its end record says
            raise self.silent(str(op["op"])) from None

    def _line(self) -> bytes:
        deadline = time.monotonic() + WAIT_S
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not _exec.select_readable(self._process.stdout.fileno(), left):
                return b""
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                return b""
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def silent(self, what: str) -> LaunchFailed:
        """Return the error for what was not answered: it shows nothing, in neither way."""
        where = "without a box" if self.receipt is None else f"box {self._shape.name!r}"
        return LaunchFailed("prove_failed", f"attack program ({where}): got no answer to {what!r}, expected one")

    def finish(self) -> bool:
        """End the session as its shape says; tell whether a process of it still lives."""
        ending = self._shape.ending
        try:
            if ending == "kill":
                self._note_family()
                os.kill(self._process.pid, signal.SIGKILL)
            elif ending != "wait" or self.receipt is None:
                self._process.stdin.close()
            self._process.wait(timeout=WAIT_S)
            self.receipt = getattr(self._process, "receipt", None)
            return self._alive(self._patience_s())
        except subprocess.TimeoutExpired:
            raise self.silent("its end") from None
        finally:
            self.close()

    def _note_family(self) -> None:
        """A box ends with its supervisor; what another sandbox leaves behind is ended when that was seen."""
        if self.receipt is None and not self._bare:
            self._family += peers.family(self._process.pid)

    def _patience_s(self) -> float:
        """Return how long a process may take to die: none at all where the end of a box promises it."""
        promised = self.receipt is not None and self._shape.ending != "kill"
        return 0.0 if self._bare or promised else DEATH_S

    def _alive(self, wait_s: float) -> bool:
        """Tell whether somebody still holds the fifo's reading end."""
        try:
            end = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        os.close(self._leash)
        self._leash = -1
        watch = select.poll()
        watch.register(end, 0)  # POLLERR is always told: no reader is left
        try:
            return not watch.poll(wait_s * 1000)
        finally:
            os.close(end)

    def close(self) -> None:
        """End the program and close everything; safe to call again."""
        process = self._process
        if process.poll() is None:
            self._note_family()
            process.kill()
        try:
            process.stdin.close()
        except OSError:
            pass  # it ended before it read everything
        process.__exit__(None, None, None)
        peers.end(self._family)
        self._family = []
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for number in (self._leash, self._master, self.terminal):
            if number >= 0:
                os.close(number)
        self._leash = self._master = self.terminal = -1

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- the three places ------------------------------------------------------------------------------


def bare(stage: Stage, shape: Shape, terminal: int) -> Any:
    """Start it without a box."""
    line = [*python(), PROGRAM, "below"]
    return _exec.own_program(line, stage.environment(), cwd=stage.project, pass_fds=(terminal,))


def box(tier: Tier, more: Mapping[str, Any]) -> Start:
    """Return what starts it in a box of the tier. ``more``: options that a test weakens the box with."""
    def start(stage: Stage, shape: Shape, terminal: int) -> Any:
        return started(line(), stage.state, options(stage, shape, terminal, tier, more))

    return start


def line() -> list[str]:
    """Return the attack program as it runs in a box."""
    return [*python(), PROGRAM]


def options(stage: Stage, shape: Shape, terminal: int, tier: Tier, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked for, as plain data."""
    return {"tier": str(tier), "caller": "operator", "cwd": stage.project, "net": shape.net, "cache": "off",
            "limits": dict(shape.limits), "env": stage.environment(), "pass_fds": (terminal,),
            **{**more, "read": [stage.granted, *programs(), *more.get("read", ())]}}


def started(argv: Sequence[str], state: str, options: Mapping[str, Any]) -> Any:
    """Start a box with pipes; what the host cannot keep is accepted, and its receipt says so. Raises: Refused."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **options,
               "_prepare": partial(ruled, state=StateHome(path=state))}
    try:
        return Popen._of(argv, options)
    except Refused as refused:
        if not refused.missing:
            raise
        with warnings.catch_warnings(action="ignore", category=DowngradeWarning):
            return Popen._of(argv, {**options, "accept": [*options.get("accept", ()), *refused.missing]})


def programs() -> list[str]:
    """Return what runs inside: this package, and the tree of an interpreter that is not the system's own.

    Both may lie where every box has a directory of its own, such as /tmp.
    """
    return [HERE] if sys.base_prefix in ("/", "/usr", "/usr/local") else [HERE, canonical(sys.base_prefix)]


def peer(name: str) -> Start:
    """Return what starts it in another sandbox. Raises: as ``peers.peer``."""
    program, line = peers.peer(name)

    def start(stage: Stage, shape: Shape, terminal: int) -> Any:
        argv = [*line(program, stage, programs()), *python(), PROGRAM]
        return _exec.own_program(argv, stage.environment(), cwd=stage.project, pass_fds=(terminal,))

    return start
