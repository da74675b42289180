"""Closed segments, compressed: ``00000001.jsonl.gz`` in place of ``00000001.jsonl``.

Owns: the order in which one takes the place of the other, and reading it as if it were not compressed: into a file
without a name, so that nobody who reads a log knows the difference. Fails closed: the plain file goes only when the
packed one is on the disk; one that cannot be unpacked to its end is read as far as it goes, with a line behind it that
is no record, so that ``verify`` names it. Source: gzip(1), RFC 1952. Read next: ``segments.py``.
"""

from __future__ import annotations

import os

PACKED = ".gz"
# Of a segment that was unpacked: more is none that a writer of ours closed, and nobody's memory has to bear it.
MAX_BYTES = 512 << 20
_LEVEL, _STEP = 3, 1 << 20
_GZIP = 31  # zlib's wbits for a gzip header and the largest window
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_UNREADABLE = b"\n#unreadable\n"


def pack(directory: int, name: str) -> None:
    """Compress a closed segment. Raises: OSError; the plain file is as it was then."""
    source = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=directory)
    try:
        part = f"{name}{PACKED}.{os.getpid()}"
        target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=directory)
        try:
            _compress(source, target)
            os.fsync(target)
            os.rename(part, name + PACKED, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(part, dir_fd=directory)
            raise
        finally:
            os.close(target)
    finally:
        os.close(source)
    os.fsync(directory)
    os.unlink(name, dir_fd=directory)


def _compress(source: int, target: int) -> None:
    import zlib

    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    while data := os.read(source, _STEP):
        _write(target, packer.compress(data))
    _write(target, packer.flush())


def unpack(packed: int) -> int:
    """Return a descriptor of what a packed segment has in it. Raises: OSError."""
    import zlib

    plain, unpacker, left = os.memfd_create("segment", os.MFD_CLOEXEC), zlib.decompressobj(_GZIP), MAX_BYTES
    try:
        while left > 0 and not unpacker.eof:
            data = unpacker.unconsumed_tail or os.read(packed, _STEP)
            if not data:
                break
            found = unpacker.decompress(data, min(left, _STEP))
            left -= len(found)
            _write(plain, found)
    except zlib.error:
        pass
    except BaseException:
        os.close(plain)
        raise
    if not unpacker.eof or unpacker.unused_data or os.read(packed, 1):
        _write(plain, _UNREADABLE)
    os.lseek(plain, 0, os.SEEK_SET)
    return plain


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data):]
