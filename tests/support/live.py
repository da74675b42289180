"""A box that stays alive while the host acts: ask it again after each change.

Owns ``LiveBox``. Waits are bounded; the box is ended through its supervisor at the end of the
``with`` block, so that a failing test leaves no process behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from support.actors import PYTHON, WAIT_S, Actor
from support.boxes import Answers, Op, labels, parse_answers

KILL_BOX = 63


class LiveBox:
    """The probe in serve mode inside a box."""

    def __init__(self, actor: Actor, *, tier: str, cwd: str | None = None, env: dict[str, str] | None = None, before: Sequence[str] = (), **kwargs: Any) -> None:
        """Start it; the report pipe gives the receipt."""
        self._report, writer = os.pipe()
        argv = [PYTHON, str(actor.stage.bin / "probe.py"), "serve"]
        self.process = actor.live(argv, tier=tier, cwd=cwd, report_fd=writer, env=env, before=before, kwargs=kwargs,
                                  stdin=-1, stdout=-1, stderr=-1)
        os.close(writer)
        self._records = b""

    def ask(self, ops: Sequence[Op]) -> Answers:
        """Run the operations inside now."""
        assert self.process.stdin is not None and self.process.stdout is not None and labels(ops)
        self.process.stdin.write(json.dumps(list(ops)).encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_S)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            assert self.process.stderr is not None
            self.process.kill()
            raise AssertionError(f"the live box gave no answer: {self.process.stderr.read().decode('utf-8', 'replace')}")
        return parse_answers(line, b"", ops)

    def records(self, *, until: str) -> dict[str, dict[str, Any]]:
        """Read the receipt's records up to the named one."""
        while f'"record":"{until}"'.encode() not in self._records:
            ready, _, _ = select.select([self._report], [], [], WAIT_S)
            more = os.read(self._report, 65536) if ready else b""
            if not more:
                raise AssertionError(f"no {until} record in {self._records!r}")
            self._records += more
        rows = [json.loads(line) for line in self._records.split(b"\n") if line.strip()]
        return {row["record"]: row for row in rows}

    def command_pid(self) -> int:
        """Host pid of the command."""
        return int(self.records(until="launch")["launch"]["command_pid"])

    def tree(self) -> list[int]:
        """Host pids of the supervisor and everything below it."""
        return [self.process.pid, *descendants(self.process.pid)]

    def finish(self) -> int:
        """Close the command's input and wait for the whole box."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WAIT_S)

    def __enter__(self) -> LiveBox:
        """Nothing to do: the box runs since its making."""
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """End the box, if it still runs, and close every pipe."""
        if self.process.poll() is None:
            self.process.send_signal(KILL_BOX)
            try:
                self.process.wait(10)
            except Exception:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait(WAIT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        os.close(self._report)


def parent_of(pid: int) -> int | None:
    """Parent of a process, or None when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``."""
    parents = {int(name): parent_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found: list[int] = []
    todo = [pid]
    while todo:
        current = todo.pop()
        below = [child for child, parent in parents.items() if parent == current]
        found += below
        todo += below
    return found


def state_of(pid: int) -> str | None:
    """State letter of a process (R S D T t Z), or None when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def processes_with(marker: str) -> list[int]:
    """Host processes whose command line holds the marker."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if marker.encode() in text:
                found.append(int(name))
    return found


def wait_until(condition: Any, what: str, timeout_s: float = 30) -> None:
    """Wait for a condition, bounded; the pause only keeps the wait from burning a core."""
    import time

    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout_s} s: {what}")
        time.sleep(0.01)
