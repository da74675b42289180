"""``stockade why``: which rule allows or denies a path or host, and the grant that changes it.

Owns: the search for that grant. Fails closed: a grant is named only after the request was compiled
again with it and the answer changed; what it would give away is part of it.
Read next: ``stockade.plan.verdict``, ``stockade.process.files``.
"""

from __future__ import annotations

import os
import re
from typing import Any

from stockade.cli import request as wanted
from stockade.cli.grammar import Parsed
from stockade.cli.output import clean, emit, paint, say
from stockade.errors import ConfigError, Error, Refused
from stockade.frozen import replace
from stockade.host.active import active
from stockade.host.probe import facts_at
from stockade.plan.verdict import Judge, Verdict, accepted_with
from stockade.process.files import obstacle
from stockade.process.prepare import prepare
from stockade.rules.request import Request, absolute, build_request
from stockade.rules.resolve import resolve
from stockade.rules.resolved import Resolved

SCHEMA = "stockade.why.v1"
# A command that every host has; why asks about places, not about it.
_COMMAND = "sh"
_HOST = re.compile(r"(?=.{1,253}(:\d+)?$)([A-Za-z0-9-]{1,63}\.)+[A-Za-z][A-Za-z0-9-]*(:\d{1,5})?"
                   r"|localhost(:\d{1,5})?|\d{1,3}(\.\d{1,3}){3}(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/@]*@)?([^/?#]*).*", re.DOTALL)
_OPTIONS = {"read": "--read", "write": "--write", "allow_socket": "--allow-socket", "allow": "--allow",
            "device": "--device", "net": "--net", "accept": "--accept"}
_KEYWORDS = {"allow_socket": "sockets", "device": "devices"}


def why(parsed: Parsed) -> int:
    """Answer for one path or host."""
    subject = parsed.words[0]
    write = parsed.flag("write")
    options = wanted.options(parsed, without=("write",))
    request = build_request([_COMMAND], **options)
    url = _URL.fullmatch(subject)
    if not write and (url or is_host(subject, request.cwd)):
        subject = url[1] if url else subject
        kind, verdict, grant = "host", *_host(subject, request, options)
    else:
        kind, subject = "path", absolute("path", subject, request.cwd, os.environ.get("HOME", ""))
        verdict, grant = _path(subject, request, options, write=write)
    document = _document(kind, subject, verdict, grant, resolve(request), write=write)
    variable = parsed.words[0] if not document["exists"] and parsed.words[0] in os.environ else ""
    if parsed.flag("json"):
        emit(SCHEMA, document)
    else:
        _print(document, guessed=url is None, variable=variable)
    return 0 if verdict.allowed else 1


def is_host(text: str, cwd: str) -> bool:
    """Tell whether a word means a host: it has the form of one, and nothing of that name is here."""
    return _HOST.fullmatch(text) is not None and not os.path.lexists(os.path.join(cwd, text))


def _judge(request: Request, path: str, *, write: bool) -> Verdict:
    prepared = prepare(request)
    if prepared.compiled is None:
        rule = "tier off: no box" if prepared.decision.row == "D1" else f"{prepared.decision.kind}: no box of its own"
        return Verdict(allowed=True, rule=rule, origin=prepared.resolved.values["tier"].origin)
    host = facts_at(active(), prepared.resolved.state_home)
    verdict = Judge(prepared.resolved, host, prepared.compiled).judge(path, write=write)
    # The rows allow it; what the kernel would say besides is what Sandbox.check says.
    denied = obstacle(prepared, path, "write" if write else "read") if verdict.allowed else None
    return verdict if denied is None else Verdict(allowed=False, rule=denied)


def _path(path: str, request: Request, options: dict[str, Any], *,
          write: bool) -> tuple[Verdict, dict[str, list[str]] | None]:
    verdict = _judge(request, path, write=write)
    for name, value in () if verdict.allowed else verdict.grants:
        # A question about reading is not answered with the right to change, nor one about changing with less.
        if name == ("read" if write else "write"):
            continue
        found = _tried({name: [value]}, path, options, write=write)
        if found is not None:
            return verdict, found
    return verdict, None


