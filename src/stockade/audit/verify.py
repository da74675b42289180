"""Checking a log: whole, or the first record that is not and what happened to it.

Owns: the kinds of damage and how each is told from the others. The files alone are read, of whatever owner; nothing is
repaired. Fails closed: what cannot be told apart is called edited, and a log without one segment of its chain is not
whole. Read next: ``chain.py``, ``heads.py``.
"""

from __future__ import annotations

import os
from hashlib import sha256

from stockade.audit.chain import Link, Record
from stockade.audit.forms import Reader
from stockade.audit.query import event_of
from stockade.audit.segments import TORN, is_torn, numbers, read_segment
from stockade.errors import Error
from stockade.frozen import NamedTuple, dataclass
from stockade.light import MappingProxyType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.light import Callable, Iterator, Mapping, Sequence

PRUNED = b'"audit.pruned"'
_NO_MARKS: Mapping[int, str] = MappingProxyType({})
_EVERY = 1 << 12  # lines between two words about progress
_TRIES = 5
_REWRITTEN = "rewritten"


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


class _Line(NamedTuple):
    segment: int
    number: int
    text: bytes
    ended: bool


class _Gone(Exception):
    """A segment went while the log was read: somebody prunes it."""


def verify(directory: int, marks: Mapping[int, str] = _NO_MARKS,
           progress: Callable[[float], None] = lambda part: None) -> Verdict:
    """Follow the chain through the segments of an open directory.

    Args: marks: hashes that records of those numbers had, from signed heads: only they tell that a whole chain was
    written anew, or that its end is gone; progress: gets the part that is read.
    Raises: Error(audit_unavailable).
    """
    verdict = None
    for _ in range(_TRIES):
        try:
            walk = _Walk(directory, marks, progress)
            verdict = walk.verdict()
        except _Gone:
            continue
        if not walk.may_be_half_written(verdict):
            return verdict
    if verdict is not None:
        return verdict
    raise Error("audit_unavailable", f"audit log: got segments that went while they were read, {_TRIES} times, "
                "expected them to stay", hint="try again, or check a copy")


