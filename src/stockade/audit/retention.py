"""Removing what is older than records are kept, so that the log says what is gone.

Owns: which segments may go (closed ones, oldest first, whose last record is too old), and the order: first a record
that names number and hash of the last one of each, signed; then the files. Fails closed: a writer that is killed
between the two leaves a log that is whole. Read next: ``verify.py``.
"""

from __future__ import annotations

import os
import time

from stockade.audit.chain import Link
from stockade.audit.events import made
from stockade.audit.segments import name_of, numbers, open_segment, tail_of, unavailable
from stockade.ids import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.audit.log import Log

DEFAULT_S = 90 * 86_400


def prune(directory: int, log: Log, older_than_s: int) -> int:
    """Remove closed segments whose last record is older; return how many.

    Args: directory: the open log directory. Raises: Error(audit_unavailable).
    """
    old = _old(directory, time.time() - older_than_s)
    if not old:
        return 0
    ends = [{"segment": number, "last_seq": link.seq, "last_hash": link.hash} for number, link in old]
    log.append([made("audit.pruned", "completed", timestamp(), detail={"ends": ends})], critical=True)
    for number, _ in old:
        try:
            os.unlink(name_of(number), dir_fd=directory)
        except FileNotFoundError:
            continue  # somebody else was faster, and said so
        except OSError as err:
            raise unavailable(f"segment {name_of(number)}", err) from err
    return len(old)


def _old(directory: int, before: float) -> list[tuple[int, Link]]:
    """The oldest segments in order, up to the first that is still to be kept, or is damaged: that stays to be seen."""
    found = []
    for number in numbers(directory)[:-1]:
        descriptor = open_segment(directory, number)
        try:
            tail = tail_of(descriptor)
            if tail.link is None or tail.torn_bytes or os.fstat(descriptor).st_mtime >= before:
                break
        finally:
            os.close(descriptor)
        found.append((number, tail.link))
    return found
