"""What boxes keep of their tools' caches: how large it is, and what goes when it is too large.

Owns: measuring, the size limit (the least recently used identity goes first), and removal. The
launcher holds a shared lock on an identity's directory while a box of it lives; removal takes the
exclusive one, renames the directory away and lets go, so a start finds it whole or not at all.
Nothing is followed. A look is due once an hour at a start that has caches (``prepare.py``), takes
a bounded time and goes on at the next start. Fails closed: what is in use, or could not be locked, stays.
Read next: ``launcher/src/stores.rs``, ``erase.py``, ``stockade.plan.inputs`` (identities).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

from stockade.frozen import dataclass, field, replace
from stockade.ids import ulid
from stockade.paths import atomic_write
from stockade.process.erase import erase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOKED = ".looked"  # its time: the last whole look; its lock: one look at a time
SIZES = ".sizes.json"
GONE = ".gone-"  # renamed away; nobody uses it any more
BUDGET_S = 0.3
PATH_MAX = 4096  # a tree may be deeper; what lies below is not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What was counted of one identity. ``todo``: directories still to be counted, in the end none."""

    counted_bytes: int = 0
    at_ns: int = 0
    todo: tuple[str, ...] = field(default=(), repr=False)
    settled: bool = False  # whole, and no box was changing it meanwhile


def identities(caches: str) -> dict[str, int]:
    """Return the identities that have a cache, and when each was used last, in nanoseconds."""
    found = {}
    try:
        names = os.listdir(caches)
    except FileNotFoundError:
        return {}
    for name in names:
        info = os.lstat(f"{caches}/{name}")
        if not name.startswith(".") and info.st_mode & 0o170000 == 0o040000:
            found[name] = info.st_mtime_ns
    return found


def look(caches: str, limit_bytes: int, *, spare: str, budget_s: float = BUDGET_S) -> list[str]:
    """Bring the caches below the limit as far as the time goes; return the identities that went.

    Args: limit_bytes: of all identities together, 0 for none; spare: the identity of this start;
    budget_s: seconds to spend, after which the rest is left for the next look. Raises: OSError.
    """
    with _one_at_a_time(caches) as alone:
        if not alone:
            return []
        deadline = time.monotonic() + budget_s
        whole = _sweep(caches, deadline)
        used = identities(caches)
        sizes = measured(caches, used, deadline)
        gone = _over(caches, used, sizes, limit_bytes, spare)
        whole = _sweep(caches, deadline) and whole and not any(size.todo for size in sizes.values())
        if whole:
            os.utime(f"{caches}/{LOOKED}")
        return gone


def measured(caches: str, used: dict[str, int], deadline: float | None = None,
             tick: Callable[[float], None] = lambda done: None) -> dict[str, Size]:
    """Return the size of each identity, counting what is unknown or was used since; keep the answer."""
    sizes = {name: size for name, size in _read(caches).items() if name in used}
    # What was never counted comes first.
    for number, name in enumerate(sorted(used, key=lambda name: name in sizes)):
        size = sizes.get(name, Size())
        if size.settled and size.at_ns > used[name]:
            continue
        if size.settled or not size.todo:
            size = Size(todo=("",))
        sizes[name] = _count(f"{caches}/{name}", size, deadline, partial(tick, number))
    _write(caches, sizes)
    return sizes


def remove(caches: str, name: str) -> bool:
    """Rename an identity's directory away unless a box may use it; ``_sweep`` frees the space.

    Raises: OSError.
    """
    lock = _lock(f"{caches}/{name}", fcntl.LOCK_EX)
    if lock is None:
        return False
    try:
        os.rename(f"{caches}/{name}", f"{caches}/{GONE}{ulid()}")
        return True
    finally:
        os.close(lock)


def sweep(caches: str, tick: Callable[[float], None]) -> None:
    """Free the space of everything that was renamed away, however long it takes."""
    _sweep(caches, None, tick)


