"""The layer of an overlay that hides, worked out as the launcher makes it, and what tells layers apart.

Owns: names that do not exist in the box although the host has them, and directories that always
do. Fails closed: a name that cannot be looked at is hidden. Read next: ``boxwalk.py``,
``launcher/src/steps/overlay.rs``.
"""

from __future__ import annotations

import os

from stockade.plan.rows import Row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def veil(lower: int, row: Row) -> dict[str, Any]:
    """Return name -> None (a whiteout) or the table of a directory.

    Args: lower: descriptor of the host's directory; row: an overlay row.
    """
    top: dict[str, Any] = {}
    for place, mount_point in (*((name, True) for name in row["dirs"]), *((name, False) for name in row["hide"])):
        _descend(top, lower, place.split("/"), mount_point=mount_point)
    return top


def _descend(here: dict[str, Any], lower: int, parts: list[str], *, mount_point: bool) -> None:
    """A parent that the host does not have is itself whited out; a directory that is there stays."""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        is_dir = mount_point or (not last and _is_dir(lower, parts[:index + 1]))
        if here.get(part) is None and not (is_dir and part not in here):
            here.setdefault(part, None)
            return
        here = here.setdefault(part, {})


def _is_dir(lower: int, parts: list[str]) -> bool:
    opened: list[int] = []
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
    try:
        for part in parts:
            opened.append(os.open(part, flags, dir_fd=opened[-1] if opened else lower))
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


def mount_id(descriptor: int) -> int:
    """Return the id of the mount that an object was opened through. Source: proc_pid_fdinfo(5)."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith("mnt_id:"))


def is_opaque(descriptor: int | None) -> bool:
    """Tell whether a directory of a cache's upper layer hides what lies below it."""
    try:
        return os.getxattr(f"/proc/self/fd/{descriptor}", "user.overlay.opaque") == b"y"
    except OSError:
        return False
