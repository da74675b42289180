"""Which files the configuration of a repository makes git run, load or read further settings from.

Owns: the keys that execute, how git reads their values (a path is the whole value, a command is
words for a shell), and included files. The result is only ever guarded, never granted, so a word
too many is harmless and one too few is not. Fails closed: a value that no shell would take is
split at blanks. Read next: ``gitfacts.py``. Source: git-config(1).
"""

from __future__ import annotations

import os
import stat

from stockade.light import Iterator
from stockade.plan import gitconfig
from stockade.rules.match import matches

MAX_INCLUDES = 50
MAX_INCLUDE_DEPTH = 10  # git's own limit
MAX_VALUES = 2000  # a hostile configuration must not cost seconds
MAX_SHELL_DEPTH = 3  # sh -c "sh -c '...'"

# Keys whose value git (or a tool of git) executes or loads. Source: `git help -c`.
EXEC_KEYS = (
    "core.hookspath", "core.fsmonitor", "core.sshcommand", "core.editor", "core.pager",
    "core.askpass", "core.gitproxy", "core.alternaterefscommand", "core.attributesfile",
    "include.path", "includeif.*.path", "alias.*", "pager.*", "sequence.editor",
    "interactive.difffilter", "credential.helper", "credential.*.helper", "diff.external",
    "diff.*.command", "diff.*.textconv", "difftool.*.cmd", "difftool.*.path", "mergetool.*.cmd",
    "mergetool.*.path", "merge.*.driver", "filter.*.clean", "filter.*.smudge", "filter.*.process",
    "gpg.program", "gpg.*.program", "gpg.ssh.defaultkeycommand", "hook.*.command",
    "submodule.*.update", "remote.*.uploadpack", "remote.*.receivepack", "trailer.*.cmd",
    "trailer.*.command", "tar.*.command", "uploadpack.packobjectshook", "init.templatedir",
)

# Of these the whole value is one path, blanks and all; fsmonitor may be a command as well.
PATH_KEYS = ("core.hookspath", "core.attributesfile", "core.fsmonitor", "include.path", "includeif.*.path",
             "init.templatedir", "difftool.*.path", "mergetool.*.path", "gpg.program", "gpg.*.program")
INCLUDE_KEYS = ("include.path", "includeif.*.path")


def _sections(keys: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for key in keys:
        section = key.split(".", 1)[0]
        found[section] = (*found.get(section, ()), key)
    return found


_BY_SECTION, _PATHS, _INCLUDES = _sections(EXEC_KEYS), _sections(PATH_KEYS), _sections(INCLUDE_KEYS)

_INTERPRETERS = ("sh", "bash", "dash", "zsh", "ksh", "fish", "python*", "perl", "ruby", "node", "deno", "bun", "php",
                 "lua*", "awk", "gawk", "sed", "env", "exec", "source", ".", "sudo", "nice", "time")
_OPERATORS = frozenset(";|&(){}<>!\n")


class Programs:
    """What one configuration executes: ``paths`` that exist, ``files`` that the answer came from.

    ``cut``: a file with more than anybody writes by hand, not all of which was looked at, or nothing.
    """

    __slots__ = ("_home", "_values", "_trees", "cut", "files", "paths")

    def __init__(self, trees: tuple[str, ...], home: str) -> None:
        self._trees = trees
        self._home = home
        self._values = 0
        self.cut = ""
        self.paths: set[str] = set()
        self.files: list[str] = []

    def read(self, path: str, depth: int = 0) -> None:
        """Take in a configuration file and what it includes, whatever the condition says.

        A condition is evaluated by git later, when the box may have changed what it asks for.
        """
        if path in self.files:
            return
        if len(self.files) >= MAX_INCLUDES or depth > MAX_INCLUDE_DEPTH:
            self._cut_at(path if os.path.lexists(path) else "")
            return
        self.files.append(path)
        config = gitconfig.read(path)
        self._cut_at(path if config.cut else "")
        for key, value in config.items:
            if not _is_listed(key, _BY_SECTION):
                continue
            if self._values >= MAX_VALUES:
                return self._cut_at(path)
            self._values += 1
            if _is_listed(key, _INCLUDES):
                self.read(os.path.join(os.path.dirname(path), self._at_home(value)), depth + 1)
            self._take(key, value, os.path.dirname(path))

    def _cut_at(self, path: str) -> None:
        self.cut = self.cut or path

    def _take(self, key: str, value: str, beside: str) -> None:
        whole = _is_listed(key, _PATHS)
        if whole:
            self._add(value, beside, directories=True)
        for word, named in _words(value):
            self._add(word, beside, directories="/" in word or whole, programs=not named)

    def _add(self, word: str, beside: str, *, directories: bool, programs: bool = False) -> None:
        if not word or "\0" in word or word in (".", ".."):
            return
        for base in (*self._trees, beside):
            path = os.path.join(base, self._at_home(word))
            kind = _kind(path)
            if kind == "other" or (kind == "dir" and not directories):
                continue
            if not programs or "/" in word or _is_program(path):
                self.paths.add(path)

    def _at_home(self, text: str) -> str:
        return self._home + text[1:] if text == "~" or text.startswith("~/") else text


def _is_listed(key: str, sections: dict[str, tuple[str, ...]]) -> bool:
    return any(matches(key, pattern) for pattern in sections.get(key.split(".", 1)[0], ()))


def _words(value: str, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield (word, it stands where a shell takes a program) of a command line."""
    named = True
    for word in _split(value.lstrip("!")):
        if not word or set(word) <= _OPERATORS:
            named = True
            continue
        if " " in word and depth < MAX_SHELL_DEPTH:
            yield from _words(word, depth + 1)  # sh -c "..."
        yield word, named
        assigns = "=" in word.split("/")[0]
        runs = any(matches(os.path.basename(word), name) for name in _INTERPRETERS)
        named = named and (assigns or runs or word.startswith("-"))


def _split(value: str) -> list[str]:
    import shlex  # only a configuration that runs something needs it

    lexer = shlex.shlex(value, posix=True, punctuation_chars=";|&(){}<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return value.split()


def _kind(path: str) -> str:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        # A link that leads nowhere yet is a name that will run what somebody puts there.
        return "file" if os.path.islink(path) else "other"
    return "dir" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _is_program(path: str) -> bool:
    """A file that is started, or handed to an interpreter: it is executable or says so itself."""
    if os.access(path, os.X_OK):
        return True
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return False