def in_use(path: str) -> bool:
    """Tell whether a box that lives may have the identity's caches mounted. Raises: OSError."""
    lock = _lock(path, fcntl.LOCK_EX)
    if lock is not None:
        os.close(lock)
    return lock is None


def _lock(path: str, kind: int) -> int | None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


class _one_at_a_time:
    """The lock of a look; entering gives False when somebody else looks."""

    def __init__(self, caches: str) -> None:
        self._fd = os.open(f"{caches}/{LOOKED}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _over(caches: str, used: dict[str, int], sizes: dict[str, Size], limit_bytes: int, spare: str) -> list[str]:
    """Remove the least recently used until the rest is below the limit; return what went."""
    total = sum(size.counted_bytes for size in sizes.values())
    gone: list[str] = []
    for name in sorted(used, key=used.__getitem__):
        if not limit_bytes or total <= limit_bytes:
            break
        if name != spare and remove(caches, name):
            total -= sizes[name].counted_bytes if name in sizes else 0
            gone.append(name)
    return gone


def _sweep(caches: str, deadline: float | None, tick: Callable[[float], None] = lambda done: None) -> bool:
    for number, name in enumerate(name for name in os.listdir(caches) if name.startswith(GONE)):
        try:
            if not erase(f"{caches}/{name}", deadline=deadline, tick=partial(tick, number)):
                return False
        except OSError:
            continue  # left for the next look, and for a person who looks why
    return True


def _count(path: str, size: Size, deadline: float | None, tick: Callable[[], None]) -> Size:
    """Go on counting where the last look stopped; at least one directory a time."""
    todo, counted = list(size.todo), size.counted_bytes
    at_ns = size.at_ns or time.time_ns()
    while todo:
        tick()
        place = todo.pop()
        for name, blocks in _entries(path, place):
            if blocks is None:
                todo.append(os.path.join(place, name))
            else:
                counted += blocks * 512
        if deadline is not None and time.monotonic() > deadline:
            break
    return Size(counted_bytes=counted, at_ns=at_ns, todo=tuple(todo), settled=not todo and not in_use(path))


def _entries(path: str, place: str) -> list[tuple[str, int | None]]:
    """Return each name with what it takes (a file of several names: its part), None for a directory."""
    try:
        directory = _descend(path, place)
    except OSError:
        return []  # gone, no directory any more, or one that overlayfs keeps to itself
    try:
        with os.scandir(directory) as entries:
            return [item for entry in entries for item in _taken(entry)]
    finally:
        os.close(directory)


def _descend(path: str, place: str) -> int:
    """Open a directory component by component: a box may have put a link to elsewhere at any of them since."""
    if len(place) >= PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), place)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    directory = os.open(path, flags)
    for name in filter(None, place.split("/")):
        outer = directory
        try:
            directory = os.open(name, flags, dir_fd=outer)
        finally:
            os.close(outer)
    return directory


def _taken(entry: os.DirEntry[str]) -> Iterator[tuple[str, int | None]]:
    if entry.is_dir(follow_symlinks=False):
        yield entry.name, None
        return
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    yield entry.name, info.st_blocks // max(1, info.st_nlink)


def _read(caches: str) -> dict[str, Size]:
    try:
        with open(f"{caches}/{SIZES}", "rb") as stream:
            data: dict[str, dict[str, Any]] = json.load(stream)
        return {name: replace(Size(**row), todo=tuple(row["todo"])) for name, row in data.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # counted anew


def _write(caches: str, sizes: dict[str, Size]) -> None:
    rows = {name: {"counted_bytes": size.counted_bytes, "at_ns": size.at_ns, "todo": size.todo,
                   "settled": size.settled} for name, size in sizes.items()}
    try:
        atomic_write(f"{caches}/{SIZES}", json.dumps(rows).encode())
    except OSError:
        return  # a full disk costs the next look its time, nothing else
