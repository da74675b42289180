"""``stockade audit``: the log, for people and for those who check it.

Owns: what is printed of an event, and the exit status of ``verify``: 0 whole, 1 damaged, 2 cannot tell. Each command
first takes into the log what launchers have spooled since, also of runs in which no Python ever ran. Fails closed:
``verify`` never calls a log whole whose heads it could not check against the key it was given.
Read next: ``audit/verify.py``, ``audit/query.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stockade.audit import heads
from stockade.audit.ingest import ingest
from stockade.audit.log import DIRECTORY, Log
from stockade.audit.query import Filter, events
from stockade.audit.verify import Verdict, verify
from stockade.cli.grammar import Parsed, usage
from stockade.cli.output import Progress, clean, emit, paint, say, table
from stockade.cli.request import state_home
from stockade.errors import ConfigError
from stockade.frozen import dataclass
from stockade.light import Iterator
from stockade.rules.units import milliseconds

FOLLOW_S = 0.5
_COLUMNS = ("seq", "ts", "type", "outcome", "run_id", "tier", "plan", "backend", "reasons", "argv0", "cwd", "origin")
_COLOURS = {"refused": "red", "denied": "red", "failed": "red", "downgraded": "yellow", "unconfined": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A log directory, and whose key its heads have."""

    path: str
    public: bytes | None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise ConfigError("audit_unavailable", f"log {path!r}: {os.strerror(err.errno or 0)}",
                          hint="stockade run makes one") from err
    try:
        yield directory
    finally:
        os.close(directory)


def _own() -> _Place:
    """The log of this account, with all that was spooled."""
    home = state_home()
    log = Log(home.audit, signer=heads.signer(home.keys))
    try:
        ingest(home.audit, log)
    finally:
        log.close()
    return _Place(path=f"{home.audit}/{DIRECTORY}", public=_public(f"{home.keys}/{heads.PUBLIC}"))


def _public(path: str) -> bytes | None:
    try:
        raw = bytes.fromhex(Path(path).read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as err:
        raise ConfigError("audit_key_invalid", f"public key {path!r}: {err}") from err
    if len(raw) != 32:
        raise ConfigError("audit_key_invalid", f"public key {path!r}: got {len(raw)} bytes, expected 32")
    return raw


def check(parsed: Parsed) -> int:
    """Follow the chain, and compare it with every signed head."""
    elsewhere, key = parsed.words[0] if parsed.words else None, parsed.text("key")
    place = _Place(path=elsewhere, public=None) if elsewhere else _own()
    public = _public_given(key) if key else place.public
    with _opened(place.path) as directory:
        found = heads.read(directory)
        signed = [head for head in found if public is not None and head.sig is not None]
        good = [head for head in signed if public is not None and heads.is_signed_by(head, public)]
        forged = [head for head in signed if head not in good]
        verdict = verify(directory, {head.seq: head.hash for head in good or ([] if public else found)})
    if parsed.flag("json"):
        damage = verdict.damage
        emit("stockade.audit-verify.v1", {
            "whole": damage is None and not forged, "records": verdict.records,
            "last": {"seq": verdict.last.seq, "hash": verdict.last.hash},
            "damage": damage and {"kind": damage.kind, "seq": damage.seq, "segment": damage.segment,
                                  "line": damage.line},
            "torn": verdict.torn, "heads": {"signed": len(good), "forged": len(forged), "all": len(found)},
        })  # fmt: skip
    else:
        _tell(verdict, good, forged, len(found))
    return 1 if verdict.damage or forged else 0


def _public_given(path: str) -> bytes:
    public = _public(path)
    if public is None:
        raise ConfigError("audit_key_invalid", f"public key {path!r}: no such file")
    return public


def _tell(verdict: Verdict, good: list[heads.Head], forged: list[heads.Head], count: int) -> None:
    damage = verdict.damage
    if damage:
        where = f"record {damage.seq}, segment {damage.segment}, line {damage.line}"
        say(paint(f"damaged: {damage.kind} at {where}; {verdict.records} records before it are whole", "red"))
    elif forged:
        say(paint(f"damaged: the signature of the head at record {forged[0].seq} is not of this key", "red"))
    else:
        say(paint(f"whole: {verdict.records} records", "green"))
    signed = f"{len(good)} of {count} heads signed by this key"
    say(f"  {signed if good else 'no head is signed by this key: nobody else can check this log'}")
    if verdict.torn:
        say(f"  {verdict.torn} unfinished lines of writers that were killed, each named in the log")


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
    place, wanted = _own(), _filter(parsed)
    with _opened(place.path) as directory, Progress("reading", 1) as bar:
        yield from events(directory, wanted, bar.step)


def _filter(parsed: Parsed) -> Filter:
    return Filter(since=_when(parsed.text("since")), until=_when(parsed.text("until")), tier=parsed.text("tier"),
                  outcome=parsed.text("outcome"), kind=parsed.text("type"), app=parsed.text("app"),
                  plan=parsed.text("plan"), run=parsed.text("run"), downgrade=parsed.flag("downgrade"),
                  text=" ".join(parsed.words) or None)


def _when(value: str | None) -> str | None:
    """A duration before now, or the beginning of a time in UTC."""
    if value is None or (value[:4].isdigit() and value[4:5] in ("", "-")):
        return value
    past = time.time() - milliseconds("since", value) / 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(past))


