"""One record of the audit log and its link to the one before.

Owns: the form of a line, ``canonical JSON`` and a newline, and what its hash covers:
``hash = SHA-256(prev || canonical(record without hash))``, with ``prev`` as the 64 characters that the record has
too. Fails closed: a line that is not the canonical spelling of what it says is no record, so that two different
lines never pass for one. Read next: ``verify.py``; ``forms.py`` for many lines.
"""

from __future__ import annotations

from hashlib import sha256

from stockade.canonicaljson import encode
from stockade.errors import Error
from stockade.frozen import dataclass
from stockade.ids import is_digest
from stockade.jsontext import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.light import Iterator

# What the first record of a log follows.
GENESIS = "0" * 64
# A record is read back in one piece; a request is clipped long before.
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Where a chain stands: number and hash of its last record; 0 and ``GENESIS`` before the first."""

    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one line says of the chain. ``whole``: its hash is that of its content."""

    seq: int
    prev: str
    hash: str
    whole: bool


def sealed(event: dict[str, Any], last: Link) -> tuple[bytes, Link]:
    """Return the line of the event that follows ``last``, newline included, and where the chain stands then.

    Args: event: all but ``seq``, ``prev`` and ``hash``.
    Raises: Error(audit_invalid) for a value that has no canonical spelling, or a line of more than 1 MiB.
    """
    record = {**event, "seq": last.seq + 1, "prev": last.hash}
    try:
        before, after = (encode(part, "event")[1:-1] for part in _halves(record))
    except ValueError as err:
        raise Error("audit_invalid", f"audit event: {err}") from None
    own = _hash(last.hash, _table(before, after))
    line = _table(before, b'"hash":"%s"' % own.encode("ascii"), after) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise Error("audit_invalid", f"audit event: got {len(line)} bytes, expected {MAX_LINE_BYTES} at most")
    return line, Link(seq=last.seq + 1, hash=own)


def opened(line: bytes) -> Record | None:
    """Return what a line without its newline says of the chain; None where it is no record."""
    try:
        record = loads(line)
        if type(record) is not dict or encode(record) != line:
            return None
    except (ValueError, RecursionError):
        return None
    seq, prev, said = record.get("seq"), record.get("prev"), record.get("hash")
    if type(seq) is not int or type(prev) is not str or type(said) is not str or not is_digest(prev):
        return None
    own = b'"hash":"%s",' % said.encode("utf-8")
    # Once: then it is no part of a nested table.
    bare = line.replace(own, b"") if line.count(own) == 1 else _without_hash(record)
    return Record(seq=seq, prev=prev, hash=said, whole=_hash(prev, bare) == said)


def _without_hash(record: dict[str, Any]) -> bytes:
    return encode({key: value for key, value in record.items() if key != "hash"})


def _halves(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What lies before and behind ``hash`` in the canonical order of keys: so each value is spelled once."""
    yield {key: value for key, value in record.items() if key < "hash"}
    yield {key: value for key, value in record.items() if key > "hash"}


def _table(*parts: bytes) -> bytes:
    return b"{%s}" % b",".join(part for part in parts if part)


def _hash(prev: str, bare: bytes) -> str:
    return sha256(prev.encode("ascii") + bare).hexdigest()
