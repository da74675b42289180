"""``stockade learn``: run a command in its box, watch what it lacks, propose the smallest profile.

Owns: the order (the place to save is checked before the command runs), the report and the file.
Fails closed: an existing profile that cannot be read or joined is an error and stays as it is;
nothing on a credential, persistence or control list is written as a grant, unless the command line granted it by name.
Read next: ``lesson.py``, ``stockade.process.watched``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import Any

from stockade.cli import request as wanted
from stockade.cli import run
from stockade.cli.grammar import Parsed
from stockade.cli.lesson import Lesson, conclude, without
from stockade.cli.output import clean, emit
from stockade.errors import ConfigError
from stockade.frozen import dataclass
from stockade.light import Iterator
from stockade.paths import atomic_write, config_home
from stockade.plan.proposals import Apart
from stockade.process.refusals import prepare_to_start
from stockade.process.watched import Watched, watch
from stockade.rules.files import Document, read_toml
from stockade.rules.load import profile_names
from stockade.rules.profile import USER, parse_profile
from stockade.rules.profiletext import Learned, join, news, render
from stockade.rules.request import build_request

SCHEMA = "stockade.learn.v1"
_SHOWN = 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_WORDS = {"read": "--read", "write": "--write", "sockets": "--allow-socket", "net": "--net"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where ``--save`` writes. ``document``: the profile that is there already."""

    name: str
    path: str
    document: Document | None = None


def learn(parsed: Parsed) -> int:
    """Run, watch, propose; end as the command ended."""
    run.check_quoted(parsed.words)
    place = _place(parsed.text("save"))
    options = wanted.options(parsed)
    prepared = prepare_to_start(build_request(list(parsed.words), **options))
    if prepared.compiled is None or prepared.decision.kind != "wrap":
        raise ConfigError("value_invalid", f"learn: got {prepared.decision.kind}, which cannot be watched, "
                          "expected standard or above outside every box",
                          hint="leave --tier out, or ask for strict")
    json = parsed.flag("json")
    run.before(prepared, parsed, watched=os.isatty(2) and not json)
    # One document on standard output: what the command prints goes to standard error then.
    watched = watch(prepared, **({"stdout": sys.stderr.fileno()} if json else {}))
    if watched.ended.error is not None:
        return run.not_started(watched.ended.error, None, told=watched.ended.told)
    lesson = conclude(prepared, options, watched.uses)
    saved, unsaved = None, None
    if place is not None:
        try:
            saved = _save(place, lesson.learned)
        except ConfigError as error:
            place, unsaved = None, error  # what the run taught is told all the same
    if json:
        emit(SCHEMA, _document(parsed, watched, lesson, saved, str(prepared.resolved.tier)))
    else:
        for line in _report(watched, lesson, place, saved):
            _write(line)
    if unsaved is not None:
        raise unsaved
    return run.finish(None, watched.ended)


# -- saving ----------------------------------------------------------------------------------------


def _place(name: str | None) -> Place | None:
    """Return where to save; found out before the command runs.

    Raises: ConfigError ``value_invalid``, ``profile_invalid``.
    """
    if name is None:
        return None
    if not _NAME.fullmatch(name) or name.endswith(".toml"):
        raise ConfigError("value_invalid", f"--save {name!r}: got a path or an odd word, expected a name",
                          hint="a name such as mytool; the file is made in your profiles directory")
    path = os.path.realpath(os.path.join(str(config_home(os.environ)), "profiles", f"{name}.toml"))
    document = read_toml(path, "profile_invalid")
    if document is not None:
        parse_profile(document, name, USER)
    elif name in profile_names():
        raise ConfigError("value_invalid", f"--save {name!r}: got the name of a built-in profile, expected a new one",
                          hint=f"save under another name; with --profile {name} it extends that one")
    return Place(name=name, path=path, document=document)


