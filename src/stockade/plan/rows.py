"""The vocabulary of the mount table: one function per kind of row.

Rows are plain tables in the shape of schema ``stockade.plan.v1``; a later row wins over an
earlier one of the same depth, a deeper one over a shallower. Owns nothing; fails closed by
having no optional fields: what is not said does not happen. Read next: ``linux.py``.
"""

from __future__ import annotations

from stockade.light import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Row = dict[str, "Any"]

SAFE = ("nodev", "nosuid")
READ_ONLY = ("nodev", "nosuid", "ro")
SEALED = ("nodev", "noexec", "nosuid", "ro")


def bind(source: str, target: str | None = None, *, attrs: Iterable[str] = READ_ONLY,
         kind: str = "any", recursive: bool = True, optional: bool = False,
         idmap: bool = False, owner: tuple[int, int] | None = None, create: bool = False) -> Row:
    """Show an existing file, directory or socket of the host at ``target``."""
    row: Row = {"kind": "bind", "source": source, "target": source if target is None else target,
                "attrs": sorted(attrs), "type": kind, "recursive": recursive,
                "optional": optional, "idmap": idmap, "create": create}
    return _owned(row, owner)


def tmpfs(target: str, *, mode: str = "0755", size_bytes: int, attrs: Iterable[str] = SAFE,
          create: bool = True) -> Row:
    """A private, empty file system in memory."""
    return {"kind": "tmpfs", "target": target, "mode": mode, "size_bytes": size_bytes,
            "attrs": sorted(attrs), "create": create}


def overlay(source: str, *, hide: Iterable[str], dirs: Iterable[str], idmap: bool = False,
            owner: tuple[int, int] | None = None, create: bool = False) -> Row:
    """A read-only view of a directory in which the names of ``hide`` do not exist."""
    row: Row = {"kind": "overlay", "source": source, "target": source, "hide": sorted(set(hide)),
                "dirs": sorted(set(dirs)), "idmap": idmap, "create": create}
    return _owned(row, owner)


def cache(source: str | None, target: str, *, upper: str, work: str, idmap: bool = False,
          owner: tuple[int, int] | None = None, create: bool = True) -> Row:
    """A writable overlay: the user's own cache below, changes in the identity's upper."""
    row: Row = {"kind": "cache", "source": source, "upper": upper, "work": work,
                "target": target, "idmap": idmap, "create": create}
    return _owned(row, owner)


def directory(target: str, mode: str = "0755") -> Row:
    """An empty directory on a tmpfs that the launcher made."""
    return {"kind": "dir", "target": target, "mode": mode}


def symlink(target: str, to: str) -> Row:
    """A symbolic link on a tmpfs that the launcher made."""
    return {"kind": "symlink", "target": target, "to": to}


def file(target: str, content: str, mode: str = "0444") -> Row:
    """A small file on a tmpfs that the launcher made."""
    return {"kind": "file", "target": target, "mode": mode, "content": content}


def proc(covers: Iterable[str]) -> Row:
    """A fresh /proc of the box's own pid namespace, with entries of the host covered."""
    return {"kind": "proc", "target": "/proc", "covers": list(covers)}


def dev(shm_size_bytes: int) -> Row:
    """A private /dev with the harmless devices."""
    return {"kind": "dev", "target": "/dev", "shm_size_bytes": shm_size_bytes}


def seal(target: str) -> Row:
    """Make the tmpfs at ``target`` read-only once everything is on it."""
    return {"kind": "seal", "target": target}


def mask(path: str, *, is_dir: bool) -> Row:
    """Put an unreadable nothing over a path inside a writable bind.

    A character device on a mount with ``nodev`` cannot be opened (EACCES), and an empty
    directory of mode 0000 cannot be listed.
    """
    if is_dir:
        return tmpfs(path, mode="0000", size_bytes=4096, attrs=SEALED, create=False)
    return bind("/dev/null", path, attrs=SEALED, recursive=False)


def depth(path: str) -> int:
    """Number of components; ``/`` is 0. A parameter counts as one."""
    return 0 if path == "/" else path.strip("/").count("/") + 1


def parents(path: str, stop: str) -> list[str]:
    """Return the directories strictly between ``stop`` and ``path``, outermost first."""
    found: list[str] = []
    current = path.rpartition("/")[0]
    while current and current != stop.rstrip("/") and current.startswith(stop.rstrip("/") + "/"):
        found.append(current)
        current = current.rpartition("/")[0]
    return found[::-1]


def _owned(row: Row, owner: tuple[int, int] | None) -> Row:
    if row["idmap"] and owner is not None:
        row["owner"] = list(owner)
    return row
