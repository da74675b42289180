"""One walk through a write root: directories to look for points in by name, and repositories.

Owns: the bounds. Repositories count at any depth, also in ``node_modules`` and ``target``, which
a hostile tree could otherwise use as a curtain; other points are looked for in the first levels
of the tree's own directories. Fails closed: a walk that met its bounds says so. Read next:
``guards.py``.
"""

from __future__ import annotations

import os
import time

from stockade.frozen import dataclass

MAX_ENTRIES = 1_000_000
MAX_SECONDS = 4.0
MAX_REPOSITORIES = 200
NAMED_ENTRIES = 4000
NAMED_DEPTH = 4
# Written by package managers and compilers: a guard in there would stop them from making it anew.
_GENERATED = frozenset({"node_modules", "target", "__pycache__"})
_BARE = frozenset({"HEAD", "objects", "refs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """``named``: directories and their names, the root first. ``repositories``: below the root.

    ``finished``: every directory was looked into. ``locked``: one that its own mode keeps shut, or nothing.
    """

    named: tuple[tuple[str, list[str]], ...]
    repositories: tuple[str, ...]
    finished: bool
    locked: str


def survey(root: str) -> Survey:
    """Walk a write root; symbolic links are not followed, git directories not entered."""
    walk = _Walk(root)
    finished = walk.run()
    return Survey(named=tuple(walk.named), repositories=tuple(walk.repositories), finished=finished,
                  locked=walk.locked)


class _Walk:
    __slots__ = ("_deadline", "_entries", "_root", "locked", "named", "repositories")

    def __init__(self, root: str) -> None:
        self._root = root
        self._entries = 0
        self._deadline = time.monotonic() + MAX_SECONDS
        self.locked = ""
        self.named: list[tuple[str, list[str]]] = []
        self.repositories: list[str] = []

    def run(self) -> bool:
        """Breadth first, so that what lies near the top is always met."""
        level = [(self._root, True)]  # (directory, points are looked for by name)
        depth = 0
        while level:
            below: list[tuple[str, bool]] = []
            for directory, named in level:
                if not self._look(directory, below, named=named and depth < NAMED_DEPTH):
                    return False
            level, depth = sorted(below), depth + 1
        return True

    def _look(self, directory: str, below: list[tuple[str, bool]], *, named: bool) -> bool:
        try:
            with os.scandir(directory) as scan:
                entries = list(scan)
        except OSError as err:
            # A directory of our own that is locked can be opened by the box; one of others cannot.
            if isinstance(err, PermissionError) and _is_mine(directory):
                self.locked = directory
            return not self.locked
        self._entries += len(entries)
        names = {entry.name for entry in entries}
        if (named and self._entries <= NAMED_ENTRIES) or directory == self._root:
            self.named.append((directory, sorted(names)))
        if directory != self._root and (".git" in names or names >= _BARE):
            self.repositories.append(directory)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.name != ".git":
                below.append((entry.path, named and entry.name not in _GENERATED))
        return (self._entries <= MAX_ENTRIES and len(self.repositories) <= MAX_REPOSITORIES
                and time.monotonic() < self._deadline)


def _is_mine(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return False
