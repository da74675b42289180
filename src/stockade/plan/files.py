"""Small text files of the host, read without hanging on what is no file.

Fails closed: what cannot be read, is no regular file or is too large is empty text.
"""

from __future__ import annotations

import os
import stat

MAX_BYTES = 256 * 1024


def small_text(path: str) -> str:
    """Return the text of a regular file, or "" when there is none to read."""
    try:
        # O_NONBLOCK: a FIFO of that name must not hang the compiler.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as stream:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_BYTES:
            return ""
        return stream.read(MAX_BYTES).decode("utf-8", "replace")
