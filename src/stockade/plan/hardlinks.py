"""Other names of protected files inside the write roots.

A hard link of ``~/.ssh/id_ed25519`` in the workspace is the same file under a name that no
list knows. Only files with more than one link cost anything: then the write roots are searched
for that inode, within a budget. Fails closed: an unfinished search is reported as such, and
strict refuses on it. Read next: ``guards.py``.
"""

from __future__ import annotations

import os
import stat
import time

from stockade.frozen import dataclass
from stockade.light import Iterable, Mapping

MAX_ENTRIES = 200_000
MAX_SECONDS = 0.3

Inode = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Aliases of each protected file; ``finished`` is false when the budget ran out."""

    aliases: Mapping[str, tuple[str, ...]]
    finished: bool


def multiply_linked(paths: Iterable[str]) -> dict[Inode, str]:
    """Return the regular files among ``paths`` that have more than one link."""
    found: dict[Inode, str] = {}
    for path in paths:
        try:
            info = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
            found[(info.st_dev, info.st_ino)] = path
    return found


def search(wanted: Mapping[Inode, str], roots: Iterable[str]) -> Found:
    """Search the roots for the inodes of ``wanted``; other file systems are not entered."""
    hits: dict[str, list[str]] = {}
    deadline = time.monotonic() + MAX_SECONDS
    budget = MAX_ENTRIES
    devices = {device for device, _ in wanted}
    stack = [root for root in roots if _device(root) in devices]
    while stack:
        directory = stack.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue
        budget -= len(entries)
        if budget < 0 or time.monotonic() > deadline:
            return Found(aliases=_frozen(hits), finished=False)
        for entry in entries:
            _visit(entry, wanted, devices, hits, stack)
    return Found(aliases=_frozen(hits), finished=True)


def _visit(entry: os.DirEntry[str], wanted: Mapping[Inode, str], devices: set[int],
           hits: dict[str, list[str]], stack: list[str]) -> None:
    try:
        if entry.is_dir(follow_symlinks=False):
            stack.append(entry.path)
            return
        # d_ino comes with the listing: only a matching number costs a stat.
        number = entry.inode()
        if not any((device, number) in wanted for device in devices):
            return
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return
    original = wanted.get((info.st_dev, info.st_ino))
    if original is not None and original != entry.path:
        hits.setdefault(original, []).append(entry.path)


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _frozen(hits: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {path: tuple(sorted(names)) for path, names in hits.items()}
