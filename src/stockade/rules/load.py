"""The reviewed lists and built-in profiles, read from one compiled file.

Owns: ``compiled.json`` (made by ``python -m stockade.rules.load --compile`` from the ``*.toml``
beside it; reading TOML at every start would cost more than the start) and the type of an entry.
Fails closed: a missing or unreadable compiled file, or a list nobody compiled, is an error; an
empty list would silently hide nothing.
Read next: ``stockade.rules.schema`` (which keys a list may have), ``docs/tiers.md``.
"""

from __future__ import annotations

import os
import sys
from itertools import repeat

from stockade.errors import ConfigError, nearest
from stockade.frozen import NamedTuple
from stockade.jsontext import loads
from stockade.light import Iterable, Mapping, memo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RULES_DIR = os.path.dirname(os.path.abspath(__file__))
COMPILED = os.path.join(RULES_DIR, "compiled.json")
COMPILED_SCHEMA = "stockade.rules.v4"
_HEAD, _TAIL = f'{{"schema":"{COMPILED_SCHEMA}",\n'.encode(), b'\n"end":null}\n'


class Entry(NamedTuple):
    """One row of a reviewed list; fields that a list does not use are empty.

    A named tuple, not a record class: a start at guarded builds five hundred of them.

    id: unique in its list. list: name of the list. kind: ``file``, ``dir``, ``any``, ``glob`` or ``var``.
    path, pattern: relative to ``scope`` (home unless the list says otherwise); ``*`` matches inside
    one path component. env: variables that move or name it; base: what of the path lies below
    that variable (empty: the variable names the object itself). usual: names that a pattern stands for,
    hidden also where nothing fits it yet.
    """

    id: str
    list: str
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
    usual: tuple[str, ...] = ()
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
    bin: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """What an attacker gains, or why it is safe."""
        return str(_texts(self.list)[self.id][0])

    @property
    def source(self) -> str:
        """Where the fact comes from."""
        return str(_texts(self.list)[self.id][1])

    @property
    def examples(self) -> tuple[str, ...]:
        """Names that the row stands for; where a start needs them, ``usual`` has them as well."""
        return tuple(_texts(self.list)[self.id][2])


DEFAULTS: Mapping[str, Any] = {**dict.fromkeys(("id", "list"), ""), **Entry._field_defaults}
# Of each row, in a member of their own: for people and tests, and half of the bytes.
TEXTS = ("why", "source", "examples")


@memo(maxsize=1)
def _content() -> bytes:
    try:
        with open(COMPILED, "rb", buffering=0) as stream:
            content = stream.read()
    except OSError as err:
        raise ConfigError("rules_invalid", f"rules in {COMPILED!r}: cannot be read ({err})") from err
    if not content.startswith(_HEAD) or not content.endswith(_TAIL):
        raise ConfigError("rules_invalid", f"rules in {COMPILED!r}: cut short, or not of schema {COMPILED_SCHEMA!r}")
    return content


def _member(name: str) -> Any:
    """Return a list, a profile or the index; None where there is none.

    The compiled file is one JSON document with one member a line, so that a start parses only the
    lists it asks for.
    """
    content, mark = _content(), f'\n"{name}":'.encode(errors="surrogatepass")
    start = -1 if '"' in name else content.find(mark)
    return None if start < 0 else _parse(name, content[start + len(mark):content.index(b"\n", start + 1)])


@memo(maxsize=1)
def _index() -> dict[str, Any]:
    """Return the names of the ``lists`` and ``profiles``, sorted, and ``match``: command name -> profile."""
    found = _member("index")
    if not isinstance(found, dict):
        raise ConfigError("rules_invalid", f"rules in {COMPILED!r}: there is no index")
    return found


def _parse(name: str, line: bytes) -> Any:
    try:
        return loads(line.removesuffix(b","))
    except ValueError as err:
        raise ConfigError("rules_invalid", f"rules in {COMPILED!r}: {name!r} cannot be read ({err})") from err


def _entries(name: str, columns: dict[str, list[Any]]) -> tuple[Entry, ...]:
    """Make the entries of a list; a field without a column has its default in every row."""
    count = len(columns.get("id", ()))
    if not count or any(len(column) != count for column in columns.values()) or not columns.keys() <= DEFAULTS.keys():
        raise ConfigError("rules_invalid", f"rules in {COMPILED!r}: {name!r} has not one value for each row")
    made: list[Iterable[Any]] = []
    for field, default in DEFAULTS.items():
        column = columns.get(field)
        if column is None:
            made.append(repeat(name if field == "list" else default, count))
        else:
            made.append(map(tuple, column) if type(default) is tuple else column)
    return tuple(map(tuple.__new__, repeat(Entry), zip(*made, strict=True)))  # ``_make`` counts each once more


@memo(maxsize=32)
def load_list(name: str) -> tuple[Entry, ...]:
    """Return the entries of ``rules/<name>.toml``, in the order of the file.

    Raises: ConfigError ``rules_invalid`` for a list that does not exist.
    """
    columns = _member(f"list/{name}")
    if columns is None:
        raise ConfigError("rules_invalid", f"list {name!r}: not in the compiled rules",
                          hint=nearest(name, list_names()))
    return _entries(name, columns)


@memo(maxsize=32)
def _texts(name: str) -> dict[str, tuple[Any, ...]]:
    columns = _member(f"text/{name}") or {}
    try:
        return {row: tuple(texts) for row, *texts in zip(*(columns[key] for key in ("id", *TEXTS)), strict=True)}
    except (KeyError, TypeError, ValueError) as err:
        raise ConfigError("rules_invalid", f"rules in {COMPILED!r}: the texts of {name!r} cannot be read") from err


def list_names() -> tuple[str, ...]:
    """Return the names of the reviewed lists, sorted."""
    return tuple(_index()["lists"])


def profile_names() -> tuple[str, ...]:
    """Return the names of the built-in profiles, sorted."""
    return tuple(_index()["profiles"])


def profile_data(name: str) -> dict[str, Any]:
    """Return the content of the built-in profile ``name``, a fresh copy at each call.

    Raises: ConfigError ``unknown_profile``.
    """
    found: dict[str, Any] | None = _member(f"profile/{name}")
    if found is None:
        raise ConfigError("unknown_profile", f"profile {name!r}: no built-in profile of that name",
                          hint=nearest(name, profile_names()))
    return found


def profile_for(command: str) -> str | None:
    """Return the built-in profile that a command of this name stands for, or None."""
    found: str | None = _index()["match"].get(command)
    return found


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
