"""Who may use or remove what boxes keep of their tools' caches.

Owns: the lock on an identity's directory, the second look at its name, and the lock of everybody who
removes. Fails closed: what cannot be locked, or is no longer what was locked, counts as in use.
Read next: ``stores.py``, ``launcher/src/stores.rs``.
"""

from __future__ import annotations

import fcntl
import os

LOOKED = ".looked"  # its time: the last whole look; its lock: one that removes at a time


def hold(path: str) -> int | None:
    """Return the descriptor of an identity that no box uses, locked; None for one in use. Raises: OSError.

    Another remover may have renamed it away before the lock was ours, and a start may have made it anew.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def in_use(path: str) -> bool:
    """Tell whether a box that lives may have the identity's caches mounted. Raises: OSError."""
    try:
        fd = hold(path)
    except FileNotFoundError:
        return False  # somebody removed it, and a box that lives keeps its own from that
    if fd is not None:
        os.close(fd)
    return fd is None


class one_at_a_time:
    """The lock of whoever removes; entering gives False when somebody else does and nobody waits."""

    def __init__(self, caches: str, *, wait: bool = False) -> None:
        self._fd = _opened(f"{caches}/{LOOKED}")
        self._how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB

    def __enter__(self) -> bool:
        try:
            fcntl.flock(self._fd, self._how)
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _opened(path: str) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)
    os.utime(fd, (0, 0))  # made, but nobody has looked yet
    return fd