def _tried(grant: dict[str, list[str]], path: str, options: dict[str, Any], *,
           write: bool) -> dict[str, list[str]] | None:
    """Return the grant, with what has to be accepted for it, if the box would then allow it."""
    try:
        if _judge(_with(options, grant), path, write=write).allowed:
            return grant
    except Refused as error:
        more = accepted_with(error)
        return _tried({**grant, **more}, path, options, write=write) if more and "accept" not in grant else None
    except ConfigError:
        return None
    return None


def _with(options: dict[str, Any], grant: dict[str, list[str]]) -> Request:
    merged = dict(options)
    for name, words in grant.items():
        key = _KEYWORDS.get(name, name)
        merged[key] = [*merged.get(key, ()), *words]
    return build_request([_COMMAND], **merged)


def _host(host: str, request: Request, options: dict[str, Any]) -> tuple[Verdict, dict[str, list[str]] | None]:
    resolved = resolve(request)
    source = resolved.values["net"]
    if resolved.net == "host" or not resolved.tier:
        return Verdict(allowed=True, rule="net host: every host that this machine reaches", promise="net.policy",
                       origin=source.origin), None
    verdict = Verdict(allowed=False, rule=f"net {resolved.net}: {host} cannot be reached", promise="net.policy",
                      origin=source.origin)
    try:
        opened = resolve(replace(request, net="host")).net == "host"
    except Error:
        opened = False
    return verdict, {"net": ["host"]} if opened else None


def _document(kind: str, subject: str, verdict: Verdict, grant: dict[str, list[str]] | None, box: Resolved, *,
              write: bool) -> dict[str, Any]:
    words = [word for name, values in (grant or {}).items() for value in values for word in (_OPTIONS[name], value)]
    entry = verdict.entry
    return {
        "subject": subject, "kind": kind, "access": "connect" if kind == "host" else "write" if write else "read",
        "allowed": verdict.allowed, "exists": kind == "host" or os.path.lexists(subject),
        "promise": verdict.promise, "rule": verdict.rule, "origin": verdict.origin or None,
        "entry": entry and {"list": entry.list, "id": entry.id, "why": entry.why, "source": entry.source},
        "grant": words or None, "tier": str(box.tier), "caller": box.caller, "profiles": list(box.profiles),
    }


def _print(found: dict[str, Any], *, guessed: bool, variable: str) -> None:
    import shlex

    allowed = "allowed" if found["exists"] else "would be allowed"
    answer = paint(allowed, "green") if found["allowed"] else paint("denied", "red")
    promise = f" ({found['promise']})" if found["promise"] else ""
    gone = "" if found["exists"] else "; there is no such file"
    say(f"{answer}: {found['access']} {clean(found['subject'])}: {clean(found['rule'])}{promise}{gone}")
    profile = f", profile {' '.join(found['profiles'])}" if found["profiles"] else ""
    say(f"  box     {found['tier']}, caller {found['caller']}{profile}")
    if guessed and found["kind"] == "host" and not found["allowed"]:
        say(f"  host    taken as one; for a file write {clean(os.path.join('.', found['subject']))}")
    if found["entry"]:
        entry = found["entry"]
        say(f"  entry   {entry['list']}: {clean(entry['id'])}: {clean(entry['why'])}")
    if found["origin"]:
        say(f"  origin  {clean(found['origin'])}")
    if variable:
        say(f"  env     {clean(variable)} is a variable: stockade explain -- CMD says whether a box gets it")
    if not found["allowed"]:
        say(f"  grant   {clean(shlex.join(found['grant']) if found['grant'] else _no_grant(found))}")


def _no_grant(found: dict[str, Any]) -> str:
    """A grant is named only after it was tried, which takes a name that exists."""
    if found["kind"] == "path" and not os.path.lexists(found["subject"]):
        return "none for a name that does not exist: make it, or grant the directory that it will be in"
    return "none"
