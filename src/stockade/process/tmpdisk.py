"""``--tmp disk``: a private directory in the state home as the box's /tmp.

Owns: making and removing it. The maker holds a lock on it; what nobody holds was left by a
crash and is removed at the next start. Fails closed: names are made by us, are unique, and are
removed without following symbolic links, whatever modes and depth the box left behind.
"""

from __future__ import annotations

import fcntl
import os

from stockade.errors import shortage
from stockade.ids import ulid
from stockade.process._exec import above_streams
from stockade.process.erase import erase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.process.prepare import Prepared

PREFIX = "tmp-"
LOCK = ".lock"
_locks: dict[str, int] = {}


def make(prepared: Prepared) -> str | None:
    """Make the directory if the request asks for one; removes what crashes left behind.

    Raises: Refused(resource).
    """
    if prepared.compiled is None or prepared.compiled.tmp_points is None:
        return None
    path = None
    try:
        base = os.path.realpath(prepared.resolved.state_home.run)
        _collect(base)
        path, lock = _locked(base)
        _locks[path] = lock
        os.mkdir(path, 0o700)
        for point, kind in prepared.compiled.tmp_points:
            _make_point(path + point.removeprefix("/tmp"), kind)
    except OSError as err:
        remove(path)
        short = shortage(err, "directory for --tmp disk")
        if short is None:
            raise
        raise short from err
    return path


def _locked(base: str) -> tuple[str, int]:
    """Return a new name and the lock on it."""
    while True:
        path = os.path.join(base, PREFIX + ulid())
        lock = above_streams(os.open(path + LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return path, lock
        os.close(lock)  # another start took it for a leftover before it was locked


def _make_point(path: str, kind: str) -> None:
    """Make a place to mount on (a write root below /tmp is still there)."""
    os.makedirs(path if kind == "dir" else os.path.dirname(path), mode=0o700, exist_ok=True)
    if kind == "file":
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def remove(path: str | None) -> None:
    """Remove the directory and let go of its lock; None does nothing."""
    if path is None:
        return
    lock = _locks.pop(path, None)
    _remove(path)
    if lock is not None:
        os.close(lock)


def _remove(path: str) -> None:
    try:
        erase(path)
        os.unlink(path + LOCK)
    except OSError:
        return  # the lock stays with what is left, so that the next start tries again


def _collect(base: str) -> None:
    for name in os.listdir(base):
        if not name.startswith(PREFIX) or not name.endswith(LOCK):
            continue
        lock_path = os.path.join(base, name)
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock_path.removesuffix(LOCK))
        except OSError:
            continue  # its maker lives
        finally:
            os.close(lock)
