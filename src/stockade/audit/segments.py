"""The files of the audit log: numbered segments, one of them open.

Owns: names (``00000001.jsonl``, in the order of the chain), what is whole of an open one, and opening them so
that nothing planted under a name is followed. Fails closed: a name that is no regular file, or one of another
owner, is an error and not an empty log; a line at the end that no killed writer can have left is damage, and nothing
is written behind it. Read next: ``log.py``.
"""

from __future__ import annotations

import errno
import os
import stat
from errno import errorcode

from stockade.audit.chain import MAX_LINE_BYTES, Link, opened
from stockade.audit.packing import MAX_BYTES as MAX_FILE_BYTES
from stockade.audit.packing import PACKED, unpack
from stockade.errors import Error
from stockade.frozen import dataclass
from stockade.jsontext import begins_with_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.light import Iterator

SUFFIX = ".jsonl"
# A segment and behind it the largest batch are less than ``MAX_FILE_BYTES``.
MAX_BATCH_BYTES = 256 << 20
# Ends the part of a line that a killed writer left. A line of another end that is no record was one, and was changed.
TORN = b"#torn"
_DIGITS = 8
# Most who read from the end want the last line alone, at each change of writers.
_FIRST_STEP = 4 << 10
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


_PLANTED = "move away what stands under the name"
# By what the system said; else that of the code.
_HINTS = {errno.ENOENT: "it went away meanwhile; try again", errno.ENOSPC: "make room on the disk of the state home",
          errno.EDQUOT: "make room on the disk of the state home", errno.ELOOP: _PLANTED, errno.EISDIR: _PLANTED,
          errno.ENOTDIR: _PLANTED, errno.EMFILE: "raise the limit of open files (ulimit -n)",
          errno.EIO: "look at the disk of the state home"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """How a segment ends.

    ``link``, ``line``: its last record, None where it has none; ``torn_bytes``: of the unfinished lines behind it;
    ``unended``: the record is whole, but for its newline; ``damaged``: what is behind the last record was not left by
    a writer that was killed.
    """

    link: Link | None
    torn_bytes: int = 0
    unended: bool = False
    damaged: bool = False
    line: bytes = b""


def name_of(number: int) -> str:
    """Return the file name of a segment; numbers begin at 1."""
    return f"{number:0{_DIGITS}d}{SUFFIX}"


def numbers(directory: int) -> list[int]:
    """Return the numbers of the segments in an open directory, in order. Raises: Error(audit_unavailable)."""
    try:
        found = {name.removesuffix(PACKED) for name in os.listdir(directory)}
    except OSError as err:
        raise unavailable("directory", err) from err
    names = [name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)]
    return sorted(int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdigit())


def open_segment(directory: int, number: int, *, make: bool = False) -> int:
    """Return a descriptor for reading and appending to a file of ours. Raises: Error(audit_unavailable)."""
    name = name_of(number)
    flags = os.O_RDWR | os.O_APPEND | _FLAGS | (os.O_CREAT if make else 0)
    try:
        descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    except OSError as err:
        raise unavailable(f"segment {name}", err) from err
    check_file(descriptor, f"segment {name}")
    if os.fstat(descriptor).st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    raise Error("audit_unavailable", f"segment {name}: got a file of another owner, expected one of ours",
                hint="write as the account whose log it is; stockade audit verify DIR reads any")


def read_segment(directory: int, number: int) -> int | None:
    """Return a descriptor for reading, of whatever owner; None where the segment is not there any more.

    Raises: Error(audit_unavailable).
    """
    plain = _read(directory, name_of(number))
    packed = _read(directory, name_of(number) + PACKED) if plain is None else None
    if packed is None:
        # Packed between the two looks.
        return plain if plain is not None else _read(directory, name_of(number))
    try:
        return unpack(packed)
    except OSError as err:
        raise unavailable(f"segment {name_of(number)}{PACKED}", err) from err
    finally:
        os.close(packed)


def _read(directory: int, name: str) -> int | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise unavailable(f"segment {name}", err) from err
    check_file(descriptor, f"segment {name}")
    return descriptor


def check_file(descriptor: int, what: str) -> None:
    """Close what is no file of a log, by its kind or size: one line of it could be all of it.

    Raises: Error(audit_unavailable).
    """
    info = os.fstat(descriptor)
    regular = stat.S_ISREG(info.st_mode)
    if regular and info.st_size <= MAX_FILE_BYTES:
        return
    os.close(descriptor)
    got = f"{info.st_size} bytes" if regular else "a file of another kind"
    raise Error("audit_unavailable", f"{what}: got {got}, expected a regular file of {MAX_FILE_BYTES} bytes at most",
                hint=_PLANTED)


def is_packed(directory: int, number: int) -> bool:
    """Tell whether a segment is there compressed, and so closed. Raises: Error(audit_unavailable)."""
    packed = _read(directory, name_of(number) + PACKED)
    if packed is not None:
        os.close(packed)
    return packed is not None


def unavailable(what: str, err: OSError) -> Error:
    """Return the error of a log that the host does not let us write or read."""
    return Error("audit_unavailable", f"audit log: {what}: {told(err)}", hint=_HINTS.get(err.errno or 0))


def told(err: OSError) -> str:
    """Return an error of the system in its words and its name."""
    number = err.errno or 0
    return f"{os.strerror(number)} ({errorcode.get(number, '?')})"


def damaged(number: int) -> Error:
    """Return the error of a segment behind whose last line nothing is written."""
    return Error("audit_damaged", f"segment {name_of(number)}: got a last line that is no record and that no killed "
                 "writer left, expected a record")


def tail_of(descriptor: int) -> Tail:
    """Read a segment from its end: as far back as it takes to find a whole record.

    What a killed writer left is passed over; a line that was changed is not, else the next record would make the log
    look whole.
    """
    size = os.fstat(descriptor).st_size
    begins = size
    for line, ended in lines_backwards(descriptor, size):
        record = opened(line)
        behind = begins
        begins -= len(line) + ended
        if record is not None and record.whole:
            return Tail(link=Link(seq=record.seq, hash=record.hash), torn_bytes=size - behind, unended=not ended,
                        line=line)
        if not is_torn(line, ended=ended):
            return Tail(link=None, damaged=True)
    return Tail(link=None, torn_bytes=size)


def link_before(directory: int, segment: int) -> Link:
    """Return the last link before a segment that has no record yet. Raises: Error(audit_unavailable, audit_damaged)."""
    for number in reversed([number for number in numbers(directory) if number < segment]):
        descriptor = read_segment(directory, number)
        if descriptor is None:
            continue
        try:
            tail = tail_of(descriptor)
        finally:
            os.close(descriptor)
        if tail.damaged:
            raise damaged(number)
        if tail.link is not None:
            return tail.link
    return Link()


def is_torn(line: bytes, *, ended: bool) -> bool:
    """Tell whether a line that is no record can be what a killed writer left of one.

    That has no newline of its own: the next writer ends it with ``TORN``. And it begins with no whole object, which a
    record that somebody changed is.
    """
    return (line.endswith(TORN) or not ended) and not begins_with_object(line)


def lines_backwards(descriptor: int, size: int) -> Iterator[tuple[bytes, bool]]:
    """Yield each line, last first, without its newline, and whether it has one."""
    at, rest, ended, step = size, b"", False, _FIRST_STEP
    while at > 0:
        step = min(at, 2 * step, MAX_LINE_BYTES)
        at -= step
        rest, *lines = (os.pread(descriptor, step, at) + rest).split(b"\n")
        for line in reversed(lines):
            if line or ended:
                yield line, ended
            ended = True
    if rest or ended:
        yield rest, ended
