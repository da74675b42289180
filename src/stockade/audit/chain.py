"""One record of the audit log and its link to the one before.

Owns: the form of a line, ``canonical JSON`` and a newline, and what its hash covers:
``hash = SHA-256(prev || canonical(record without hash))``, with ``prev`` as the 64 characters that the record has
too. Fails closed: a line that is not the canonical spelling of what it says is no record, so that two different
lines never pass for one; where a signed head covers a line, its hash alone tells that. Read next: ``verify.py``.
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
_OWN, _PREV, _SEQ = b'"hash":"', b'"prev":"', b'"seq":'
_FIELDS = (("seq", int), ("prev", str), ("hash", str))
_DIGITS = 16  # of MAX_INTEGER


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
    """Return what a line without its newline says of the chain; None where it is no record.

    It is not parsed: the hash covers its bytes, and a key in a text would have its quotes escaped. A key of these
    names in a nested table, where there is one, goes the long way. So whoever made the hash may have made it of
    anything: ``is_canonical`` looks at that.
    """
    own, prev, seq = line.find(_OWN), line.rfind(_PREV), line.rfind(_SEQ)
    if own < 0 or line.count(_OWN) + line.count(_PREV) + line.count(_SEQ) != 3 or not own < prev < seq:
        return _parsed(line)
    value, after = own + len(_OWN), own + len(_OWN) + 66  # the digest, a quote, a comma
    number = line[seq + len(_SEQ):].partition(b",")[0].rstrip(b"}")
    if line[after - 2:after] != b'",' or not number.isdigit() or len(number) > _DIGITS:
        return None
    said, before = line[value:after - 2], line[prev + len(_PREV):prev + len(_PREV) + 64]
    whole = sha256(before + line[:own] + line[after:]).hexdigest().encode("ascii") == said
    return Record(seq=int(number), prev=before.decode("latin-1"), hash=said.decode("latin-1"), whole=whole)


def is_canonical(line: bytes) -> bool:
    """Tell whether a line without its newline is the canonical spelling of a record."""
    try:
        record = loads(line)
        return type(record) is dict and all(type(record.get(name)) is kind for name, kind in _FIELDS) \
            and encode(record) == line
    except (ValueError, RecursionError):
        return False


def _parsed(line: bytes) -> Record | None:
    if not is_canonical(line):
        return None
    record = loads(line)
    if not is_digest(record["prev"]):
        return None
    own = _hash(record["prev"], encode({key: value for key, value in record.items() if key != "hash"}))
    return Record(seq=record["seq"], prev=record["prev"], hash=record["hash"], whole=record["hash"] == own)


def _halves(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What lies before and behind ``hash`` in the canonical order of keys: so each value is spelled once."""
    yield {key: value for key, value in record.items() if key < "hash"}
    yield {key: value for key, value in record.items() if key > "hash"}


def _table(*parts: bytes) -> bytes:
    return b"{%s}" % b",".join(part for part in parts if part)


def _hash(prev: str, bare: bytes) -> str:
    return sha256(prev.encode("ascii") + bare).hexdigest()
