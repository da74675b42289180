"""Identity: run ids, content digests and times.

Owns: the ULID form of a run id, the SHA-256 name of a plan and how a time is written. Imports nothing above.
Fails closed: random bits come from the kernel alone; there is no fallback source.
Read next: ``stockade.plan.store``, which files plans under their digest.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def ulid() -> str:
    """Return a new ULID: 48 bits of milliseconds since the epoch, 80 random bits.

    Returns: 26 characters of Crockford base 32, sortable by time.
    """
    value = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def timestamp() -> str:
    """Return the wall-clock time, RFC 3339, UTC, in nanoseconds."""
    seconds, ns = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns:09d}Z"


def digest(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as 64 lower-case hexadecimal characters."""
    text: str = _sha256()(data).hexdigest()
    return text


def _sha256() -> Any:
    """The interpreter's own SHA-256: ``hashlib`` loads OpenSSL first, 3 ms (``random`` does the same)."""
    for name in ("_sha2", "_sha256"):
        try:
            return __import__(name).sha256
        except ImportError:
            continue
    import hashlib

    return hashlib.sha256


def is_digest(text: str) -> bool:
    """Tell whether ``text`` has the exact form of a digest (safe as a file name)."""
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)
