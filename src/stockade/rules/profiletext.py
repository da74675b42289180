"""A learned profile as text: written new, or joined into a file that a person wrote.

Owns: the TOML of a profile, and inserting into one without touching what stands there, comments
included. Fails closed: the joined text is parsed again and must hold everything of both; a file
that cannot be joined so is left alone (``profile_invalid``). Read next: ``profile.py``.
"""

from __future__ import annotations

import os
import re

from stockade.errors import ConfigError
from stockade.frozen import dataclass, field
from stockade.light import Iterable, Mapping
from stockade.rules.files import Document, parse_toml
from stockade.rules.profile import USER, parse_profile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LISTS = ("extends", "read", "write", "hide", "devices", "sockets", "allow", "env", "accept")
_SCALARS = ("class", "tier", "net")
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a profile should say. ``caches``: (name, path, plain)."""

    description: str
    scalars: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    caches: tuple[tuple[str, str, bool], ...] = ()

    @property
    def empty(self) -> bool:
        """Tell whether it grants nothing of its own."""
        own = any(items for key, items in self.lists.items() if key != "extends")
        return not own and not self.caches and "net" not in self.scalars


def tilde(path: str, homes: Iterable[str]) -> str:
    """Write a path of the home as ``~/x``, whichever spelling of it: a profile is for whoever uses it."""
    home = next((home for home in homes if path.startswith(home.rstrip("/") + "/")), None)
    return path if home is None else f"~{path[len(home):]}"


def quoted(text: str) -> str:
    """Return a TOML basic string."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text) + '"'


def cache_name(path: str, taken: Iterable[str]) -> str:
    """Return a plain name for a cache directory, unlike the others."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", os.path.basename(path).lstrip(".")).strip(".") or "data"
    names, number, name = set(taken), 2, plain
    while name in names:
        name, number = f"{plain}-{number}", number + 1
    return name


def render(learned: Learned) -> str:
    """Return the text of a new profile."""
    lines = ['schema = "profile.v1"', f"description = {quoted(learned.description)}"]
    lines += [f"{key} = {quoted(learned.scalars[key])}" for key in _SCALARS if key in learned.scalars]
    for key in _LISTS:
        lines += _list(key, learned.lists.get(key, ()))
    for name, path, plain in learned.caches:
        lines += _cache(name, path, plain=plain)
    return "\n".join(lines) + "\n"


def _list(key: str, items: tuple[str, ...]) -> list[str]:
    if not items:
        return []
    if len(items) == 1:
        return [f"{key} = [{quoted(items[0])}]"]
    return [f"{key} = [", *(f"  {quoted(item)}," for item in items), "]"]


def _cache(name: str, path: str, *, plain: bool) -> list[str]:
    lines = ["", "[[caches]]", f"name = {quoted(name)}", f"path = {quoted(path)}"]
    return [*lines, "plain = true"] if plain else lines


def news(document: Document, learned: Learned) -> Learned:
    """Return what a file does not say yet. Its own description and scalars stay, but for the network."""
    data = document.data
    lists = {key: tuple(item for item in items if item not in _known(data, key))
             for key, items in learned.lists.items()}
    paths = {table.get("path") for table in data.get("caches", ())}
    names = [table.get("name", "") for table in data.get("caches", ())]
    caches: list[tuple[str, str, bool]] = []
    for name, path, plain in learned.caches:
        if path not in paths:
            caches.append((cache_name(name, [*names, *(row[0] for row in caches)]), path, plain))
    scalars = {key: value for key, value in learned.scalars.items()
               if key not in data or (key == "net" and data[key] != value)}
    return Learned(description=learned.description, lists={k: v for k, v in lists.items() if v},
                   scalars=scalars, caches=tuple(caches))


def _known(data: Mapping[str, Any], key: str) -> set[str]:
    return {item["path"] if isinstance(item, Mapping) else item for item in data.get(key, ())}


def join(document: Document, new: Learned) -> str:
    """Return the text of a file with the news put in.

    Raises: ConfigError ``profile_invalid``.
    """
    match = _TABLE.search(document.text)
    at = match.start() if match else len(document.text)
    head, tail = document.text[:at], document.text[at:]
    for key, value in new.scalars.items():
        line = f"{key} = {quoted(value)}"
        found = re.search(rf"^{key}\s*=.*$", head, re.MULTILINE)
        head = head[:found.start()] + line + head[found.end():] if found else f"{_ended(head)}{line}\n"
    for key, items in new.lists.items():
        words = ", ".join(map(quoted, items))
        found = re.search(rf"^{key}\s*=\s*\[", head, re.MULTILINE)
        lines = "\n".join(_list(key, items))
        head = f"{head[:found.end()]}{words}, {head[found.end():]}" if found else f"{_ended(head)}{lines}\n"
    tail = _ended(tail) + "".join("\n".join(_cache(name, path, plain=plain)) + "\n" for name, path, plain in new.caches)
    text = head + ("\n" if tail and not head.endswith("\n\n") and match else "") + tail
    _check(document, new, text)
    return text


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _check(document: Document, new: Learned, text: str) -> None:
    try:
        joined = parse_toml(document.path, "profile_invalid", text.encode("utf-8"))
        parse_profile(joined, "joined", USER)
    except ConfigError:
        joined = None
    hint = "save under another name and let it extend this one"
    if joined is None:
        raise document.error("joined with what was learned: got no valid profile, expected one", hint=hint)
    for key in sorted({*document.data, *new.lists, *new.scalars, *joined.data}):
        if joined.data.get(key) != _expected(document.data, new, key):
            raise document.error(f"{key} joined with what was learned: got another value, expected old and new entries",
                                 key, hint=hint)


def _expected(data: Mapping[str, Any], new: Learned, key: str) -> Any:
    if key in new.lists:
        return [*new.lists[key], *data.get(key, ())]
    if key == "caches" and new.caches:
        made = [{"name": name, "path": path, **({"plain": True} if plain else {})} for name, path, plain in new.caches]
        return [*data.get(key, ()), *made]
    return new.scalars.get(key, data.get(key))
