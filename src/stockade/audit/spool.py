"""The launcher's spool: files, lines, and how far each was read.

Owns: the frame of a record (``{"len":N``, one line), the order of the files, and the name of a file's content, which
is that of its first whole record: names and inode numbers come again. Fails closed: what has not the frame of a whole
record is handed on as damaged, never as less. Read next: ``ingest.py``, ``launcher/src/spool.rs``.
"""

from __future__ import annotations

import os
import re
import time

from stockade.frozen import dataclass
from stockade.ids import digest
from stockade.jsontext import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from stockade.light import Iterator, Mapping

FILE = "spool.jsonl"
# Behind a rotation somebody may still write to a file that it had open: one write(2), not a minute.
SETTLED_S = 60.0
# Nine digits: a longer number is none of a launcher, and int() refuses one of thousands.
_FRAME = re.compile(rb'\{"len":(\d{1,9})[,}]')
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A line of a spool file; no record where it is damaged.

    ``spool``: the file, by its content; ``end``: the offset behind the line; ``uid``: who owns the file.
    """

    spool: str
    end: int
    uid: int
    text: bytes
    record: dict[str, Any] | None


def rotated(audit: str) -> list[str]:
    """Return the paths of the files that were full, oldest first: they carry a ULID, which sorts by time."""
    try:
        return [f"{audit}/{name}" for name in sorted(os.listdir(audit)) if name.startswith(f"{FILE}.")]
    except FileNotFoundError:
        return []


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line without its newline; None where it is no whole one."""
    frame = _FRAME.match(line)
    if frame is None or int(frame[1]) != len(line):
        return None
    try:
        record = loads(line)
    except (ValueError, RecursionError):
        return None
    return record if type(record) is dict else None


def lines(audit: str, positions: Mapping[str, int]) -> Iterator[Spooled]:
    """Yield what lies behind the positions, in order. Raises: Error(audit_unavailable)."""
    # The newest is opened before the others are listed: what is rotated meanwhile is read by both names, once.
    newest = opened(f"{audit}/{FILE}")
    try:
        for path in rotated(audit):
            stream = opened(path)
            if stream is not None:
                with stream:
                    yield from _lines(stream, positions, path)
        if newest is not None:
            yield from _lines(newest, positions, "")
    finally:
        if newest is not None:
            newest.close()


def opened(path: str) -> BinaryIO | None:
    """Return a spool file, open; None where it went away. Raises: Error(audit_unavailable)."""
    try:
        return os.fdopen(os.open(path, _FLAGS), "rb")
    except FileNotFoundError:
        return None
    except OSError as err:
        from stockade.audit.segments import (
            unavailable,  # with all that a chain needs, which a reader of the spool does not
        )

        raise unavailable(f"spool {os.path.basename(path)}", err) from err


def name_of(stream: BinaryIO, path: str) -> str:
    """Return the name of what a file has in it; empty while it has no whole record.

    Args: path: of a rotated file, which is named by that if it never got one; empty for the newest.
    """
    stream.seek(0)
    for line in stream:
        if line.endswith(b"\n") and parsed(line.strip(b"\n")) is not None:
            return digest(line)[:16]
    return digest(os.fsencode(os.path.basename(path)))[:16] if path and _settled(stream) else ""


def _settled(stream: BinaryIO) -> bool:
    return time.time() - os.fstat(stream.fileno()).st_mtime >= SETTLED_S


def _lines(stream: BinaryIO, positions: Mapping[str, int], path: str) -> Iterator[Spooled]:
    spool, uid = name_of(stream, path), os.fstat(stream.fileno()).st_uid
    if not spool:
        return
    end = stream.seek(positions.get(spool, 0))
    for text in stream:
        if not text.endswith(b"\n") and not (path and _settled(stream)):
            return  # its writer is not done, or was cut and the next one ends it: in a rotated file none comes
        end += len(text)
        if line := text.strip(b"\n"):
            yield Spooled(spool=spool, end=end, uid=uid, text=line, record=parsed(line))
