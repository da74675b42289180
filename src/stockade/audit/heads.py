"""Signed heads: how far the log had come, for somebody who has the public key alone.

Owns: the Ed25519 key of a state home, the form of a head and what is signed. A head says number and hash of one
record and so of all before it. Without the package ``cryptography`` (extra ``audit``) heads are written without a
signature, and say so. Fails closed: a key that cannot be read is an error, never a new key under the old name.
Read next: ``verify.py``.
"""

from __future__ import annotations

import os
import stat

from stockade.audit.chain import Link
from stockade.canonicaljson import encode
from stockade.errors import Error
from stockade.frozen import dataclass
from stockade.ids import digest, is_digest
from stockade.jsontext import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE, PRIVATE, PUBLIC = "heads.jsonl", "audit.key", "audit.pub"
# So that a signature of a head is one of nothing else.
_CONTEXT = b"stockade audit head v1\0"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One head. ``key``: the first 16 characters of the SHA-256 of the public key; None and no ``sig`` where unsigned."""

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
        self.public = key.public_key().public_bytes_raw()
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


def signer(keys: str) -> Signer | None:
    """Return the signer of a directory of keys, whose key is made once; None without ``cryptography``.

    Raises: Error(audit_key_invalid): the file is no key of ours, or others can read it.
    """
    if not can_sign():
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = f"{keys}/{PRIVATE}"
    raw = _read_private(path)
    if raw is None:
        _make(keys, Ed25519PrivateKey.generate())
        raw = _read_private(path)
    if raw is None or len(raw) != 32:
        raise Error("audit_key_invalid", f"key {path!r}: got {len(raw or b'')} bytes, expected 32")
    return Signer(Ed25519PrivateKey.from_private_bytes(raw))


def _read_private(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise Error("audit_key_invalid", f"key {path!r}: {os.strerror(err.errno or 0)}") from err
    with os.fdopen(descriptor, "rb") as stream:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise Error("audit_key_invalid", f"key {path!r}: got a file that others can reach, expected one of ours with mode 0600")
        return stream.read(64)


def _make(keys: str, key: Ed25519PrivateKey) -> None:
    """Two files, whole or not there; where two processes make one, the first stays."""
    os.makedirs(keys, 0o700, exist_ok=True)
    _place(f"{keys}/{PRIVATE}", key.private_bytes_raw())
    made = _read_private(f"{keys}/{PRIVATE}")
    if made == key.private_bytes_raw():
        _place(f"{keys}/{PUBLIC}", key.public_key().public_bytes_raw().hex().encode("ascii") + b"\n")


def _place(path: str, data: bytes) -> None:
    """link(2) makes the name for a whole file, and for none that exists."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(6).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)


def parse(line: bytes) -> Head | None:
    """Return the head of a line; None where it is none."""
    try:
        table: Any = loads(line)
    except ValueError:
        return None
    if type(table) is not dict or set(table) != {"seq", "hash", "ts", "key", "sig"} or type(table["seq"]) is not int:
        return None
    texts = [table[name] for name in ("ts", "key", "sig") if table[name] is not None]
    return Head(**table) if is_digest(str(table["hash"])) and all(type(text) is str for text in texts) else None


def is_signed_by(head: Head, public: bytes) -> bool:
    """Tell whether a head has a good signature of a public key. Raises: Error(audit_unsigned) without ``cryptography``."""
    if not can_sign():
        raise Error("audit_unsigned", "signature of a head: cannot be checked without the package cryptography")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(head.sig or ""), head.signed_bytes())
    except (InvalidSignature, ValueError):
        return False
    return head.key == name_of(public)
