"""``stockade audit verify`` and ``anchor``: the log, for those who check it.

Owns: the exit status of ``verify``: 0 whole, 1 damaged, 2 cannot tell. Fails closed: with a key that somebody gave
it, a log is whole only where a head is signed by that key. Read next: ``audit/verify.py``, ``audit/heads.py``.
"""

from __future__ import annotations

import sys

from stockade.audit import heads
from stockade.audit.heads import Head
from stockade.audit.keys import public_key
from stockade.audit.segments import told
from stockade.audit.verify import Verdict, verify
from stockade.cli.audit import opened, own
from stockade.cli.grammar import Parsed
from stockade.cli.output import Progress, clean, emit, paint, say
from stockade.errors import ConfigError
from stockade.frozen import dataclass

WHOLE, DAMAGED, CANNOT_TELL = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """The heads of a log: by the key that is asked about, with its name and no signature of it, and all others."""

    signed: list[Head]
    forged: list[Head]
    others: list[Head]


def check(parsed: Parsed) -> int:
    """Follow the chain, and compare it with every head."""
    path, public, given = _place(parsed)
    with opened(path) as directory:
        found = _told_apart(heads.read(directory), public)
        # Whoever cannot check a signature is told of damage at least where a head and the chain disagree.
        marks = found.signed if public else found.others
        with Progress("checking", 1) as bar:
            verdict = verify(directory, _marks(marks), bar.step)
    unknown = not verdict.last.seq or (given and not found.signed)
    status = DAMAGED if verdict.damage or found.forged else CANNOT_TELL if unknown else WHOLE
    if parsed.flag("json"):
        _emit(verdict, found, status)
    else:
        _tell(verdict, found, status, path)
    return status


def _place(parsed: Parsed) -> tuple[str, bytes | None, bool]:
    """The log, the public key, and whether somebody gave that."""
    place = None if parsed.words else own()
    path = place.path if place else parsed.words[0]
    file = parsed.text("key")
    if file is None:
        return path, place.public if place else None, False
    hint = "give a copy of the file audit.pub of the keys directory"
    public = public_key(file, hint)
    if public is None:
        raise ConfigError("audit_key_invalid", f"public key {file!r}: got no such file, expected one", hint=hint)
    return path, public, True


def _told_apart(found: list[Head], public: bytes | None) -> _Heads:
    name = heads.name_of(public) if public else None
    told = _Heads(signed=[], forged=[], others=[])
    for head in found:
        if public is None or head.sig is None or head.key != name:
            told.others.append(head)
        else:
            (told.signed if heads.is_signed_by(head, public) else told.forged).append(head)
    return told


def _marks(found: list[Head]) -> dict[int, str]:
    """The hash of each record of which there is a head; one that no record has, where two heads do not agree."""
    marks: dict[int, str] = {}
    for head in found:
        marks[head.seq] = head.hash if marks.get(head.seq, head.hash) == head.hash else ""
    return marks


def _emit(verdict: Verdict, found: _Heads, status: int) -> None:
    damage = verdict.damage
    emit("stockade.audit-verify.v1", {
        "whole": status == WHOLE, "records": verdict.records,
        "last": {"seq": verdict.last.seq, "hash": verdict.last.hash},
        "damage": damage and {"kind": damage.kind, "seq": damage.seq, "segment": damage.segment, "line": damage.line},
        "torn": verdict.torn, "pruned": verdict.pruned,
        "heads": {"signed": len(found.signed), "forged": len(found.forged), "others": len(found.others)},
    })  # fmt: skip


def _tell(verdict: Verdict, found: _Heads, status: int, path: str) -> None:
    damage = verdict.damage
    if damage:
        where = f"record {damage.seq}, segment {damage.segment}, line {damage.line}"
        say(paint(f"damaged: {damage.kind} at {where}; {verdict.records} records before it are whole", "red"))
    elif found.forged:
        say(paint(f"damaged: the signature of the head at record {found.forged[0].seq} is not of this key", "red"))
    elif not verdict.last.seq:
        return say(paint(f"cannot tell: no record of a log is in {clean(path)}", "yellow"))
    elif status == CANNOT_TELL:
        records = f"{verdict.records} records follow each other"
        say(paint(f"cannot tell: {records}, and no head is signed by this key", "yellow"))
    else:
        say(paint(f"whole: {verdict.records} records", "green"))
    if found.signed:
        heads_of = "1 head" if len(found.signed) == 1 else f"{len(found.signed)} heads"
        say(f"  {heads_of} signed by this key, the newest at record {found.signed[-1].seq}")
    elif status != CANNOT_TELL:
        say("  no head is signed by a key that is known here: nobody else can check this log")
    if found.others and found.signed:
        say(f"  {len(found.others)} heads of another key, or unsigned: not compared")
    if verdict.pruned:
        say(f"  records 1 to {verdict.pruned} were removed for their age, as the log says: nothing is known of them")
    if verdict.torn:
        say(f"  {verdict.torn} unfinished lines of writers that were killed, each named in the log")


def anchor(parsed: Parsed) -> int:
    """Print the newest head, or append it to a file that somebody else keeps."""
    with opened(own().path) as directory:
        found = heads.read(directory)
    if not found:
        raise ConfigError("audit_unavailable", "log: got no head, expected one", hint="stockade run makes records")
    line = found[-1].line().decode("ascii")
    path = parsed.text("to")
    if path is None:
        sys.stdout.write(line)
        return 0
    try:
        with open(path, "a", encoding="ascii") as stream:
            stream.write(line)
    except OSError as err:
        raise ConfigError("audit_unavailable", f"file {path!r}: {told(err)}", hint="name a file to append to") from err
    return 0
