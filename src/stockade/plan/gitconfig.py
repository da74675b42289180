"""A small, careful reader of git configuration files.

The compiler must know what a repository's configuration makes git run, and may not run git
to ask (git would run it). Only the syntax of git-config(1) is read; includes are values
like others. Fails closed: text that git would reject ends the reading with ``whole=False``
and the caller guards the file all the same. Read next: ``gitfacts.py``.
"""

from __future__ import annotations

import os
import stat

from stockade.frozen import dataclass
from stockade.light import Iterator

MAX_BYTES = 1 << 19  # git has no limit; a hostile repository must not cost memory or time
BLANK = " \t\r"  # what git takes for white space


@dataclass(frozen=True, slots=True, kw_only=True)
class GitConfig:
    """Keys in file order; ``whole`` is false when the text could not be read to its end.

    ``cut``: because of our bound, where git would read on.
    """

    items: tuple[tuple[str, str], ...]
    whole: bool
    cut: bool = False

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
    cut = len(data) > MAX_BYTES
    return GitConfig(items=parsed.items, whole=parsed.whole and not cut, cut=cut)


def parse(text: str) -> GitConfig:
    """Parse configuration text; stops at the first thing git would reject."""
    items: list[tuple[str, str]] = []
    section = ""
    lines = _Lines(text)
    for line in lines:
        body = line.lstrip(BLANK)
        if not body or body[0] in "#;":
            continue
        if body[0] == "[":
            header = _section(body)
            if header is None:
                return GitConfig(items=tuple(items), whole=False)
            section, body = header
            body = body.lstrip(BLANK)
            if not body or body[0] in "#;":
                continue
        entry = _entry(body, lines)
        if entry is None:
            return GitConfig(items=tuple(items), whole=False)
        items.append((f"{section}.{entry[0]}" if section else entry[0], entry[1]))
    return GitConfig(items=tuple(items), whole=True)


class _Lines:
    """The lines of a text, one after the other; a value may ask for the next one."""

    __slots__ = ("_lines", "_next")

    def __init__(self, text: str) -> None:
        self._lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        self._next = 0

    def __iter__(self) -> Iterator[str]:
        while self._next < len(self._lines):
            yield self.more()

    def more(self) -> str:
        """Return the next line; past the end it is empty, as git takes the end for a line break."""
        self._next += 1
        return self._lines[self._next - 1] if self._next <= len(self._lines) else ""


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


def _entry(body: str, lines: _Lines) -> tuple[str, str] | None:
    """Return (name, value) of one ``name = value`` line; a bare name means true."""
    name, mark, rest = body.partition("=")
    key = name.strip(BLANK).lower()
    if not key[:1].isalpha() or not key.replace("-", "a").isalnum():
        return None
    value = _value(rest, lines) if mark else "true"
    return None if value is None or "\0" in value else (key, value)


_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


def _value(text: str, lines: _Lines) -> str | None:
    """Undo quotes, escapes, comments and continued lines of a value; None when git would reject it.

    A backslash at the end of a comment continues nothing: taken for a continuation it would hide
    the next line from us, not from git.
    """
    out: list[str] = []
    kept = 0  # length up to the last character that trailing-space trimming may not remove
    quoted = False
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char in BLANK and not quoted:
            out += char if out else ""
            continue
        if char in "#;" and not quoted:
            break
        kept = len(out)
        if char == '"':
            quoted = not quoted
            continue
        if char == "\\" and index == len(text):
            text, index = lines.more(), 0
            continue
        if char == "\\":
            char = _ESCAPES.get(text[index], "")
            index += 1
            if not char:
                return None
        out.append(char)
        kept = len(out)
    return None if quoted else "".join(out[:kept])
