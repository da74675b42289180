"""Checking a log: whole, or the first record that is not and what happened to it.

Owns: the kinds of damage and how each is told from the others. The files alone are read; nothing is repaired.
Fails closed: what cannot be told apart is called edited, and a log without one segment of its chain is not
whole. Read next: ``chain.py``, ``heads.py``.
"""

from __future__ import annotations

import os
from hashlib import sha256

from stockade.audit.chain import Link, Record, opened
from stockade.audit.segments import TORN, is_torn, numbers, open_segment
from stockade.frozen import dataclass
from stockade.jsontext import loads
from stockade.light import MappingProxyType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.light import Iterator, Mapping, Sequence

PRUNED = b'"audit.pruned"'
_NO_MARKS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The first record that is not as it was written.

    ``kind``: edited, dropped, inserted, reordered, torn_tail, missing_segment, truncated; ``seq``: of the record
    that was expected there; ``segment``, ``line`` (from 1): where.
    """

    kind: str
    seq: int
    segment: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``records``: that follow each other; ``last``: the last of them.

    ``torn``: unfinished lines of writers that were killed, each named by the record behind it; ``pruned``: so many
    records before them were removed for their age, as the log itself says: of these nothing can be told.
    """

    records: int
    last: Link
    damage: Damage | None = None
    torn: int = 0
    pruned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    segment: int
    number: int
    text: bytes
    ended: bool


def verify(directory: int, marks: Mapping[int, str] = _NO_MARKS) -> Verdict:
    """Follow the chain through the segments of an open directory.

    Args: marks: hashes that records of those numbers had, from signed heads: only they tell that a whole chain was
    written anew, or that its end is gone.
    Raises: Error(audit_unavailable).
    """
    found = numbers(directory)
    start = last = _start(directory, found)
    told, torn = start.seq == 0, 0
    skipped: list[_Line] = []
    line = _Line(segment=1, number=1, text=b"", ended=True)
    for line in _lines(directory, found):
        record = opened(line.text)
        if record is None or not record.whole:
            if not is_torn(line.text, ended=line.ended):
                return _damaged(directory, found, last, line, torn)
            skipped.append(line)  # left by a writer that was killed, if the next record says so
            continue
        if skipped:
            if not _names(line.text, skipped):
                return _damaged(directory, found, last, skipped[0], torn)
            torn, skipped = torn + 1, []
        if record.seq != last.seq + 1 or record.prev != last.hash:
            return _damaged(directory, found, last, line, torn)
        if marks.get(record.seq, record.hash) != record.hash:
            return _told_by_a_mark("edited", last, line, torn)
        last = Link(seq=record.seq, hash=record.hash)
        told = told or _says_pruned(line.text, start)
    if skipped:
        return _damaged(directory, found, last, skipped[0], torn)
    if not told:
        return Verdict(records=0, last=Link(), torn=torn, damage=Damage(
            kind="missing_segment", seq=1, segment=found[0], line=1))
    if max(marks, default=0) > last.seq:
        return _told_by_a_mark("truncated", last, line, torn)
    return Verdict(records=last.seq - start.seq, last=last, torn=torn, pruned=start.seq)


def _start(directory: int, found: Sequence[int]) -> Link:
    """What the first record follows that is there: the beginning, unless older segments are gone."""
    if not found or found[0] == 1:
        return Link()
    first = next((opened(line.text) for line in _lines(directory, found[:1])), None)
    return Link(seq=first.seq - 1, hash=first.prev) if first is not None and first.whole else Link()


def _says_pruned(line: bytes, start: Link) -> bool:
    """Tell whether a record says that all up to ``start`` was removed for its age."""
    if PRUNED not in line:
        return False
    record = loads(line)
    detail = record.get("detail")
    if record.get("type") != "audit.pruned" or type(detail) is not dict:
        return False
    # Of each segment that goes: whoever removed them may have been killed between two.
    return any((end["last_seq"], end["last_hash"]) == (start.seq, start.hash) for end in detail["ends"])


def _told_by_a_mark(kind: str, last: Link, line: _Line, torn: int) -> Verdict:
    damage = Damage(kind=kind, seq=last.seq + 1, segment=line.segment, line=line.number)
    return Verdict(records=last.seq, last=last, damage=damage, torn=torn)


def _lines(directory: int, found: Sequence[int]) -> Iterator[_Line]:
    for number in found:
        with os.fdopen(open_segment(directory, number), "rb") as stream:
            for at, text in enumerate(stream, 1):
                yield _Line(segment=number, number=at, text=text.removesuffix(b"\n"), ended=text.endswith(b"\n"))


def _names(line: bytes, skipped: Sequence[_Line]) -> bool:
    """Tell whether a record says of the lines before it that they were left unfinished."""
    record = loads(line)
    left = b"\n".join(one.text for one in skipped).removesuffix(TORN)  # which the record behind it wrote
    detail = record.get("detail")
    if record.get("type") != "audit.torn" or type(detail) is not dict:
        return False
    return (detail.get("bytes"), detail.get("sha256")) == (len(left), sha256(left).hexdigest())


def _damaged(directory: int, found: Sequence[int], last: Link, line: _Line, torn: int) -> Verdict:
    kind = _kind(directory, found, last, line)
    if kind == _REWRITTEN:  # and given a hash again: the link behind it tells
        return Verdict(records=last.seq - 1, last=last, torn=torn, damage=Damage(
            kind="edited", seq=last.seq, segment=line.segment, line=max(1, line.number - 1)))
    damage = Damage(kind=kind, seq=last.seq + 1, segment=line.segment, line=line.number)
    return Verdict(records=last.seq, last=last, damage=damage, torn=torn)


_REWRITTEN = "rewritten"


def _kind(directory: int, found: Sequence[int], last: Link, line: _Line) -> str:
    """What happened at the first line that does not follow ``last``."""
    record = opened(line.text)
    follower = next((one for one in _later(directory, found, line)
                     if one.seq == last.seq + 1 and one.prev == last.hash), None)
    if record is None or not record.whole:
        if follower is not None:
            return "inserted"
        return "edited" if line.ended else "torn_tail"
    if record.seq > last.seq + 1:
        if follower is not None:
            return "reordered"
        return "missing_segment" if line.number == 1 and _gap(found, line.segment) else "dropped"
    if record.seq == last.seq + 1 and follower is None:
        return _REWRITTEN
    return "inserted"


def _later(directory: int, found: Sequence[int], line: _Line) -> Iterator[Record]:
    """The records behind a line."""
    for other in _lines(directory, [number for number in found if number >= line.segment]):
        if other.segment > line.segment or other.number > line.number:
            record = opened(other.text)
            if record is not None and record.whole:
                yield record


def _gap(found: Sequence[int], segment: int) -> bool:
    return segment - 1 not in found and segment > 1
