"""One layer of values: what a profile or a configuration file says, checked.

Owns: the keys that profiles and configuration share, and ``Sourced``, a value with its origin.
Fails closed: an unknown key or a wrong type is an error with file and line.
Read next: ``stockade.rules.profile``, ``stockade.rules.settings``.
"""

from __future__ import annotations

from stockade.frozen import dataclass, field
from stockade.light import Mapping
from stockade.rules import names, units
from stockade.rules.files import Document
from stockade.rules.request import check_limits, check_net, check_on_persistence, check_variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATH_LISTS = ("read", "write", "hide", "devices")
WORD_LISTS = ("sockets", "allow", "env", "accept")
LAYER_KEYS = frozenset({"tier", "net", "set_env", "limits", *PATH_LISTS, *WORD_LISTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A value and where it came from: ``argument``, ``profile npm``, a file, a class row."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRef:
    """A path as a file spells it, before expansion: ``~/x``, ``/x``, ``./x`` or ``$NAME/x``."""

    text: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Scalars and lists of one origin. ``literal``: ``set_env`` is reviewed and may enter a plan."""

    origin: str
    scalars: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[PathRef, ...]] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    set_env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    limits: tuple[tuple[str, int], ...] = ()
    literal: bool = False


def parse_layer(document: Document, origin: str, *, literal: bool = False) -> Layer:
    """Return the shared keys of a document. Keys that are not shared are the caller's to check."""
    table = document.data
    scalars = {key: document.checked(key, check, table[key]) for key, check in _SCALARS.items() if key in table}
    return Layer(
        origin=origin, scalars={key: value for key, value in scalars.items() if value is not None},
        paths={key: tuple(path_ref(document, key, item) for item in _list(document, key)) for key in PATH_LISTS},
        words={key: tuple(document.checked(key, _WORDS[key], item) for item in document.strings(key, table))
               for key in WORD_LISTS},
        set_env=_set_env(document), literal=literal,
        limits=document.checked("limits", check_limits, table.get("limits")),
    )


_SCALARS: Mapping[str, Any] = {
    "tier": names.check_tier,
    "net": check_net,
    "cache": lambda value: units.choice("cache", value, ("keep", "ephemeral", "off")),
    "tmp": units.tmp,
    "on_persistence": check_on_persistence,
}

_WORDS: Mapping[str, Any] = {
    "sockets": lambda item: item if "/" in item else names.check_grant(item, "sockets"),
    "allow": lambda item: names.check_grant(item, "allow"),
    "env": lambda item: _env_pattern(item),
    "accept": names.check_accept,
}


def _env_pattern(item: str) -> str:
    check_variable("env", item)
    if len(item.replace("*", "")) < 3 and "*" in item:
        # '*' alone, or nearly, would grant every secret of the caller.
        names.refuse_pattern(item)
    return item


def _list(document: Document, key: str) -> list[Any]:
    value = document.data.get(key, [])
    if not isinstance(value, list):
        raise document.error(f"key {key!r}: got a {type(value).__name__}, expected a list", key)
    return value


def _starts_well(text: str) -> bool:
    """A path starts with ~/, /, ./ or $NAME/, or is one of them alone."""
    first = text.split("/", 1)[0]
    if first.startswith("$"):
        return first[1:].isascii() and first[1:].isidentifier()
    return first in ("~", ".") or text.startswith("/")


def path_ref(document: Document, key: str, item: Any) -> PathRef:
    """Check one path of a file: a string, or a table of ``path`` and ``optional``."""
    optional = False
    if isinstance(item, Mapping):
        document.check_keys(item, ("path", "optional"), key)
        item, optional = item.get("path"), item.get("optional", False)
    if not isinstance(item, str) or not isinstance(optional, bool) or "\0" in item:
        raise document.error(f"key {key!r}: expected paths, or tables of path and optional", key)
    if not _starts_well(item) or ".." in item.split("/"):
        raise document.error(f"key {key!r}: got {item!r}, expected a path that starts with ~/, /, ./ or $NAME/ "
                             "and does not climb", key)
    return PathRef(text=item, optional=optional)


def _set_env(document: Document) -> tuple[tuple[str, str], ...]:
    table = document.data.get("set_env", {})
    if not isinstance(table, Mapping) or not all(isinstance(value, str) for value in table.values()):
        raise document.error("key 'set_env': expected a table of strings", "set_env")
    for name, value in table.items():
        document.checked("set_env", lambda item: check_variable("set_env", item), name)
        if "\0" in value:
            raise document.error(f"key 'set_env.{name}': holds a NUL byte", name)
    return tuple(sorted(table.items()))