class _Walk:
    """One way through the log, and where it stands: ``_line`` was looked at last, ``_before`` is the last record."""

    def __init__(self, directory: int, marks: Mapping[int, str], progress: Callable[[float], None]) -> None:
        self._directory, self._marks, self._progress = directory, marks, progress
        self._opened = Reader().opened
        self._found = numbers(directory)
        self._start = self._first()
        self._last: Link | Record = self._start
        self._line = self._before = _Line(1, 1, b"", True)
        self._told, self._torn, self._size = self._start.seq == 0, 0, self._last_size()
        self._skipped: list[_Line] = []

    def verdict(self) -> Verdict:
        """Go all the way, or up to the first damage."""
        for line in self._lines(self._found):
            self._line = line
            damage = self._follow(line)
            if damage is not None:
                return self._said(damage)
        if self._skipped:
            return self._said(self._damage(self._skipped[0]))
        if not self._told:
            return Verdict(records=0, last=Link(), torn=self._torn, damage=Damage(
                kind="missing_segment", seq=1, segment=self._found[0], line=1))
        if max(self._marks, default=0) > self._last.seq:
            return self._said(self._at(self._line, "truncated"))
        return self._said(None)

    def may_be_half_written(self, verdict: Verdict) -> bool:
        """Tell whether what is damaged was the last segment, and somebody writes to it: then it may be whole now."""
        damaged = verdict.damage is not None and [verdict.damage.segment] == self._found[-1:]
        return damaged and self._last_size() != self._size

    def _last_size(self) -> int:
        descriptor = read_segment(self._directory, self._found[-1]) if self._found else None
        if descriptor is None:
            return 0
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _said(self, damage: Damage | None) -> Verdict:
        last, good = Link(seq=self._last.seq, hash=self._last.hash), damage.seq - 1 if damage else self._last.seq
        return Verdict(records=good - self._start.seq, last=last, damage=damage, torn=self._torn,
                       pruned=self._start.seq if self._told else 0)

    def _follow(self, line: _Line) -> Damage | None:
        record = self._opened(line.text)
        if record is None or not record.whole:
            if not is_torn(line.text, ended=line.ended):
                return self._damage(line)
            self._skipped.append(line)  # left by a writer that was killed, if the next record says so
            return None
        if self._skipped:
            if not _names(line.text, self._skipped):
                return self._damage(self._skipped[0])
            self._torn, self._skipped = self._torn + 1, []
        if record.seq != self._last.seq + 1 or record.prev != self._last.hash:
            return self._damage(line)
        if self._marks.get(record.seq, record.hash) != record.hash:
            return self._at(line, "edited")
        self._last, self._before = record, line
        self._told = self._told or _says_pruned(line.text, self._start)
        return None

    def _first(self) -> Link:
        """What the first record follows that is there: the beginning, unless older segments are gone."""
        if not self._found or self._found[0] == 1:
            return Link()
        first = next((self._opened(line.text) for line in self._lines(self._found[:1])), None)
        return Link(seq=first.seq - 1, hash=first.prev) if first is not None and first.whole else Link()

    def _lines(self, found: Sequence[int]) -> Iterator[_Line]:
        for done, number in enumerate(found):
            descriptor = read_segment(self._directory, number)
            if descriptor is None:
                raise _Gone
            with os.fdopen(descriptor, "rb") as stream:
                size = os.fstat(descriptor).st_size or 1
                for at, text in enumerate(stream, 1):
                    if at % _EVERY == 0:
                        self._progress((done + min(stream.tell() / size, 1)) / len(found))
                    yield _Line(number, at, text.removesuffix(b"\n"), text.endswith(b"\n"))

    def _at(self, line: _Line, kind: str) -> Damage:
        return Damage(kind=kind, seq=self._last.seq + 1, segment=line.segment, line=line.number)

    def _damage(self, line: _Line) -> Damage:
        kind = self._kind(line)
        if kind != _REWRITTEN:
            return self._at(line, kind)
        # The one before has a hash that fits, and not the one that this line says.
        return Damage(kind="edited", seq=self._last.seq, segment=self._before.segment, line=self._before.number)

    def _kind(self, line: _Line) -> str:
        """What happened at the first line that does not follow the last one."""
        record, last = self._opened(line.text), self._last
        follows = any(one.seq == last.seq + 1 and one.prev == last.hash for one in self._later(line))
        if record is None or not record.whole:
            torn = is_torn(line.text, ended=line.ended) and next(self._later(line), None) is None
            return "inserted" if follows else "torn_tail" if torn else "edited"
        if record.seq > last.seq + 1:
            if follows:
                return "reordered"
            return "missing_segment" if line.number == 1 and _gap(self._found, line.segment) else "dropped"
        if record.seq == last.seq + 1 and not follows:
            return _REWRITTEN
        return "inserted"

    def _later(self, line: _Line) -> Iterator[Record]:
        """The records behind a line."""
        for other in self._lines([number for number in self._found if number >= line.segment]):
            if other.segment > line.segment or other.number > line.number:
                record = self._opened(other.text)
                if record is not None and record.whole:
                    yield record


def _says_pruned(line: bytes, start: Link) -> bool:
    """Tell whether a record says that all up to ``start`` was removed for its age."""
    detail = _detail(line, "audit.pruned") if PRUNED in line else {}
    ends = detail.get("ends")
    # Of each segment that goes: whoever removed them may have been killed between two.
    return type(ends) is list and any(type(end) is dict and (end.get("last_seq"), end.get("last_hash")) ==
                                      (start.seq, start.hash) for end in ends)


def _names(line: bytes, skipped: Sequence[_Line]) -> bool:
    """Tell whether a record says of the lines before it that they were left unfinished."""
    left = b"\n".join(one.text for one in skipped).removesuffix(TORN)  # which the record behind it wrote
    detail = _detail(line, "audit.torn")
    return (detail.get("bytes"), detail.get("sha256")) == (len(left), sha256(left).hexdigest())


def _detail(line: bytes, kind: str) -> dict[str, object]:
    """Return the detail of an event of a type; empty where it is another one."""
    event = event_of(line) or {}
    detail = event.get("detail")
    return detail if event.get("type") == kind and type(detail) is dict else {}


def _gap(found: Sequence[int], segment: int) -> bool:
    return segment - 1 not in found and segment > 1
