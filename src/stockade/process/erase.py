"""Removing a tree that hostile code filled.

Owns: unlinking without following a link, whatever modes and depth a box left behind, and stopping
in time. Fails closed: what cannot be removed stays where it is and the caller hears of it.
"""

from __future__ import annotations

import os
import time

from stockade.ids import ulid
from stockade.light import Callable, Iterator


class _Late(Exception):
    """The time was up."""


def erase(path: str, *, deadline: float | None = None, tick: Callable[[], None] | None = None) -> bool:
    """Remove a tree; return False if the time was up before its end. Raises: OSError.

    Each round empties the directories of the top and lifts their subdirectories to it, so a tree
    of a million levels costs neither stack nor descriptors, and a directory of a million names no memory.
    Args: deadline: of ``time.monotonic``, looked at before each name; tick: called once for each directory.
    """
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        lifted = ulid()  # no name that the box could have chosen
        number, before = 0, -1
        while number != before:
            before = number
            for name in _clear(top, deadline):
                if tick is not None:
                    tick()
                number = _flatten(top, name, f"{lifted}.", number + 1, deadline)
        os.rmdir(path)
        return True
    except _Late:
        return False
    finally:
        os.close(top)


def _clear(directory: int, deadline: float | None) -> Iterator[str]:
    """Unlink everything but directories; yield the names of those, opened up for their owner."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if deadline is not None and time.monotonic() > deadline:
                raise _Late
            if entry.is_dir(follow_symlinks=False):
                _unlock(directory, entry.name)
                yield entry.name
            else:
                os.unlink(entry.name, dir_fd=directory)


def _unlock(parent: int, name: str) -> None:
    """chmod u+rwx through a descriptor: the box may have left mode 0, and chmod follows links."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _flatten(top: int, name: str, lifted: str, number: int, deadline: float | None) -> int:
    """Remove a directory of the top, its own directories lifted; return the next number for a name."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        for inner in _clear(fd, deadline):
            os.rename(inner, f"{lifted}{number}", src_dir_fd=fd, dst_dir_fd=top)
            number += 1
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top)
    return number
