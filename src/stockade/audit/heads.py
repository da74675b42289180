"""Signed heads: how far the log had come, for somebody who has the public key alone.

Owns: the form of a head, what is signed, and the file of heads. A head says number and hash of one record and so of
all before it. Without the package ``cryptography`` (extra ``audit``) heads are written without a signature, and say
so. Fails closed: a head of a later record than the last one is an error, never passed over. Read next: ``keys.py``,
``verify.py``.
"""

from __future__ import annotations

import os
import time
from errno import ENOSPC

from stockade.audit.chain import Link
from stockade.audit.segments import check_file, lines_backwards, unavailable
from stockade.canonicaljson import encode
from stockade.errors import Error
from stockade.frozen import dataclass
from stockade.ids import digest, is_digest, timestamp
from stockade.jsontext import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE = "heads.jsonl"
EVERY_S = 1.0
# So that a signature of a head is one of nothing else.
_CONTEXT = b"stockade audit head v1\0"
_FORMS = tuple({"seq": int, "hash": str, "ts": str, "key": key, "sig": sig}
               for key in (str, type(None)) for sig in (str, type(None)))
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One head. ``key``: the first 16 characters of the SHA-256 of the public key.

    Without a signature ``key`` and ``sig`` are None.
    """

    seq: int
    hash: str
    ts: str
    key: str | None = None
    sig: str | None = None

    def signed_bytes(self) -> bytes:
        """What the signature is of."""
        return _CONTEXT + encode({"seq": self.seq, "hash": self.hash, "ts": self.ts, "key": self.key})

    def line(self) -> bytes:
        """Its line in the file, newline included."""
        table = {"seq": self.seq, "hash": self.hash, "ts": self.ts, "key": self.key, "sig": self.sig}
        return encode(table) + b"\n"


class Signer:
    """Signs heads with the key of one state home."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = _raw_public(key)
        self.name = name_of(self.public)

    def head(self, link: Link, ts: str) -> Head:
        """Return a signed head of a chain that stands at ``link``."""
        bare = Head(seq=link.seq, hash=link.hash, ts=ts, key=self.name)
        return Head(seq=bare.seq, hash=bare.hash, ts=ts, key=bare.key, sig=self._key.sign(bare.signed_bytes()).hex())


def name_of(public: bytes) -> str:
    """Return the short name of a public key (32 raw bytes)."""
    return digest(public)[:16]


def can_sign() -> bool:
    """Tell whether the package that signs is installed."""
    from importlib.util import find_spec

    return find_spec("cryptography") is not None


def _raw_public(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    raw: bytes = key.public_key().public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
    return raw


def note(directory: int, link: Link, by: Signer | None, *, at_once: bool, is_last: bool = True) -> None:
    """Append a head of the chain, at most one a second unless ``at_once``; none where the last says the same.

    Below the lock of the log. Args: is_last: the chain ends with ``link``, so that no head can be of a later record.
    Raises: Error(audit_unavailable); Error(audit_damaged): one is, and so the end of the log is gone.
    """
    try:
        descriptor = os.open(FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | _FLAGS, 0o600, dir_fd=directory)
        with os.fdopen(descriptor, "rb+", buffering=0):
            info = os.fstat(descriptor)
            if not at_once and info.st_size and 0 <= time.time() - info.st_mtime < EVERY_S:
                return
            last = _last(descriptor, info.st_size)
            if last is not None and last.seq >= link.seq:
                return _check_last(last, link) if is_last else None
            head = by.head(link, timestamp()) if by else Head(seq=link.seq, hash=link.hash, ts=timestamp())
            _append(descriptor, info.st_size, head)
            if at_once:
                os.fdatasync(descriptor)
    except OSError as err:
        raise unavailable(f"heads {FILE}", err) from err


def check_last(directory: int, link: Link) -> None:
    """Compare the newest head with the last record. Raises: Error(audit_damaged), Error(audit_unavailable)."""
    found = read(directory)
    if found and found[-1].seq >= link.seq:
        _check_last(found[-1], link)


def _check_last(last: Head, link: Link) -> None:
    if (last.seq, last.hash) != (link.seq, link.hash):
        raise Error("audit_damaged", f"audit log: got record {link.seq} as the last one, and a head of record "
                    f"{last.seq}, expected the log to have all of which there is a head")


def _append(descriptor: int, size: int, head: Head) -> None:
    ended = not size or os.pread(descriptor, 1, size - 1) == b"\n"
    data = (b"" if ended else b"\n") + head.line()
    if os.write(descriptor, data) < len(data):
        raise OSError(ENOSPC, os.strerror(ENOSPC))


def _last(descriptor: int, size: int) -> Head | None:
    for line, _ in lines_backwards(descriptor, size):
        head = parse(line)
        if head is not None:
            return head
    return None


def read(directory: int) -> list[Head]:
    """Return the heads of an open log directory, in the order in which they were written."""
    try:
        descriptor = os.open(FILE, os.O_RDONLY | _FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return []
    except OSError as err:
        raise unavailable(f"heads {FILE}", err) from err
    check_file(descriptor, f"heads {FILE}")
    with os.fdopen(descriptor, "rb") as stream:
        return [head for head in map(parse, stream) if head is not None]


def drop(directory: int, last_seq: int) -> None:
    """Remove the heads of records that were pruned, up to a number: there is nothing to compare them with.

    Below the lock of the log. Raises: Error(audit_unavailable).
    """
    temporary = f"{FILE}.{os.getpid()}.{os.urandom(6).hex()}"
    try:
        with os.fdopen(os.open(FILE, os.O_RDONLY | _FLAGS, dir_fd=directory), "rb") as stream:
            lines = stream.readlines()
        kept = [line for line in lines if (head := parse(line)) is None or head.seq > last_seq]
        if len(kept) == len(lines):
            return
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as stream:
            stream.writelines(kept)
            stream.flush()
            os.fsync(descriptor)
        os.rename(temporary, FILE, src_dir_fd=directory, dst_dir_fd=directory)
    except FileNotFoundError:
        return
    except OSError as err:
        raise unavailable(f"heads {FILE}", err) from err


def parse(line: bytes) -> Head | None:
    """Return the head of a line; None where it is none."""
    try:
        table: Any = loads(line)
        if type(table) is not dict or {name: type(value) for name, value in table.items()} not in _FORMS:
            return None
        head = Head(**table)
        head.line()
    except (ValueError, RecursionError):
        return None
    return head if is_digest(head.hash) and head.seq > 0 else None


def is_signed_by(head: Head, public: bytes) -> bool:
    """Tell whether a head has a good signature of a public key.

    Raises: Error(audit_unsigned) without ``cryptography``.
    """
    if not can_sign():
        raise Error("audit_unsigned", "signature of a head: cannot be checked without the package cryptography")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(head.sig or ""), head.signed_bytes())
    except (InvalidSignature, ValueError):
        return False
    return head.key == name_of(public)