def _print(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(event, ensure_ascii=False, sort_keys=True))
        return
    row = _flat(event)
    outcome = f"{row['outcome'] or '-':<11}"
    if row["outcome"] in _COLOURS:
        outcome = paint(outcome, _COLOURS[row["outcome"]])
    run_id = str(row["run_id"] or "")[-8:]
    rest = " ".join(clean(row[name]) for name in ("tier", "argv0", "reasons") if row[name])
    say(f"{row['seq']:>6}  {str(row['ts'])[:19]}  {row['type']:<15} {outcome} {run_id:<8}  {rest}".rstrip())


def _flat(event: dict[str, Any]) -> dict[str, Any]:
    tiers, request = event.get("tiers") or {}, event.get("request") or {}
    more = {"tier": tiers.get("effective_tier"), "argv0": request.get("argv0"), "cwd": request.get("cwd"),
            "reasons": " ".join(event.get("reasons") or [])}
    return {name: more[name] if name in more else event.get(name) for name in _COLUMNS}


def tail(parsed: Parsed) -> int:
    """Print the last events, and with --follow those that come."""
    count = int(parsed.text("lines") or 10)
    last: list[dict[str, Any]] = []
    with _opened(_own().path) as directory:
        for event in events(directory, Filter()):
            last = [*last[-count + 1:], event] if count > 1 else [event]
    seen = last[-1]["seq"] if last else 0
    for event in last[-count:] if count else []:
        _print(event, as_json=parsed.flag("json"))
    while parsed.flag("follow"):
        sys.stdout.flush()
        time.sleep(FOLLOW_S)
        with _opened(_own().path) as directory:
            for event in events(directory, Filter()):
                if event["seq"] > seen:
                    seen = event["seq"]
                    _print(event, as_json=parsed.flag("json"))
    return 0


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
        writer.writerow(_flat(event))
    return 0


def anchor(parsed: Parsed) -> int:
    """Print the newest head, or append it to a file that somebody else keeps."""
    with _opened(_own().path) as directory:
        found = heads.read(directory)
    if not found:
        raise ConfigError("audit_unavailable", "log: got no head, expected one", hint="stockade run makes records")
    line = found[-1].line().decode("ascii")
    if path := parsed.text("to"):
        try:
            with open(path, "a", encoding="ascii") as stream:
                stream.write(line)
        except OSError as err:
            raise ConfigError("audit_unavailable", f"file {path!r}: {os.strerror(err.errno or 0)}") from err
        return 0
    sys.stdout.write(line)
    return 0
