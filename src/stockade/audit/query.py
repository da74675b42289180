"""Reading the log: events by time, tier, outcome, app, plan, downgrade and text.

Owns: the filter, and how a line is passed over without being parsed: a record has one spelling, so a line that
matches has the bytes of what was asked for in it. Fails closed: what has these bytes is parsed and asked again;
a line that is no record is left out here and is ``verify``'s to name. Read next: ``verify.py``, ``cli/audit.py``.
"""

from __future__ import annotations

import os

from stockade.audit.segments import lines_backwards, numbers, read_segment
from stockade.canonicaljson import encode
from stockade.frozen import dataclass
from stockade.jsontext import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.light import Callable, Iterator


_EVERY = 1 << 12  # lines between two words about progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What is asked for; None asks for nothing.

    ``since``, ``until``: RFC 3339 in UTC, nanoseconds, as in the log; ``plan``: the beginning of a digest;
    ``text``: anywhere in the record, in its own spelling.
    """

    since: str | None = None
    until: str | None = None
    tier: str | None = None
    outcome: str | None = None
    kind: str | None = None
    app: str | None = None
    plan: str | None = None
    run: str | None = None
    downgrade: bool = False
    text: str | None = None

    def needles(self) -> tuple[bytes, ...]:
        """Bytes that are in each line that fits."""
        named = (("outcome", self.outcome), ("type", self.kind), ("app", self.app), ("run_id", self.run),
                 ("effective_tier", self.tier))
        found = [b"%s:%s" % (encode(name), encode(value)) for name, value in named if value is not None]
        if self.plan is not None:
            found.append(b'"plan":' + encode(self.plan)[:-1])
        if self.text is not None:
            found.append(encode(self.text)[1:-1])
        return (*found, b'"tier_downgrade":true') if self.downgrade else tuple(found)

    def fits(self, event: dict[str, Any]) -> bool:
        """Tell whether an event is one of those, ``text`` apart, of which the line decides."""
        tiers, actor = table(event, "tiers"), table(event, "actor")
        said = ((self.outcome, event.get("outcome")), (self.kind, event.get("type")), (self.app, actor.get("app")),
                (self.run, event.get("run_id")), (self.tier, tiers.get("effective_tier")))
        when = str(event.get("ts", ""))
        return all(wanted is None or wanted == got for wanted, got in said) \
            and (self.plan is None or str(event.get("plan")).startswith(self.plan)) \
            and (not self.downgrade or tiers.get("tier_downgrade") is True) \
            and (self.since is None or when >= self.since) and (self.until is None or when < self.until)


def table(event: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table of an event; empty where it has none, or something else."""
    found = event.get(name)
    return found if type(found) is dict else {}


def events(directory: int, wanted: Filter,
           progress: Callable[[float], None] = lambda part: None) -> Iterator[dict[str, Any]]:
    """Yield the events of an open log directory that fit, in the order of the chain.

    Args: progress: gets the part that is read. Raises: Error(audit_unavailable).
    """
    needles, found = wanted.needles(), numbers(directory)
    for done, number in enumerate(found):
        descriptor = read_segment(directory, number)
        if descriptor is None:
            continue  # it was pruned since, as any reader may that comes a moment later
        with os.fdopen(descriptor, "rb", buffering=1 << 20) as stream:
            size = os.fstat(descriptor).st_size or 1
            for at, line in enumerate(stream):
                if at % _EVERY == 0:
                    progress((done + min(stream.tell() / size, 1)) / len(found))
                # A list: with the usual one or two needles a generator costs more than it spares.
                if all([needle in line for needle in needles]):  # noqa: C419
                    event = event_of(line)
                    if event is not None and wanted.fits(event):
                        yield event


def backwards(directory: int) -> Iterator[dict[str, Any]]:
    """Yield every event of an open log directory, the last one first. Raises: Error(audit_unavailable)."""
    return (event for event in map(event_of, lines_back(directory)) if event is not None)


def lines_back(directory: int) -> Iterator[bytes]:
    """Yield every line of an open log directory, the last one first. Raises: Error(audit_unavailable)."""
    for number in reversed(numbers(directory)):
        descriptor = read_segment(directory, number)
        if descriptor is None:
            continue
        try:
            for line, _ in lines_backwards(descriptor, os.fstat(descriptor).st_size):
                yield line
        finally:
            os.close(descriptor)


def event_of(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None where it is none."""
    try:
        event = loads(line)
    except (ValueError, RecursionError):
        return None
    return event if type(event) is dict and type(event.get("seq")) is int else None
