"""Snapshots of directories: what a run changed on the host, if anything.

Owns ``snapshot`` and ``changes``; both look at names, types, modes, sizes, link text, content
digests of small files and modification times.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

Snapshot = dict[str, tuple[object, ...]]


def snapshot(root: Path, ignore: tuple[str, ...] = ()) -> Snapshot:
    """Describe everything below ``root``; ``ignore`` names relative prefixes to leave out.

    Raises OSError for a directory that is not there or cannot be listed: two looks at nothing are equal.
    """
    found: Snapshot = {}
    os.listdir(root)
    for directory, names, files in os.walk(root, onerror=_unlisted):
        for name in names + files:
            path = Path(directory) / name
            relative = str(path.relative_to(root))
            if not relative.startswith(ignore):
                found[relative] = _describe(path)
        names[:] = [name for name in names if not str((Path(directory) / name).relative_to(root)).startswith(ignore)]
    return found


def _unlisted(error: OSError) -> None:
    """A directory may go while it is looked for; one that is there has to show its names."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _describe(path: Path) -> tuple[object, ...]:
    info = os.lstat(path)
    kind = stat.S_IFMT(info.st_mode)
    content: object = None
    if stat.S_ISREG(info.st_mode) and info.st_size < 1 << 20:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    elif stat.S_ISLNK(info.st_mode):
        content = os.readlink(path)
    moved = None if stat.S_ISDIR(info.st_mode) else info.st_mtime_ns
    return kind, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, content, moved


def changes(before: Snapshot, after: Snapshot) -> dict[str, str]:
    """Names that appeared, went or differ."""
    found = dict.fromkeys(after.keys() - before.keys(), "created")
    found |= dict.fromkeys(before.keys() - after.keys(), "removed")
    found |= {name: "changed" for name in before.keys() & after.keys() if before[name] != after[name]}
    return found
