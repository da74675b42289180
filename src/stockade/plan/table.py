"""The mount table: collect rows in any order, then give each its mount point.

Owns: depth order, the parents that a private tmpfs needs, the names that an overlay must hold
so that something can be mounted there. Nothing is ever created on the host: a mount point is
either on a file system that the launcher made, or it exists already. Fails closed: a row whose
mount point can be neither is ``mount_point_missing``. Read next: ``linux.py``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.plan.rows import READ_ONLY, Row, depth, directory, parents

_OWN = frozenset({"tmpfs", "dev"})
_MADE = frozenset({"dir", "file", "symlink"})
_SHOWN = frozenset({"bind", "overlay"})
DISK = "@tmp"
_MOUNTS = frozenset({"bind", "tmpfs", "overlay", "cache", "proc", "dev"})


class Table:
    """Rows as they are collected; ``finish`` gives the list for the plan."""

    __slots__ = ("disk_points", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.disk_points: list[tuple[str, str]] = []  # (path below /tmp, "dir" or "file")

    def add(self, *rows: Row) -> None:
        """Add rows; of two on one target the later wins."""
        self.rows.extend(rows)

    def targets(self) -> set[str]:
        """Return the targets so far."""
        return {row["target"] for row in self.rows}

    def finish(self) -> list[Row]:
        """Return the rows sorted by depth with mount points settled.

        Raises: Refused(mount_point_missing).
        """
        ordered = sorted(_last_wins(self.rows), key=lambda row: (row["kind"] == "seal", depth(row["target"])))
        done: list[Row] = []
        made: dict[str, Row] = {}
        for row in ordered:
            if row["kind"] == "dir" and row["target"] in made:
                continue
            if row["kind"] != "seal" and row["target"] != "/":
                above = enclosing(row["target"], made)
                if above.get("source") == DISK:
                    if not self._on_disk(row):
                        continue
                elif row["kind"] in _MADE and above["kind"] in _SHOWN:
                    continue  # a grant shows the host's own directory, in which nothing is made
                else:
                    _place(row, made, done)
            done.append(row)
            made.setdefault(row["target"], row)
        done.sort(key=lambda row: (row["kind"] == "seal", depth(row["target"])))
        return done

    def _on_disk(self, row: Row) -> bool:
        """/tmp on disk is our own new directory: its mount points are made with it."""
        self.disk_points.append((row["target"], "dir" if is_directory(row) else "file"))
        if "create" in row:
            row["create"] = False
        return bool(row["kind"] != "dir")


def _last_wins(rows: list[Row]) -> list[Row]:
    """Drop rows that a later one on the same target replaces whole.

    A mask must stay on top of what it masks, but the thing below is never seen: one mount less.
    """
    latest: dict[str, int] = {}
    for index, row in enumerate(rows):
        if row["kind"] != "seal":
            latest[row["target"]] = index
    return [row for index, row in enumerate(rows)
            if row["kind"] == "seal" or latest[row["target"]] == index]


def enclosing(target: str, made: dict[str, Row]) -> Row:
    """Return the deepest mounted row above ``target``."""
    current = target
    while current != "/":
        current = current.rpartition("/")[0] or "/"
        row = made.get(current)
        if row is not None and row["kind"] in _MOUNTS:
            return row
    return made["/"]


def _place(row: Row, made: dict[str, Row], done: list[Row]) -> None:
    above = enclosing(row["target"], made)
    if above["kind"] in _OWN:
        for parent in parents(row["target"], above["target"]):
            if parent not in made:
                made[parent] = directory(parent)
                done.append(made[parent])
        if "create" in row:
            row["create"] = True
        return
    if "create" in row:
        row["create"] = False
    if row.get("type") == "mount" or os.path.lexists(row["target"]):
        return
    if row["kind"] in ("cache", "tmpfs") and _is_plain_view(above):
        # A toolchain whose cache lies below it and is still to be made: pnpm's home and its store.
        above.update(kind="overlay", hide=[], dirs=[])
        for name in ("attrs", "type", "recursive", "optional"):
            del above[name]
    if above["kind"] == "overlay" and is_directory(row):
        name = row["target"][len(above["target"].rstrip("/")) + 1:]
        above["dirs"] = sorted({*above["dirs"], name})
        return
    if row["kind"] == "bind" and row["optional"]:
        return
    raise Refused("mount_point_missing",
                  f"mount point {row['target']!r}: does not exist below {above['target']!r}",
                  hint="create the directory on the host, or drop the grant")


def _is_plain_view(row: Row) -> bool:
    """Tell whether an overlay shows the same as this bind: a directory at its own place, read-only."""
    return (row["kind"] == "bind" and row["source"] == row["target"] and row["attrs"] == sorted(READ_ONLY)
            and os.path.isdir(row["source"]))


def is_directory(row: Row) -> bool:
    if row["kind"] in ("bind", "overlay"):
        return os.path.isdir(row["source"])
    return row["kind"] in ("tmpfs", "cache", "proc", "dev", "dir")