def _save(place: Place, learned: Learned) -> Learned | None:
    """Write or join the profile; return what is new in it, None when nothing is.

    Raises: ConfigError ``profile_invalid``, ``profile_unsaved``.
    """
    now = read_toml(place.path, "profile_invalid")
    if (now and now.text) != (place.document and place.document.text):
        raise ConfigError("profile_unsaved", f"profile {place.path!r}: got another content than before the run, "
                          "expected nobody else to change it meanwhile", hint="learn again: the run saw the former one")
    learned = without(learned, place.name)
    new = learned if place.document is None else news(place.document, learned)
    if new.empty:
        return None
    text = render(new) if place.document is None else join(place.document, new)
    try:
        os.makedirs(os.path.dirname(place.path), mode=0o700, exist_ok=True)
        atomic_write(place.path, text.encode("utf-8"))
    except OSError as error:
        raise ConfigError("profile_unsaved",
                          f"profile {place.path!r}: got {error.strerror}, expected to write it") from None
    return new


# -- the report ------------------------------------------------------------------------------------


def _write(line: str) -> None:
    """One line of the report: on standard error, since standard output is the command's."""
    try:
        sys.stderr.write(clean(line) + "\n")
        sys.stderr.flush()
    except OSError:
        return


def _answer(lesson: Lesson, place: Place | None, saved: Learned | None) -> str:
    count = len(lesson.proposals)
    text = "nothing was missing that a grant would give" if not count else \
        f"{count} grant{'s' if count > 1 else ''} would have been needed"
    if place is None:
        return text if not count else f"{text}; --save NAME keeps {'them' if count > 1 else 'it'} as a profile"
    if saved is None:
        return f"{text}; profile {place.name} says it already" if place.document else f"{text}; no profile saved"
    return f"{text}; {'added to profile' if place.document else 'profile saved as'} {place.name}"


def _report(watched: Watched, lesson: Lesson, place: Place | None, saved: Learned | None) -> Iterator[str]:
    yield f"stockade: learn: {_answer(lesson, place, saved)}"
    if not watched.whole or watched.cut:
        more = f"{watched.cut} uses were not written" if watched.whole else "the tracer was ended"
        yield f"stockade: learn: seen only in part: {more}"
    shown = saved if saved is not None and place is not None and place.document is not None else lesson.learned
    if shown is not lesson.learned and place is not None:
        yield f"# new in {place.path}"
    if not shown.empty:
        yield from render(shown).rstrip("\n").split("\n")
    if lesson.proposals and watched.ended.status:
        again = f"--profile {place.name} --save {place.name}" if place is not None else "the profile"
        yield f"stockade: learn: the command failed, and may want more once it gets further: learn again with {again}"
    for kind, value in lesson.unused:
        yield f"stockade: not used: {_WORDS[kind]} {value}"
    if any(item.kind == "net" for item in lesson.proposals):
        yield "stockade: net host is every host; lists of hosts come with a later version"
    yield from _told(lesson.apart)


def _told(apart: tuple[Apart, ...]) -> Iterator[str]:
    for item in apart[:_SHOWN]:
        sure = "would grant it" if item.tried else "may grant it, which was not tried"
        option = f"; {shlex.join(item.option)} {sure}" if item.option else ""
        yield f"stockade: not proposed: {item.need.kind} {item.need.path}: {item.why}{option}"
    if len(apart) > _SHOWN:
        yield f"stockade: not proposed: {len(apart) - _SHOWN} more; --json has them all"


def _document(parsed: Parsed, watched: Watched, lesson: Lesson, saved: Learned | None, tier: str) -> dict[str, Any]:
    return {
        "command": os.path.basename(parsed.words[0]), "status": watched.ended.status, "tier": tier,
        "whole": watched.whole, "uses": len(watched.uses), "cut": watched.cut,
        "proposals": [{"kind": item.kind, "value": item.value, "plain": item.plain,
                       "for": [{"path": need.path, "rule": need.rule, "promise": need.promise}
                               for need in item.needs]} for item in lesson.proposals],
        "not_proposed": [{"kind": item.need.kind, "path": item.need.path, "why": item.why,
                          "option": list(item.option) or None, "tried": item.tried} for item in lesson.apart],
        "kept": [{"kind": kind, "value": value} for kind, value in lesson.kept],
        "unused": [{"kind": kind, "value": value} for kind, value in lesson.unused],
        "profile": None if lesson.learned.empty else render(lesson.learned),
        "saved": None if saved is None else {"name": parsed.text("save"), "new": render(saved)},
    }
