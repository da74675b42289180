"""``stockade trust``: a person reads what a project's ``.stockade.toml`` widens, then says yes.

Owns: the showing and the question. Fails closed: no answer is no; the content that was shown is
what is trusted, and its control characters are shown escaped, because the file is written by the
project that asks for the trust. Read next: ``stockade.rules.trust``.
"""

from __future__ import annotations

import difflib
import os
import sys

from stockade.audit.redact import clipped, redacted
from stockade.cli import journal
from stockade.cli.grammar import Parsed
from stockade.cli.output import clean, emit, paint, say
from stockade.cli.request import state_home
from stockade.errors import ConfigError
from stockade.ids import digest
from stockade.light import Iterator
from stockade.paths import StateHome
from stockade.paths import state_home as make_state_home
from stockade.rules import trust as ledger
from stockade.rules.files import Document
from stockade.rules.request import check_cwd
from stockade.rules.settings import PROJECT_FILE, load_project, project_document
from stockade.rules.tiers import Tier

SCHEMA = "stockade.trust-answer.v1"
_NARROWEST = {"tier": str(Tier.strict), "net": "none"}
_COLOURS = {"+": "green", "-": "red"}


def trust(parsed: Parsed) -> int:
    """Show what widens, ask, and store the digest of what was shown."""
    if parsed.flag("yes") and parsed.flag("revoke"):
        raise ConfigError("usage", "options --yes and --revoke: got both, expected one")
    directory = check_cwd(parsed.words[0] if parsed.words else None, os.environ.get("HOME", ""))
    document = project_document(directory)
    if document is None:
        raise ConfigError("config_invalid", f"project at {directory!r}: got no {PROJECT_FILE} at a git top level",
                          hint="enter the repository that holds it")
    state = state_home()
    if parsed.flag("revoke"):
        return _answer(parsed, document, "revoked" if _revoked(state, document.path) else "not_trusted", [])
    load_project(directory, state)  # an invalid file is an error here and not at the next run
    lines = list(widening(document))
    if ledger.is_trusted(state, document):
        return _answer(parsed, document, "trusted_before", lines)
    before = ledger.trusted_text(state, document.path)
    if not parsed.flag("json"):
        _show(document, lines, before)
    if not parsed.flag("yes") and not _asked():
        return _answer(parsed, document, "not_trusted", lines)
    _store(state, document, lines)
    return _answer(parsed, document, "trusted", lines)


def _store(state: StateHome, document: Document, lines: list[str]) -> None:
    make_state_home({**os.environ, "STOCKADE_HOME": str(state.path)}, create=True)
    journal.record(state, "trust.granted", {"path": _text(document.path), "widens": [_text(line) for line in lines],
                                            "sha256": digest(document.text.encode("utf-8"))})
    ledger.trust(state, document)


def _revoked(state: StateHome, path: str) -> bool:
    """Taking back is the safe side: it counts, and is recorded after."""
    gone = ledger.untrust(state, path)
    if gone:
        journal.record(state, "trust.revoked", {"path": _text(path)})
    return gone


def _text(value: str) -> str:
    return clipped(redacted(value))


def widening(document: Document) -> Iterator[str]:
    """Yield one line for each key that counts only when the file is trusted.

    What narrows counts at once: hide, and the ends of the two scales. Between the ends, and for
    limits, it depends on what a value replaces, so it is shown.
    """
    for key in ("profile", "tier", "net", "cache", "tmp", "on_persistence", "read", "write", "devices", "sockets",
                "allow", "env", "accept", "set_env", "limits"):
        if key not in document.data or document.data[key] == _NARROWEST.get(key):
            continue
        value = document.data[key]
        if isinstance(value, dict):
            yield from (f"{key}.{name} = {item!r}" for name, item in sorted(value.items()))
        elif isinstance(value, list):
            yield from (f"{key}: {item!r}" for item in value)
        else:
            yield f"{key} = {value!r}"


def _show(document: Document, lines: list[str], before: str | None) -> None:
    say(f"{clean(document.path)} {_asks(len(lines))}")
    for line in lines:
        say(f"  {paint(clean(line), 'yellow')}")
    say("since it was trusted:" if before is not None else "the whole file:")
    old = (before or "").splitlines()
    for line in list(difflib.unified_diff(old, document.text.splitlines(), lineterm="", n=2))[2:]:
        say("  " + (paint(clean(line), _COLOURS[line[0]]) if line[:1] in _COLOURS else clean(line)))


def _asks(count: int) -> str:
    if not count:
        return "asks for nothing that could widen a box; it counts as it is"
    what = "setting" if count == 1 else "settings"
    return f"asks for {count} {what} that may widen a box; without trust that does not count:"


def _asked() -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        say("not trusted: nobody can be asked here (read it, then give --yes)")
        return False
    sys.stdout.write("trust this content? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _answer(parsed: Parsed, document: Document, result: str, lines: list[str]) -> int:
    trusted = result in ("trusted", "trusted_before")
    if parsed.flag("json"):
        emit(SCHEMA, {"path": document.path, "result": result, "trusted": trusted, "widens": lines})
    else:
        say({"trusted": "trusted: this content of ", "trusted_before": "already trusted: this content of ",
             "revoked": "trust taken back: ", "not_trusted": "not trusted: "}[result] + clean(document.path))
    return 0 if trusted or result == "revoked" else 1
