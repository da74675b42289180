"""What a compiled plan depended on, so that a warm start can reuse it.

The compiler looks at paths and variables through this object; a later start with the same
request compares a few dozen ``lstat`` answers instead of compiling again. Fails closed: any
difference, or a path that cannot be looked at, means compile again. Used by ``process``.
"""

from __future__ import annotations

import os

from stockade.light import Iterable, Mapping

Identity = tuple[int, int, int, int] | None


class Witness:
    """Collects looked-at paths and variables during one compilation; then only compares."""

    __slots__ = ("_paths", "_names", "_mounts")

    def __init__(self) -> None:
        self._paths: dict[str, Identity] = {}
        self._names: dict[str, str | None] = {}
        self._mounts: bytes | None = None

    def saw_mounts(self, text: str) -> None:
        """Remember the mount table that the plan was made for."""
        self._mounts = text.encode("utf-8", "surrogateescape")

    def saw(self, *paths: str) -> None:
        """Remember the identity of paths whose content the plan depends on."""
        for path in paths:
            if path not in self._paths:
                self._paths[path] = identity(path)

    def read_env(self, env: Mapping[str, str], names: Iterable[str]) -> None:
        """Remember variables whose value the plan depends on."""
        for name in names:
            self._names[name] = env.get(name)

    def still_true(self, env: Mapping[str, str]) -> bool:
        """Tell whether every path and variable is as it was."""
        plain = dict(env)  # os.environ encodes a name at each look-up, and there are a hundred
        if self._names != {name: plain.get(name) for name in self._names}:
            return False
        # The mounts first: a path on one that came since may never answer.
        try:
            if self._mounts is not None and _mount_table() != self._mounts:
                return False
        except OSError:
            return False
        return self._paths_are_as_they_were()

    def _paths_are_as_they_were(self) -> bool:
        # A strict box looks at a hundred paths at each start: no call per path but the kernel's.
        # Nothing of a file changes without its ctime; the size tells two changes in one tick of the clock apart.
        lstat = os.lstat
        for path, seen in self._paths.items():
            try:
                info = lstat(path)
            except OSError:
                if seen is not None:
                    return False
                continue
            if seen is None or info.st_ctime_ns != seen[3] or info.st_ino != seen[1] or info.st_size != seen[2] \
                    or info.st_dev != seen[0]:
                return False
        return True

    def __len__(self) -> int:
        return len(self._paths) + len(self._names)


def identity(path: str) -> Identity:
    """Return device, inode, size and ctime in nanoseconds; None when it is not there."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_ctime_ns


def _mount_table() -> bytes:
    with open("/proc/self/mountinfo", "rb", buffering=0) as stream:
        return stream.readall()
