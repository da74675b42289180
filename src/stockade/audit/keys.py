"""The key that signs heads, on the disk.

Owns: the Ed25519 key of a state home and its two files, made once, whole or not at all. Fails closed: a key that cannot
be read, or that others can, is an error, never a new key under the old name. Read next: ``heads.py``.
"""

from __future__ import annotations

import os
import stat

from stockade.audit.heads import Signer, can_sign
from stockade.audit.segments import told
from stockade.errors import Error
from stockade.ids import is_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PRIVATE, PUBLIC = "audit.key", "audit.pub"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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
    found = Signer(Ed25519PrivateKey.from_private_bytes(raw))
    if not os.path.lexists(f"{keys}/{PUBLIC}"):  # its writer was killed, or somebody removed it
        _place(f"{keys}/{PUBLIC}", found.public.hex().encode("ascii") + b"\n")
    return found


def public_key(path: str, hint: str | None = None) -> bytes | None:
    """Return the public key in a file, 64 hexadecimal characters; None where there is none.

    Raises: Error(audit_key_invalid).
    """
    try:
        with open(path, "rb") as stream:
            text = stream.read(200).strip()
    except FileNotFoundError:
        return None
    except OSError as err:
        raise Error("audit_key_invalid", f"public key {path!r}: {told(err)}", hint=hint) from err
    if not is_digest(text.decode("latin-1").lower()):
        raise Error("audit_key_invalid", f"public key {path!r}: got {len(text)} bytes of another form, expected 64 "
                    "hexadecimal characters", hint=hint)
    return bytes.fromhex(text.decode("ascii"))


def _read_private(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise Error("audit_key_invalid", f"key {path!r}: {told(err)}") from err
    with os.fdopen(descriptor, "rb") as stream:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise Error("audit_key_invalid",
                        f"key {path!r}: got a file that others can reach, expected one of ours with mode 0600")
        return stream.read(64)


def _make(keys: str, key: Ed25519PrivateKey) -> None:
    """A whole file or none; where two processes make one, the first stays."""
    os.makedirs(keys, 0o700, exist_ok=True)
    raw = _raw_private(key)
    _place(f"{keys}/{PRIVATE}", raw)


def _raw_private(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    # Not private_bytes_raw(): distributions ship releases from before it (40).
    raw: bytes = key.private_bytes(form.Encoding.Raw, form.PrivateFormat.Raw, form.NoEncryption())
    return raw


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
