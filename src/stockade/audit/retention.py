"""Removing what is older than records are kept, so that the log says what is gone.

Owns: which segments may go (closed ones, oldest first, whose last record is too old), and the order: first a record
that names number and hash of the last one of each, signed; then the files. Files of the spool go when the log has
all that is in them. Fails closed: a writer that is killed between the two leaves a log that is whole, and one whose
spool is not taken a second time, because the record says how far it was. Read next: ``verify.py``.
"""

from __future__ import annotations

import os
import time

from stockade.audit.chain import Link
from stockade.audit.events import made
from stockade.audit.packing import PACKED, pack
from stockade.audit.query import event_of
from stockade.audit.segments import name_of, numbers, read_segment, tail_of, unavailable
from stockade.audit.spool import SETTLED_S, opened, rotated
from stockade.audit.spool import name_of as name_in_spool
from stockade.ids import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.audit.log import Log

DEFAULT_S = 90 * 86_400


def prune(directory: int, log: Log, older_than_s: int, taken: dict[str, int] | None = None) -> int:
    """Remove closed segments whose last record is older; return how many.

    Args: directory: the open log directory; taken: how far each spool file was taken, which nothing else tells when
    the records of it are gone.
    Raises: Error(audit_unavailable).
    """
    old = _old(directory, time.time() - older_than_s)
    if not old:
        return 0
    ends = [{"segment": number, "last_seq": link.seq, "last_hash": link.hash} for number, link in old]
    detail = {"ends": ends, "taken": taken or {}}
    log.append([made("audit.pruned", "completed", timestamp(), detail=detail)], critical=True)
    for number, _ in old:
        for name in (name_of(number), name_of(number) + PACKED):
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                continue  # it has the other name, or somebody else was faster, and said so
            except OSError as err:
                raise unavailable(f"segment {name}", err) from err
    log.forget_heads(old[-1][1].seq)
    return len(old)


def compress(directory: int) -> int:
    """Compress the closed segments that are not; return how many. One that cannot be stays as it is."""
    done = 0
    for number in numbers(directory)[:-1]:
        try:
            pack(directory, name_of(number))
        except FileNotFoundError:
            continue  # it is
        except OSError:
            return done  # no room, say: nothing is lost, and the next command tries again
        done += 1
    return done


def collect(audit: str, taken: dict[str, int], older_than_s: int) -> None:
    """Remove rotated spool files that are older and in the log as a whole, and forget how far they were taken.

    Raises: Error(audit_unavailable).
    """
    before = time.time() - max(older_than_s, SETTLED_S)
    for path in rotated(audit):
        stream = opened(path)
        if stream is None:
            continue
        with stream:
            if os.fstat(stream.fileno()).st_mtime >= before:
                continue
            spool = name_in_spool(stream, path)
            stream.seek(taken.get(spool, 0))
            if stream.read().strip(b"\n"):
                continue
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as err:
            raise unavailable(f"spool {os.path.basename(path)}", err) from err
        taken.pop(spool, None)


def _old(directory: int, before: float) -> list[tuple[int, Link]]:
    """The oldest segments in order, up to the first that is still to be kept, or is damaged: that stays to be seen."""
    oldest = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before))
    found = []
    for number in numbers(directory)[:-1]:
        descriptor = read_segment(directory, number)
        if descriptor is None:
            break
        try:
            tail = tail_of(descriptor)
        finally:
            os.close(descriptor)
        if tail.link is None or tail.torn_bytes or not _when(tail.line) < oldest:
            break
        found.append((number, tail.link))
    return found


def _when(line: bytes) -> str:
    """When a record was written; one that does not say it is kept."""
    ts = (event_of(line) or {}).get("ts")
    return ts if type(ts) is str else "~"
