"""A small, careful reader of git configuration files.

The compiler must know what a repository's configuration makes git run, and may not run git
to ask (git would run it). Only the syntax of git-config(1) is read; includes are values
like others. Fails closed: text that git would reject ends the reading with ``whole=False``
and the caller guards the file all the same. Read next: ``gitfacts.py``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from stockade.frozen import dataclass

MAX_BYTES = 1 << 20  # git has no limit; a hostile repository must not cost memory


@dataclass(frozen=True, slots=True, kw_only=True)
class GitConfig:
    """Keys in file order; ``whole`` is false when the text could not be read to its end."""

    items: tuple[tuple[str, str], ...]
    whole: bool

    def last(self, key: str) -> str | None:
        """Return the last value of a key, as git does for single-valued keys."""
        found = None
        for name, value in self.items:
            if name == key:
                found = value
        return found

    def all(self, key: str) -> tuple[str, ...]:
        """Return every value of a key in file order."""
        return tuple(value for name, value in self.items if name == key)


def read(path: str) -> GitConfig:
    """Read a configuration file; a missing or unreadable one is empty."""
    try:
        # An include may name a device, which an open alone can set going.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return GitConfig(items=(), whole=True)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return GitConfig(items=(), whole=True)
    with os.fdopen(fd, "rb") as stream:
        try:
            data = stream.read(MAX_BYTES + 1)
        except OSError:
            return GitConfig(items=(), whole=False)
    text = data[:MAX_BYTES].decode("utf-8", "surrogateescape")
    parsed = parse(text)
    return GitConfig(items=parsed.items, whole=parsed.whole and len(data) <= MAX_BYTES)


def parse(text: str) -> GitConfig:
    """Parse configuration text; stops at the first thing git would reject."""
    items: list[tuple[str, str]] = []
    section = ""
    whole = True
    for line in _logical_lines(text):
        if "\0" in line:
            whole = False
            break
        body = line.strip()
        if not body or body[0] in "#;":
            continue
        if body[0] == "[":
            header = _section(body)
            if header is None:
                whole = False
                break
            section, body = header
            body = body.strip()
            if not body or body[0] in "#;":
                continue
        entry = _entry(body)
        if entry is None:
            whole = False
            break
        items.append((f"{section}.{entry[0]}" if section else entry[0], entry[1]))
    return GitConfig(items=tuple(items), whole=whole)


def _logical_lines(text: str) -> Iterator[str]:
    """Join lines that end in an odd number of backslashes, as git continues a value."""
    pending = ""
    for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"):
        current = pending + line
        trailing = len(current) - len(current.rstrip("\\"))
        if trailing % 2 == 1:
            pending = current[:-1]
            continue
        pending = ""
        yield current
    if pending:
        yield pending


def _section(body: str) -> tuple[str, str] | None:
    """Return (section name, rest of the line) of ``[name "sub"] rest``."""
    name = ""
    index = 1
    while index < len(body) and body[index] not in '] \t"':
        name += body[index]
        index += 1
    while index < len(body) and body[index] in " \t":
        index += 1
    if index < len(body) and body[index] == '"':
        sub = _subsection(body, index + 1)
        if sub is None:
            return None
        text, index = sub
        return (f"{name.lower()}.{text}", body[index + 1:]) if body[index:index + 1] == "]" else None
    if body[index:index + 1] != "]" or not name.replace("-", "a").replace(".", "a").isalnum():
        return None
    return name.lower(), body[index + 1:]


def _subsection(body: str, index: int) -> tuple[str, int] | None:
    text = ""
    while index < len(body) and body[index] != '"':
        if body[index] == "\\":
            index += 1
            if index >= len(body):
                return None
        text += body[index]
        index += 1
    return (text, index + 1) if index < len(body) else None


def _entry(body: str) -> tuple[str, str] | None:
    """Return (name, value) of one ``name = value`` line; a bare name means true."""
    name, mark, rest = body.partition("=")
    if not mark:
        name = name.split("#")[0].split(";")[0]
        rest = "true"
    key = name.strip().lower()
    if not key or not key.replace("-", "a").isalnum():
        return None
    value = _value(rest) if mark else rest
    return None if value is None else (key, value)


_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


def _value(text: str) -> str | None:
    """Undo quotes, escapes and comments of a value; None when git would reject it."""
    out: list[str] = []
    kept = 0  # length up to the last character that trailing-space trimming may not remove
    quoted = False
    index = 0
    text = text.lstrip()
    while index < len(text):
        char = text[index]
        if char == '"':
            quoted = not quoted
        elif char == "\\":
            index += 1
            escape = _ESCAPES.get(text[index:index + 1])
            if escape is None:
                return None
            out.append(escape)
            kept = len(out)
        elif char in "#;" and not quoted:
            break
        else:
            out.append(char)
            if quoted or not char.isspace():
                kept = len(out)
        index += 1
    return None if quoted else "".join(out[:kept])

