"""Reading the spool: which boxes ran, which live, and how each ended.

Owns: which records are of a supervisor, and who is alive: a supervisor's pid counts only together with its start
time, because pids come again. Fails closed: a record that is cut, damaged or of another schema is left out; what a
box wrote itself (``origin: inside``) is never taken for a record of a supervisor. Read next: ``audit/spool.py``.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from stockade.audit.spool import FILE, opened, parsed, rotated
from stockade.errors import ConfigError
from stockade.frozen import dataclass
from stockade.light import Callable, Iterator, Mapping
from stockade.process._exec import KILL_SIGNAL, select_readable
from stockade.process.receipt import SCHEMA, Receipt

_KINDS = frozenset({"decided", "launch", "end", "refused"})

Record = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Run:
    """One run id with its records."""

    run_id: str
    decided: Record | None = None
    launch: Record | None = None
    end: Record | None = None
    refused: Record | None = None

    def receipt(self) -> Receipt | None:
        """Return the receipt; None for a launch that was refused."""
        return None if self.launch is None else Receipt(launch=self.launch, end=self.end)

    @property
    def supervisor(self) -> int | None:
        """Process id of the supervisor while it lives."""
        if self.launch is None or self.end is not None:
            return None
        found = self.launch.get("supervisor") or {}
        pid, ticks = found.get("pid"), found.get("start_ticks")
        return int(pid) if pid and start_ticks(int(pid)) == ticks else None


def files(audit: Path) -> list[Path]:
    """Return the spool files, oldest first; rotated ones carry a ULID, which sorts by time."""
    return [path for path in (*map(Path, rotated(str(audit))), audit / FILE) if path.is_file()]


def records(path: Path) -> Iterator[Record]:
    """Yield the whole records of one file."""
    stream = opened(str(path))
    if stream is None:
        return  # rotated away since it was listed
    with stream:
        for line in stream:
            record = parsed(line.rstrip(b"\n"))
            if record is not None and _is_of_a_supervisor(record):
                yield record


def _is_of_a_supervisor(record: Record) -> bool:
    fits = record.get("schema") == SCHEMA and record.get("record") in _KINDS and record.get("run_id")
    return bool(fits and record.get("origin", "outside") == "outside")


def runs(audit: Path, progress: Callable[[float], None] = lambda part: None) -> dict[str, Run]:
    """Return every run by its id, oldest first. ``progress`` gets the part that is read."""
    found: dict[str, Run] = {}
    every = files(audit)
    for number, path in enumerate(every):
        progress(number / len(every))
        for record in records(path):
            run_id = str(record["run_id"])
            run = found.setdefault(run_id, Run(run_id=run_id))
            setattr(run, str(record["record"]), {key: value for key, value in record.items() if key != "len"})
    return found


def pick(found: Mapping[str, Run], name: str) -> Run:
    """Return the run of an id, of the unique beginning of one, or the ``last``.

    Raises: ConfigError ``unknown_run``.
    """
    if name == "last" and found:
        return found[max(found)]
    if name in found:
        return found[name]
    hits = [run_id for run_id in found if len(name) >= 6 and run_id.startswith(name.upper())]
    if len(hits) == 1:
        return found[hits[0]]
    what = f"got {len(hits)} runs that begin so" if hits else "got no run of that id"
    newest = ", ".join(sorted(found, reverse=True)[:3])
    hint = "give more of the id" if hits else f"last, or one of {newest} ..." if found else "nothing ran yet"
    raise ConfigError("unknown_run", f"run {name!r}: {what}", hint=hint)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when there is none.

    Source: proc_pid_stat(5), field 22; the name before it may hold blanks and brackets.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


class Supervisor:
    """A live supervisor, held by a descriptor: a later process of the same pid is never hit."""

    def __init__(self, run: Run) -> None:
        """Raises: ProcessLookupError when the box does not live any more."""
        pid = run.supervisor
        if pid is None:
            raise ProcessLookupError
        self._pidfd = os.pidfd_open(pid)
        if run.supervisor != pid:  # it ended, and the number came again, before it was held
            os.close(self._pidfd)
            raise ProcessLookupError

    def ask(self) -> None:
        """Send SIGTERM to the command."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the box; the supervisor writes the end record."""
        signal.pidfd_send_signal(self._pidfd, KILL_SIGNAL)

    def ended(self, timeout_s: float) -> bool:
        """Wait for the end; tell whether it came in time."""
        return select_readable(self._pidfd, timeout_s)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._pidfd)
