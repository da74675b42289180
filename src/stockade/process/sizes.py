"""How large what boxes keep of their tools' caches is.

Owns: counting in bounded time, over several looks, and the note of what was counted. Nothing is
followed. Fails closed: an identity with more names than are counted is told as such (``more``), and
its remover takes it for larger than any limit. Read next: ``stores.py``.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import contextmanager
from functools import partial
from itertools import islice

from stockade.frozen import dataclass, field, replace
from stockade.light import Callable, Iterator
from stockade.paths import atomic_write
from stockade.process.storelock import in_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZES = ".sizes.json"
PATH_MAX = 4096  # a tree may be deeper; what lies below is not counted
BATCH = 256  # names between two looks at the clock, and what each look counts at least
LEFT_MAX = 1 << 20  # characters of what is still to be counted: the note stays short
NAMES_MAX = 200_000  # of one directory: as many are passed over again when a look goes on in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What was counted of one identity.

    ``todo``: directories still to be counted, in the end none; ``done``: names of the last of them
    that were counted; ``settled``: whole, and no box was changing it meanwhile; ``more``: not whole.
    """

    counted_bytes: int = 0
    at_ns: int = 0
    todo: tuple[str, ...] = field(default=(), repr=False)
    done: int = 0
    settled: bool = False
    more: bool = False


def measured(caches: str, used: dict[str, int], deadline: float | None = None,
             tick: Callable[[float], None] = lambda done: None) -> dict[str, Size]:
    """Return the size of each identity, counting what is unknown or was used since; keep the answer.

    Past the deadline the rest is left out, or stays as it was counted last.
    """
    sizes = {name: size for name, size in read(caches).items() if name in used}
    # What was begun comes first, so that the note holds one beginning; then what was never counted.
    order = sorted(used, key=lambda name: (not (name in sizes and sizes[name].todo), name in sizes))
    for number, name in enumerate(order):
        size = sizes.get(name, Size())
        if size.settled and size.at_ns > used[name]:
            continue
        if size.settled or not size.todo:
            size = Size(todo=("",), at_ns=time.time_ns())
        sizes[name] = _Count(f"{caches}/{name}", size).go_on(deadline, partial(tick, number))
        if _past(deadline):
            break
    _write(caches, sizes)
    return sizes


def is_whole(used: dict[str, int], sizes: dict[str, Size]) -> bool:
    """Tell whether nothing is left to count."""
    return all(name in sizes and not sizes[name].todo for name in used)


class _Count:
    """The counting of one identity. Args: size: where the last look stopped."""

    def __init__(self, path: str, size: Size) -> None:
        self._path, self._size = path, size
        self._todo, self._bytes, self._more = list(size.todo), size.counted_bytes, size.more
        self._room = LEFT_MAX - sum(map(len, size.todo))

    def go_on(self, deadline: float | None, tick: Callable[[], None]) -> Size:
        """Count until the end or the deadline; at least one batch of names."""
        done = self._size.done
        while self._todo:
            tick()
            done = self._directory(self._todo[-1], done, deadline)
            if not done:
                self._room += len(self._todo.pop())
            if _past(deadline):
                break
        whole = not self._todo
        return replace(self._size, counted_bytes=self._bytes, todo=tuple(self._todo), done=done, more=self._more,
                       settled=whole and not in_use(self._path))

    def _directory(self, place: str, done: int, deadline: float | None) -> int:
        """Count the names of a directory after the first ``done``; return how many are counted now, 0 for all."""
        with _listing(self._path, place) as entries:
            rest = islice(entries, done, NAMES_MAX)
            while batch := list(islice(rest, BATCH)):
                for entry in batch:
                    self._take(place, entry)
                done += len(batch)
                if len(batch) == BATCH and _past(deadline):
                    return done
            self._more |= next(entries, None) is not None
        return 0

    def _take(self, place: str, entry: os.DirEntry[str]) -> None:
        """Count one name (a file of several names: its part), or keep a directory for later."""
        if not entry.is_dir(follow_symlinks=False):
            self._bytes += _taken(entry)
            return
        inner = os.path.join(place, entry.name)
        self._room -= len(inner)
        if self._room < 0:
            self._more = True
        else:
            self._todo.insert(len(self._todo) - 1, inner)  # below the one that is being counted


def _past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


@contextmanager
def _listing(path: str, place: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Open a directory's names; none of one that cannot be opened."""
    try:
        directory = _descend(path, place)
    except OSError:
        yield iter(())  # gone, no directory any more, or one that overlayfs keeps to itself
        return
    try:
        with os.scandir(directory) as entries:
            yield entries
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


def _taken(entry: os.DirEntry[str]) -> int:
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    return info.st_blocks // max(1, info.st_nlink) * 512


def read(caches: str) -> dict[str, Size]:
    """Return what was counted last; nothing when the note is spoilt."""
    try:
        with open(f"{caches}/{SIZES}", "rb") as stream:
            data: dict[str, dict[str, Any]] = json.load(stream)
        return {name: replace(Size(**row), todo=tuple(row["todo"])) for name, row in data.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # counted anew


def _write(caches: str, sizes: dict[str, Size]) -> None:
    rows = {name: {"counted_bytes": size.counted_bytes, "at_ns": size.at_ns, "todo": size.todo, "done": size.done,
                   "settled": size.settled, "more": size.more} for name, size in sizes.items()}
    try:
        atomic_write(f"{caches}/{SIZES}", json.dumps(rows).encode())
    except OSError:
        return  # a full disk costs the next look its time, nothing else
