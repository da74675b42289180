"""Writing to the spool from Python: the records of runs that no launcher writes.

Owns: the frame and the rotation, exactly as the launcher has them (``launcher/src/spool.rs``). Nothing is
removed here: ``stockade audit`` does that, when the log has it. Fails closed: a record that was not written whole is
an error, and what stands under the name must be a regular file. Read next: ``audit/spool.py`` (reading), ``off.py``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from stockade.ids import ulid
from stockade.jsontext import dumps
from stockade.light import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "spool.jsonl"
ROTATE_BYTES = 8 << 20
BOX_SOCKET = "/run/stockade/box.sock"
MESSAGE_BYTES = 8 << 10  # launcher/src/inside.rs
TELL_S = 1.0
_TRIES = 4  # another writer may rotate between our open and our look
# Non-blocking: a FIFO planted under the name must not stop the start.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def append(audit: str, record: Mapping[str, Any]) -> None:
    """Append one record in one write. Raises: OSError when it is not on disk as a whole."""
    data = frame(record)
    fd = _open(os.path.join(audit, FILE))
    try:
        wrote = os.write(fd, data)
        if wrote < len(data):
            os.write(fd, b"\n")  # the next record starts on a line of its own
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def tell_outside(record: Mapping[str, Any]) -> bool:
    """Tell the supervisor of the box around what is about to run in it, or was refused; False when nobody took it.

    It writes what it is told as ``origin: inside``: evidence of what was said, never of what is true.
    """
    import socket

    names = ("run_id", "decision", "code", "row", "argv0", "requested_tier", "active_tier", "effective_tier",
             "tier_known", "tier_downgrade", "missing")
    data = dumps({"stockade": {name: record[name] for name in names if name in record}}, compact=True).encode("ascii")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
            stream.settimeout(TELL_S)
            stream.connect(BOX_SOCKET)
            return stream.send(data[:MESSAGE_BYTES]) == len(data)
    except OSError:
        return False


def frame(record: Mapping[str, Any]) -> bytes:
    r"""Return ``\n{"len":N,...}\n``, N being the bytes of the object, its own digits included."""
    body = dumps(record, compact=True)[1:].encode("ascii")
    fixed = len('{"len":,') + len(body)
    total = next(fixed + digits for digits in range(1, 20) if len(str(fixed + digits)) == digits)
    return b'\n{"len":%d,%s\n' % (total, body)


def _open(path: str) -> int:
    for left in reversed(range(_TRIES)):
        fd = os.open(path, _FLAGS, 0o600)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
            if info.st_size < ROTATE_BYTES or not left or not _rotate(path, fd, info):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise AssertionError("unreachable: the last try returns or raises")


def _rotate(path: str, fd: int, opened: os.stat_result) -> bool:
    """Rename a full file away; tell whether the name is free or new.

    Only the holder of the lock on the file that the name stands for may rename it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = os.lstat(path)
        if (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino):
            os.rename(path, f"{path}.{ulid()}")
    except FileNotFoundError:
        return True
    except OSError:
        return False  # the file is still a segment of the log: it grows, nothing is lost
    return True
