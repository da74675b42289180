"""From the launcher's spool into the log: in order, each record once, whoever was killed on the way.

Owns: how far each spool file was taken. That stands in the log itself, in the record that was taken (``source``), so
that it cannot be ahead of the log or behind; a checkpoint beside it only saves looking back. A spool file is told by
its first record, not by a name or a number that come again. Fails closed: what has not the frame of a whole record is
counted as damaged and said in the log, once. Read next: ``events.py``, ``launcher/src/spool.rs``.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from stockade.audit.events import made, of_record
from stockade.audit.log import DIRECTORY, Log
from stockade.audit.query import backwards
from stockade.audit.segments import unavailable
from stockade.frozen import dataclass
from stockade.ids import digest, timestamp
from stockade.jsontext import dumps, loads
from stockade.paths import atomic_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.light import Iterator

SPOOL, LOCK, CHECKPOINT = "spool.jsonl", "ingest.lock", "checkpoint.json"
BATCH = 200
_FRAME = re.compile(rb'\{"len":(\d+)[,}]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one pass took. ``busy``: another process is at it, and takes what there is."""

    records: int = 0
    damaged: int = 0
    busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spooled:
    """A line of a spool file: ``end`` is the offset behind its newline; no record where it is damaged."""

    spool: str
    end: int
    record: dict[str, Any] | None
    text: bytes


def ingest(audit: str, log: Log) -> Taken:
    """Take what the spool has into the log. Raises: Error(audit_unavailable)."""
    try:
        lock = os.open(f"{audit}/{DIRECTORY}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as err:
        raise unavailable("lock of the spool's reader", err) from err
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Taken(busy=True)
        return _ingest(audit, log)
    finally:
        os.close(lock)


def _ingest(audit: str, log: Log) -> Taken:
    positions = _positions(audit)
    records = damaged = 0
    batch: list[dict[str, Any]] = []
    seq = None
    for line in _lines(audit, positions):
        damaged += line.record is None
        records += line.record is not None
        batch.append({**_event(line), "source": {"spool": line.spool, "end": line.end}})
        positions[line.spool] = line.end
        if len(batch) >= BATCH:
            seq, batch = log.append(batch).seq, []
    if batch:
        seq = log.append(batch).seq
    if seq is not None:
        _check_in(audit, seq, positions)
    return Taken(records=records, damaged=damaged)


def _event(line: _Spooled) -> dict[str, Any]:
    if line.record is not None:
        return of_record(line.record)
    return made("audit.damaged", "failed", timestamp(), detail={"bytes": len(line.text), "sha256": digest(line.text)})


def files(audit: str) -> list[Path]:
    """Return the spool files, oldest first: rotated ones carry a ULID, which sorts by time."""
    directory = Path(audit)
    return [*sorted(directory.glob(f"{SPOOL}.*")), directory / SPOOL]


def _lines(audit: str, positions: dict[str, int]) -> Iterator[_Spooled]:
    """The lines that were not taken yet. A name that was rotated meanwhile is read by its new one next time."""
    for path in files(audit):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            continue
        except OSError as err:
            raise unavailable(f"spool {path.name}", err) from err
        with os.fdopen(descriptor, "rb") as stream:
            yield from _of_file(stream, positions)


def _of_file(stream: Any, positions: dict[str, int]) -> Iterator[_Spooled]:
    first = next((line for line in stream if line.strip()), b"")
    if not first.endswith(b"\n"):
        return
    spool = digest(first)[:16]
    stream.seek(positions.get(spool, 0))
    end = stream.tell()
    for text in stream:
        if not text.endswith(b"\n"):
            return  # its writer is not done, or was cut and the next one ends it
        end += len(text)
        if line := text.strip(b"\n"):
            yield _Spooled(spool=spool, end=end, record=_parsed(line), text=line)


def _parsed(line: bytes) -> dict[str, Any] | None:
    frame = _FRAME.match(line)
    if frame is None or int(frame.group(1)) != len(line):
        return None
    try:
        record = loads(line)
    except ValueError:
        return None
    return record if type(record) is dict else None


def _positions(audit: str) -> dict[str, int]:
    """How far each file was taken: the checkpoint, and what the log says since."""
    seq, positions = _checkpoint(audit)
    newer: dict[str, int] = {}
    directory = os.open(f"{audit}/{DIRECTORY}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for record in backwards(directory):
            if record["seq"] <= seq:
                break
            source = record.get("source")
            if type(source) is dict:
                newer.setdefault(source["spool"], source["end"])
    finally:
        os.close(directory)
    return {**positions, **newer}


def _checkpoint(audit: str) -> tuple[int, dict[str, int]]:
    try:
        table = loads(Path(f"{audit}/{DIRECTORY}/{CHECKPOINT}").read_bytes())
        return int(table["seq"]), {str(name): int(end) for name, end in table["positions"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0, {}  # the log says it all, only slower


def _check_in(audit: str, seq: int, positions: dict[str, int]) -> None:
    there = {spool: end for spool, end in positions.items() if spool in _present(audit)}
    try:
        atomic_write(f"{audit}/{DIRECTORY}/{CHECKPOINT}", dumps({"seq": seq, "positions": there}).encode("ascii"))
    except OSError:
        pass  # the next reader looks back further


def _present(audit: str) -> set[str]:
    found = set()
    for path in files(audit):
        try:
            with path.open("rb") as stream:
                found.add(digest(next((line for line in stream if line.strip()), b""))[:16])
        except OSError:
            continue
    return found
