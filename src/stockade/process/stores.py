"""What boxes keep of their tools' caches: what goes when it is too large.

Owns: the size limit (the least recently used identity goes first), and removal. The launcher holds
a shared lock on an identity's directory while a box of it lives; removal takes the exclusive one,
renames the directory away and lets go, so a start finds it whole or not at all. A look is due once
an hour at a start that has caches (``prepare.py``), takes a bounded time and goes on at the next
start. Fails closed: what is in use, or could not be locked, stays; what has more names than are
counted goes. Read next: ``storelock.py``, ``sizes.py``, ``erase.py``, ``launcher/src/stores.rs``.
"""

from __future__ import annotations

import os
import time
from functools import partial

from stockade.ids import ulid
from stockade.light import Callable
from stockade.process.erase import erase
from stockade.process.sizes import Size, is_whole, measured
from stockade.process.storelock import LOOKED, hold, one_at_a_time

GONE = ".gone-"  # renamed away; nobody uses it any more
BUDGET_S = 0.3


def identities(caches: str) -> dict[str, int]:
    """Return the identities that have a cache, and when each was used last, in nanoseconds."""
    found = {}
    try:
        names = os.listdir(caches)
    except FileNotFoundError:
        return {}
    for name in names:
        try:
            info = os.lstat(f"{caches}/{name}")
        except FileNotFoundError:
            continue  # removed meanwhile
        if not name.startswith(".") and info.st_mode & 0o170000 == 0o040000:
            found[name] = info.st_mtime_ns
    return found


def look(caches: str, limit_bytes: int, *, spare: str, budget_s: float = BUDGET_S) -> list[str]:
    """Bring the caches below the limit as far as the time goes; return the identities that went.

    Args: limit_bytes: of all identities together, 0 for none; spare: the identity of this start;
    budget_s: seconds to spend, after which the rest is left for the next look. Raises: OSError.
    """
    with one_at_a_time(caches) as alone:
        if not alone:
            return []
        deadline = time.monotonic() + budget_s
        whole = _sweep(caches, deadline)
        used = identities(caches)
        sizes = measured(caches, used, deadline)
        gone = _over(caches, used, sizes, limit_bytes, spare)
        if _sweep(caches, deadline) and whole and is_whole(used, sizes):
            os.utime(f"{caches}/{LOOKED}")
        return gone


def remove(caches: str, name: str) -> bool:
    """Rename an identity's directory away unless a box may use it; ``sweep`` frees the space.

    One that somebody else removed is removed. Raises: OSError.
    """
    try:
        lock = hold(f"{caches}/{name}")
    except FileNotFoundError:
        return True
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


def _over(caches: str, used: dict[str, int], sizes: dict[str, Size], limit_bytes: int, spare: str) -> list[str]:
    """Remove what is beyond counting, then the least recently used until the rest fits; return what went."""
    taken = {name: limit_bytes + 1 if size.more else size.counted_bytes for name, size in sizes.items()}
    total = sum(taken.values())
    gone: list[str] = []
    for name in sorted(used, key=lambda name: (name not in sizes or not sizes[name].more, used[name])):
        if not limit_bytes or total <= limit_bytes:
            break
        if name != spare and remove(caches, name):
            total -= taken.get(name, 0)
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
