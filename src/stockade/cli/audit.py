"""``stockade audit``: the log, for people.

Owns: what is printed of an event. Each command first takes into the log what launchers have spooled since, also of
runs in which no Python ever ran. Fails closed: a log that cannot be read is an error, never an empty one.
Read next: ``auditcheck.py``, ``audit/query.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from itertools import islice, takewhile
from typing import Any

from stockade.audit import keys, retention
from stockade.audit.ingest import ingest
from stockade.audit.log import DIRECTORY, Log
from stockade.audit.query import Filter, backwards, events
from stockade.audit.query import table as cells
from stockade.audit.redact import clipped
from stockade.audit.segments import told
from stockade.cli.grammar import Parsed, usage
from stockade.cli.output import Progress, clean, emit, paint, say, table, tell
from stockade.cli.request import retention_s, state_home
from stockade.cli.times import moment
from stockade.errors import ConfigError, Error
from stockade.frozen import dataclass
from stockade.light import Iterator

FOLLOW_S = 0.5
_COLUMNS = ("seq", "ts", "type", "outcome", "run_id", "tier", "plan", "backend", "reasons", "argv0", "cwd", "origin")
_COLOURS = {"refused": "red", "denied": "red", "failed": "red", "downgraded": "yellow", "unconfined": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A log directory, and the public key of its heads: None where it has none."""

    path: str
    public: bytes | None


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a log directory. Raises: ConfigError(audit_unavailable)."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise ConfigError("audit_unavailable", f"log {path!r}: {told(err)}",
                          hint="give the directory log of an audit directory") from err
    try:
        yield directory
    finally:
        os.close(directory)


def own() -> Place:
    """The log of this account, with all that was spooled, without what is older than records are kept.

    A log that was changed at its end takes no more, and what is there is still to be read and checked.
    """
    home, path = state_home(), f"{state_home().audit}/{DIRECTORY}"
    try:
        with contextlib.closing(Log(home.audit, signer=keys.signer(home.keys))) as log:
            taken = ingest(home.audit, log, keep_s=retention_s() or retention.DEFAULT_S)
        if log.degraded:
            tell(f"audit log: the last head could not be written: {log.degraded}")
        if taken.busy:
            tell("another process takes the spool into the log and is not done: the newest records are missing here")
    except Error as err:
        if err.code != "audit_damaged":
            raise
        tell(f"{err.code}: {err.message}")
    return Place(path=path, public=keys.public_key(f"{home.keys}/{keys.PUBLIC}"))


def query(parsed: Parsed) -> int:
    """Print the events that fit, oldest first."""
    found = _found(parsed)
    printed = 0
    for event in found:
        printed += 1
        _print(event, as_json=parsed.flag("json"))
    if not printed and not parsed.flag("json"):
        say("no event fits")
    return 0 if printed else 1


def _found(parsed: Parsed) -> Iterator[dict[str, Any]]:
    place, wanted = own(), _filter(parsed)
    with opened(place.path) as directory, Progress("reading", 1) as bar:
        yield from events(directory, wanted, bar.step)


def _filter(parsed: Parsed) -> Filter:
    since, until = ((text := parsed.text(name)) and moment(name, text) for name in ("since", "until"))
    found = Filter(since=since, until=until, tier=parsed.text("tier"), outcome=parsed.text("outcome"),
                   kind=parsed.text("type"), app=parsed.text("app"), plan=parsed.text("plan"), run=parsed.text("run"),
                   downgrade=parsed.flag("downgrade"), text=" ".join(parsed.words) or None)
    try:
        found.needles()
    except ValueError:
        raise usage("what is looked for: got bytes that are no UTF-8, expected text as a record has it") from None
    return found


def _print(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        # All but ASCII is escaped: what a box says is in it, and may be read on a terminal.
        return say(json.dumps(event, sort_keys=True).replace("\x7f", "\\u007f"))
    row = {name: clean("" if value is None else value) for name, value in _flat(event).items()}
    outcome = f"{row['outcome'] or '-':<11}"
    if row["outcome"] in _COLOURS:
        outcome = paint(outcome, _COLOURS[row["outcome"]])
    rest = " ".join(row[name] for name in ("tier", "argv0", "reasons") if row[name])
    say(f"{row['seq']:>6}  {row['ts'][:19]}  {row['type']:<15} {outcome} {row['run_id'][-8:]:<8}  {rest}".rstrip())


def _flat(event: dict[str, Any]) -> dict[str, Any]:
    tiers, request, reasons = cells(event, "tiers"), cells(event, "request"), event.get("reasons")
    more = {"tier": tiers.get("effective_tier"), "argv0": request.get("argv0"), "cwd": request.get("cwd"),
            "reasons": " ".join(map(str, reasons)) if type(reasons) is list else ""}
    return {name: more[name] if name in more else event.get(name) for name in _COLUMNS}


def tail(parsed: Parsed) -> int:
    """Print the last events, and with --follow those that come."""
    text = parsed.text("lines") or "10"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise usage(f"option --lines: got {clipped(text, 20)!r}, expected a whole number of nine digits at most")
    seen = 0
    with opened(own().path) as directory:
        last = list(islice(backwards(directory), int(text)))
    while True:
        for event in reversed(last):
            seen = event["seq"]
            _print(event, as_json=parsed.flag("json"))
        if not parsed.flag("follow"):
            return 0
        sys.stdout.flush()
        time.sleep(FOLLOW_S)
        with opened(own().path) as directory:
            last = _newer(directory, seen)


def _newer(directory: int, seen: int) -> list[dict[str, Any]]:
    return list(takewhile(lambda event: event["seq"] > seen, backwards(directory)))


def stats(parsed: Parsed) -> int:
    """Count events by type, outcome and tier."""
    counts = {name: Counter[str]() for name in ("type", "outcome", "tier")}
    total = 0
    for event in _found(parsed):
        total += 1
        for name, counter in counts.items():
            counter[str(_flat(event)[name] or "-")] += 1
    if parsed.flag("json"):
        emit("stockade.audit-stats.v1", {"events": total, **{name: dict(counter) for name, counter in counts.items()}})
        return 0
    say(f"{total} events")
    for name, counter in counts.items():
        table([(value, number) for value, number in counter.most_common()], head=(name.upper(), "EVENTS"), indent="  ")
    return 0


def export(parsed: Parsed) -> int:
    """Print the events that fit, for other programs."""
    form = parsed.text("format") or "json"
    if form not in ("json", "csv"):
        raise usage(f"option --format: got {form!r}, expected json or csv")
    if form == "json":
        for event in _found(parsed):
            _print(event, as_json=True)
        return 0
    import csv

    writer = csv.DictWriter(sys.stdout, _COLUMNS)
    writer.writeheader()
    for event in _found(parsed):
        writer.writerow({name: "" if cell is None else clean(cell) for name, cell in _flat(event).items()})
    return 0
