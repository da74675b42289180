"""Whether the log would take a record now, for those who look before they need it.

Owns: one look at the lock, the last record and the last head, which writes nothing. Fails closed: what keeps a writer
from going on is an error here with the same code. Read next: ``log.py``.
"""

from __future__ import annotations

import contextlib
import os

from stockade.audit import heads
from stockade.audit.lock import LOCK_TIMEOUT_S, no_lock, take_lock
from stockade.audit.log import DIRECTORY, LOCK
from stockade.audit.segments import damaged, numbers, read_segment, tail_of, unavailable
from stockade.errors import Error


def fault(audit: str, timeout_s: float = LOCK_TIMEOUT_S) -> Error | None:
    """Return why the log would not go on; None where it would, or where there is none yet."""
    with contextlib.ExitStack() as opened:
        try:
            directory = os.open(f"{audit}/{DIRECTORY}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            opened.callback(os.close, directory)
            lock = os.open(LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
            opened.callback(os.close, lock)
        except FileNotFoundError:
            return None
        except OSError as err:
            return unavailable("directory", err)
        try:
            return _fault(directory) if take_lock(lock, timeout_s) else no_lock(timeout_s)
        except Error as err:
            return err


def _fault(directory: int) -> Error | None:
    for number in numbers(directory)[-1:]:
        segment = read_segment(directory, number)
        if segment is None:
            continue
        try:
            tail = tail_of(segment)
        finally:
            os.close(segment)
        if tail.damaged:
            return damaged(number)
        if tail.link is not None:
            heads.check_last(directory, tail.link)
    return None
