"""Waiting for a file lock, for a while.

Owns: how long and how often is asked. Fails closed: a lock that did not come in time is told, and never taken for one.
Read next: ``log.py``, ``ingest.py``.
"""

from __future__ import annotations

import fcntl
import time

from stockade.audit.segments import unavailable
from stockade.errors import Error

LOCK_TIMEOUT_S = 5.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.0002, 0.02


def take_lock(descriptor: int, timeout_s: float) -> bool:
    """Wait for the lock of an open file; tell whether it came in time. Raises: Error(audit_unavailable)."""
    until, wait_s = time.monotonic() + timeout_s, _FIRST_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        except OSError as err:
            raise unavailable("lock", err) from err
        else:
            return True
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def no_lock(timeout_s: float) -> Error:
    """Return the error of a lock that another process did not give back."""
    return Error("audit_unavailable", f"audit log: lock: got none in {timeout_s:g} s, expected one",
                 hint="wait for the process that holds the file lock of the log, or end it")
