"""From the launcher's spool into the log: in order, each record once, whoever was killed on the way.

Owns: how far each spool file was taken. That stands in the log itself, in the record that was taken (``source``) and
in the one that says what was pruned, so that it cannot be ahead of the log or behind; a checkpoint beside it only
saves looking back, and counts where its record is in the log. Fails closed: a spool file whose position is not known
is read from its start, and what is no whole record is said in the log, once. Read next: ``spool.py``, ``events.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

from stockade.audit.chain import Link
from stockade.audit.events import made, of_record
from stockade.audit.forms import Reader
from stockade.audit.lock import LOCK_TIMEOUT_S, take_lock
from stockade.audit.log import DIRECTORY, Log
from stockade.audit.query import event_of, lines_back
from stockade.audit.retention import collect, compress, prune
from stockade.audit.segments import unavailable
from stockade.audit.spool import Spooled, lines
from stockade.canonicaljson import MAX_INTEGER
from stockade.frozen import dataclass
from stockade.ids import digest, timestamp
from stockade.jsontext import dumps, loads
from stockade.paths import atomic_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOCK, CHECKPOINT = "ingest.lock", "checkpoint.json"
BATCH = 200
Positions = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one pass took. ``busy``: nothing, because another process was at it all the time."""

    records: int = 0
    damaged: int = 0
    busy: bool = False


def ingest(audit: str, log: Log, *, keep_s: int | None = None, timeout_s: float = LOCK_TIMEOUT_S) -> Taken:
    """Take what the spool has into the log, and remove what of both is older than ``keep_s``.

    Raises: Error(audit_unavailable), Error(audit_damaged).
    """
    try:
        lock = os.open(f"{audit}/{DIRECTORY}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as err:
        raise unavailable("lock of the spool's reader", err) from err
    try:
        return _pass(audit, log, keep_s) if take_lock(lock, timeout_s) else Taken(busy=True)
    finally:
        os.close(lock)


def _pass(audit: str, log: Log, keep_s: int | None) -> Taken:
    directory = os.open(f"{audit}/{DIRECTORY}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        positions = _positions(audit, directory)
        if keep_s is not None:
            collect(audit, positions, keep_s)
        taken = _ingest(audit, log, positions)
        if keep_s is not None:
            prune(directory, log, keep_s, positions)
            compress(directory)
        return taken
    finally:
        os.close(directory)


def _ingest(audit: str, log: Log, positions: Positions) -> Taken:
    records = damaged = 0
    batch: list[dict[str, Any]] = []
    link = None
    for line in lines(audit, positions):
        damaged += line.record is None
        records += line.record is not None
        batch.append({**_event(line), "source": {"spool": line.spool, "end": line.end}})
        positions[line.spool] = line.end
        if len(batch) >= BATCH:
            link, batch = log.append(batch), []
    if batch:
        link = log.append(batch)
    if link is not None:
        log.sync()
        _check_in(audit, link, positions)
    return Taken(records=records, damaged=damaged)


def _event(line: Spooled) -> dict[str, Any]:
    if line.record is not None:
        return of_record(line.record, line.text, line.uid)
    return made("audit.damaged", "failed", timestamp(), detail={"bytes": len(line.text), "sha256": digest(line.text)})


def _positions(audit: str, directory: int) -> Positions:
    """How far each file was taken: what the log says back to the checkpoint, where that is of this log."""
    last, checked = _checkpoint(audit)
    found: Positions = {}
    opened = Reader().opened
    for line in lines_back(directory):
        record = opened(line)
        if record is None or not record.whole:
            continue
        if (record.seq, record.hash) == (last.seq, last.hash):
            return _further(found, checked)
        found = _further(found, _said(event_of(line) or {}))
    return found


def _said(event: dict[str, Any]) -> Positions:
    """Return the positions that a record of the log gives: one, or all of them where older records were removed."""
    source, detail = event.get("source"), event.get("detail")
    if event.get("type") == "audit.pruned" and type(detail) is dict and type(detail.get("taken")) is dict:
        return {spool: end for spool, end in detail["taken"].items() if type(end) is int}
    if type(source) is not dict or type(source.get("spool")) is not str or type(source.get("end")) is not int:
        return {}
    return {source["spool"]: source["end"]}


def _further(found: Positions, other: Positions) -> Positions:
    """Of two positions in a file the one behind the other: a file only grows."""
    for spool, end in other.items():
        found[spool] = max(end, found.get(spool, 0))
    return found


def _checkpoint(audit: str) -> tuple[Link, Positions]:
    try:
        table = loads(Path(f"{audit}/{DIRECTORY}/{CHECKPOINT}").read_bytes())
        link = Link(seq=int(table["seq"]), hash=str(table["hash"]))
        return link, {str(name): min(int(end), MAX_INTEGER) for name, end in table["positions"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Link(), {}  # the log says it all, only slower


def _check_in(audit: str, link: Link, positions: Positions) -> None:
    """After the records are on the disk: a checkpoint that is ahead of the log would lose those between."""
    table = {"seq": link.seq, "hash": link.hash, "positions": positions}
    try:
        atomic_write(f"{audit}/{DIRECTORY}/{CHECKPOINT}", dumps(table).encode("ascii"))
    except OSError:
        pass  # the next reader looks back further
