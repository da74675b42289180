"""The reviewed lists and built-in profiles, read from one compiled file.

Owns: ``compiled.json`` (made by ``python -m stockade.rules.load --compile`` from the ``*.toml``
beside it; reading TOML at every start would cost more than the start) and the type of an entry.
Fails closed: a missing or unreadable compiled file, or a list nobody compiled, is an error; an
empty list would silently hide nothing.
Read next: ``stockade.rules.schema`` (which keys a list may have), ``docs/tiers.md``.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from stockade.frozen import dataclass, fields
from functools import cache, lru_cache
from typing import Any

from stockade.errors import ConfigError, nearest

RULES_DIR = os.path.dirname(os.path.abspath(__file__))
COMPILED = os.path.join(RULES_DIR, "compiled.json")
COMPILED_SCHEMA = "stockade.rules.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a reviewed list; fields that a list does not use are empty.

    id: unique in its list. list: name of the list. why: what an attacker gains, or why it is safe.
    source: where the fact comes from. kind: ``file``, ``dir``, ``any``, ``glob`` or ``var``.
    path, pattern: relative to ``scope`` (home unless the list says otherwise); ``*`` matches inside
    one path component. env: variables that move or name it; base: what of the path lies below
    that variable (empty: the variable names the object itself).
    """

    id: str
    list: str
    why: str
    source: str
    name: str = ""
    path: str = ""
    paths: tuple[str, ...] = ()
    pattern: str = ""
    kind: str = "any"
    klass: str = ""
    scope: str = ""
    env: tuple[str, ...] = ()
    base: str = ""
    keep: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    guard: bool = False
    nested: bool = False
    report: tuple[str, ...] = ()
    abstract: tuple[str, ...] = ()
    tcp: tuple[int, ...] = ()
    power: str = ""
    prefix: str = ""
    charset: str = ""
    min_len: int = 0
    except_: tuple[str, ...] = ()
    waives: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    match: tuple[str, ...] = ()
    generated: bool = False
    optional: bool = False
    bin: tuple[str, ...] = ()


_LISTS = frozenset(f.name for f in fields(Entry) if f.default == ())


@lru_cache(maxsize=1)
def _compiled() -> dict[str, Any]:
    try:
        with open(COMPILED, encoding="utf-8") as stream:
            data: dict[str, Any] = json.load(stream)
    except (OSError, ValueError) as err:
        raise ConfigError("rules_invalid", f"rules in {COMPILED!r}: cannot be read ({err})") from err
    if data.get("schema") != COMPILED_SCHEMA:
        raise ConfigError("rules_invalid", f"rules in {COMPILED!r}: got schema {data.get('schema')!r}, "
                                           f"expected {COMPILED_SCHEMA!r}")
    return data


def _entry(list_name: str, row: dict[str, Any]) -> Entry:
    values = {key: tuple(value) if key in _LISTS else value for key, value in row.items()}
    return Entry(list=list_name, **values)


@cache
def load_list(name: str) -> tuple[Entry, ...]:
    """Return the entries of ``rules/<name>.toml``, in the order of the file.

    Raises: ConfigError ``rules_invalid`` for a list that does not exist.
    """
    rows = _compiled()["lists"].get(name)
    if rows is None:
        raise ConfigError("rules_invalid", f"list {name!r}: not in the compiled rules",
                          hint=nearest(name, list_names()))
    return tuple(_entry(name, row) for row in rows)


def list_names() -> tuple[str, ...]:
    """Return the names of the reviewed lists, sorted."""
    return tuple(sorted(_compiled()["lists"]))


def profile_names() -> tuple[str, ...]:
    """Return the names of the built-in profiles, sorted."""
    return tuple(sorted(_compiled()["profiles"]))


def profile_data(name: str) -> dict[str, Any]:
    """Return the content of the built-in profile ``name``; the caller may change the copy.

    Raises: ConfigError ``unknown_profile``.
    """
    data = _compiled()["profiles"].get(name)
    if data is None:
        raise ConfigError("unknown_profile", f"profile {name!r}: no built-in profile of that name",
                          hint=nearest(name, profile_names()))
    result: dict[str, Any] = copy.deepcopy(data)
    return result


load_profile_data = profile_data


def main(argv: list[str]) -> int:
    """Compile the rules (``--compile``) or say whether the compiled file is fresh (``--check``)."""
    from stockade.rules import schema  # needs tomllib, which a normal start must not pay for

    if argv not in (["--compile"], ["--check"]):
        print("usage: python -m stockade.rules.load --compile | --check", file=sys.stderr)
        return 2
    try:
        text = schema.compile_rules(RULES_DIR)
    except ConfigError as err:
        print(f"stockade: {err}", file=sys.stderr)
        return 1
    if argv == ["--check"]:
        with open(COMPILED, encoding="utf-8") as stream:
            return 0 if stream.read() == text else 1
    from stockade.paths import atomic_write

    atomic_write(COMPILED, text.encode("utf-8"), 0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
