"""What the files of policy and configuration were when they were read, so that a warm start can trust them.

Owns: the identity of each file through every link that leads to it, of what was absent, and of the places
where a repository could begin. Fails closed: an identity is taken before the content is read, so a change in
between is one; a file that changed just now is not known by its times, because the next change may leave the same.
Read next: ``stockade.rules.files``, ``stockade.process.prepare``.
"""

from __future__ import annotations

import os
import stat
from time import time_ns

from stockade.light import Mapping
from stockade.paths import git_top, parents

Identity = tuple[int, ...] | None
# Times of a file tick coarsely: 10 ms in the kernel (ktime_get_coarse_real_ts64), 2 s on FAT.
TICK_NS = 2_000_000_000


class Looked:
    """Collects while one request is resolved; then only compares."""

    __slots__ = ("_files", "_tops", "_names", "fresh")

    def __init__(self) -> None:
        self._files: dict[str, Identity] = {}
        self._tops: dict[str, Identity] = {}
        self._names: dict[str, str | None] = {}
        self.fresh = False

    def at(self, path: str) -> None:
        """Remember what a name leads to; call it before the content is read."""
        if path not in self._files:
            found = self._files[path] = _target(path)
            self.fresh = self.fresh or (found is not None and found[-1] > time_ns() - TICK_NS)

    def variable(self, env: Mapping[str, str], name: str) -> None:
        """Remember a variable by which a place was named."""
        self._names[name] = env.get(name)

    def top_above(self, cwd: str) -> str | None:
        """Return the git top level above ``cwd``, and remember what made it that one.

        Args: cwd: canonical.
        """
        seen = {level: _mark(level) for level in (cwd, *parents(cwd))}
        top = git_top(cwd)
        for level, mark in seen.items():
            self._tops[level] = mark
            if level == top:
                break
        return top

    def still_true(self, env: Mapping[str, str]) -> bool:
        """Tell whether every name leads to what it led to, unchanged."""
        return (all(env.get(name) == value for name, value in self._names.items())
                and all(_target(path) == seen for path, seen in self._files.items())
                and all(_mark(level) == seen for level, seen in self._tops.items()))


def _target(path: str) -> Identity:
    # Through all links: another target is another inode, and it matters nothing which link was changed.
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _mark(directory: str) -> Identity:
    """What ``git_top`` asks of a directory. Not when it changed: git writes to a repository all the time."""
    dot_git = f"{directory}/.git"
    try:
        entry, own = os.lstat(dot_git), os.stat(directory)
    except OSError:
        return None
    found = entry.st_mode, entry.st_uid, own.st_mode, own.st_uid
    if stat.S_ISDIR(entry.st_mode):
        return *found, int(os.path.lexists(f"{dot_git}/HEAD"))
    return *found, entry.st_ino, entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns
