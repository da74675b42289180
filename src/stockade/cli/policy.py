"""``stockade policy``: which ceilings hold here, which file set each, and whether a file is valid.

Owns: the printing. Fails closed: what would refuse a request is never shown as a policy (``show`` cannot tell then).
Read next: ``stockade.rules.governance``.
"""

from __future__ import annotations

import os
from functools import reduce
from typing import Any

from stockade.cli.grammar import Parsed
from stockade.cli.output import clean, emit, paint, say, table
from stockade.errors import ConfigError
from stockade.frozen import dataclass
from stockade.light import Iterator
from stockade.paths import config_home, is_below
from stockade.rules.files import Document, check_above, read_toml
from stockade.rules.governance import KEYS, SYSTEM_DIR, Policy, intersect, parse_policy, policy_documents

_SHOW = "stockade.policy-show.v1"
_CHECK = "stockade.policy-check.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One policy file and what it says alone."""

    document: Document
    policy: Policy

    def says(self, key: str, word: Any) -> bool:
        """Tell whether this file set a value of the whole: a word of a list, or the one that is left of several."""
        if key not in self.document.data:
            return False
        own = getattr(self.policy, KEYS[key])
        return word in own if isinstance(own, frozenset) else bool(own == word)


def _parts() -> list[Part]:
    return [Part(document=document, policy=parse_policy(document))
            for document in policy_documents(str(config_home(os.environ)))]


def show(parsed: Parsed) -> int:
    """Print each ceiling that holds, and the file and line of each value."""
    parts = _parts()
    policy = reduce(intersect, (part.policy for part in parts), Policy())
    keys = [key for key in KEYS if any(key in part.document.data for part in parts)]
    if parsed.flag("json"):
        emit(_SHOW, {"files": [_file(part.document) for part in parts],
                     "ceilings": [_ceiling(key, policy, parts) for key in keys]})
        return 0
    if not parts:
        say("no ceiling: there is no policy file")
        return 0
    say(f"{len(keys)} {'ceiling' if len(keys) == 1 else 'ceilings'} from "
        f"{len(parts)} {'file' if len(parts) == 1 else 'files'}")
    table([(key if number == 0 else "", value, _places(key, word, parts)) for key in keys
           for number, (value, word) in enumerate(_values(key, policy))], head=("CEILING", "VALUE", "FILE"))
    return 0


def _values(key: str, policy: Policy) -> Iterator[tuple[str, Any]]:
    """Yield the values of a ceiling as text and as they are; an empty list has one: none."""
    value = getattr(policy, KEYS[key])
    if isinstance(value, frozenset):
        yield from ((word, word) for word in sorted(value))
        if not value:
            yield "(none)", None
    else:
        yield str(_plain(key, value)), value


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if key == "min_tier":
        return str(value)
    return f"{value}s" if key == "retention" else value


def _sources(key: str, word: Any, parts: list[Part]) -> list[tuple[str, int | None]]:
    """Return file and line of a value; what no file says alone comes from all that have the key."""
    having = [part for part in parts if key in part.document.data]
    found = [part for part in having if part.says(key, word)] or having
    return [(part.document.path, part.document.line_of(key)) for part in found]


def _places(key: str, word: Any, parts: list[Part]) -> str:
    return ", ".join(f"{path} line {line}" if line else path for path, line in _sources(key, word, parts))


def _file(document: Document) -> dict[str, Any]:
    return {"path": document.path, "boundary": is_below(document.path, SYSTEM_DIR)}


def _ceiling(key: str, policy: Policy, parts: list[Part]) -> dict[str, Any]:
    value = _plain(key, getattr(policy, KEYS[key]))
    return {"key": key, "value": value, "sources": [
        {"value": word, "path": path, "line": line} for word in (value if isinstance(value, list) else [value])
        for path, line in _sources(key, word if isinstance(value, list) else getattr(policy, KEYS[key]), parts)]}


def check(parsed: Parsed) -> int:
    """Tell whether a policy file, or all that hold here together, are valid."""
    name = os.path.abspath(os.path.expanduser(parsed.words[0])) if parsed.words else None
    try:
        parts = _parts() if name is None else [_named(name)]
        reduce(intersect, (part.policy for part in parts), Policy())
        fault = None
    except ConfigError as error:
        if error.code != "policy_invalid":
            raise
        parts, fault = [], error
    if parsed.flag("json"):
        emit(_CHECK, {"file": name, "valid": fault is None, "files": [_file(part.document) for part in parts],
                      "error": {**fault.to_json(), "path": fault.path, "line": fault.line} if fault else None})
    elif fault is not None:
        say(f"{paint('invalid', 'red')}: {clean(str(fault))}")
    else:
        what = ", ".join(clean(part.document.path) for part in parts)
        say(f"{paint('valid', 'green')}: {what or 'there is no policy file, so there is no ceiling'}")
    return 0 if fault is None else 1


def _named(path: str) -> Part:
    """Read one file. Whose it must be is known of those in place; a draft elsewhere is anybody's.

    Raises: ConfigError ``policy_invalid``, ``path_invalid`` when there is none.
    """
    system = is_below(path, SYSTEM_DIR)
    document = read_toml(path, "policy_invalid", owners=(0,) if system else None, strict_mode=system)
    if document is None:
        raise ConfigError("path_invalid", f"policy file {path!r}: does not exist (ENOENT)",
                          hint="name a file that exists")
    if system:
        check_above(path, "policy_invalid", (0,))
    return Part(document=document, policy=parse_policy(document))
