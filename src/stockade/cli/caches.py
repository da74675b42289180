"""``stockade cache``: what boxes keep of their tools' caches.

Owns: what is listed, and which of them the words mean. Fails closed: a cache that a live box has
mounted stays (an overlay whose upper vanishes is undefined). Read next: ``stockade.process.stores``.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from stockade.cli.grammar import Parsed, usage
from stockade.cli.output import Progress, age, emit, say, size, table
from stockade.cli.request import cache_limit, state_home
from stockade.errors import ConfigError, nearest
from stockade.frozen import dataclass
from stockade.process import stores
from stockade.process.sizes import measured
from stockade.process.storelock import in_use, one_at_a_time

OWNER_FILE = "identity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """The caches of one identity."""

    identity: str
    path: Path
    names: tuple[str, ...]
    size_bytes: int
    used_s: int
    in_use: bool
    profiles: tuple[str, ...] = ()
    workspace: str = ""


def listing(parsed: Parsed) -> int:
    """List caches, whose they are, their size and the limit."""
    found, limit = _found(), cache_limit()
    if parsed.flag("json"):
        emit("stockade.caches.v1", {"limit_bytes": limit or None, "caches": [_plain(item) for item in found]})
        return 0
    say(f"{_count(found)}, {_total(found)} of at most {size(limit)}" if limit else f"{_count(found)}, {_total(found)}")
    now = time.time()
    table([(c.identity, size(c.size_bytes), "now" if c.in_use else f"{age(now - c.used_s)} ago", " ".join(c.names),
            " ".join(c.profiles) or "-", c.workspace or "-") for c in found],
          head=("ID", "SIZE", "USED", "CACHES", "PROFILES", "WORKSPACE") if found else ())
    return 0


def clear(parsed: Parsed) -> int:
    """Remove caches that no live box uses."""
    if parsed.flag("all") == bool(parsed.words):
        raise usage(f"{parsed.path}: expected cache ids or --all", hint="stockade cache list shows them")
    dry = parsed.flag("dry_run")
    gone, busy = _cleared(parsed.words, dry=dry)
    if parsed.flag("json"):
        emit("stockade.cache-clear.v1", {"removed": [_plain(item) for item in gone], "dry_run": dry,
                                         "in_use": [item.identity for item in busy]})
    else:
        say(f"{_count(gone)} {'would be ' if dry else ''}removed, {_total(gone)}")
        for item in busy:
            say(f"  {item.identity} stays: a live box uses it")
    return 1 if busy else 0


def _cleared(words: tuple[str, ...], *, dry: bool) -> tuple[list[Cached], list[Cached]]:
    """Remove the caches of these ids, all without any; return those that went and those in use."""
    base = _base()
    # A start's look at the size lets us be; ours waits for its end.
    with contextlib.nullcontext() if dry or not os.path.isdir(base) else one_at_a_time(base, wait=True):
        found = _found()
        chosen = [_pick(found, word) for word in words] if words else found
        gone = [item for item in chosen if (not item.in_use if dry else stores.remove(base, item.identity))]
        if gone and not dry:
            with Progress("removing", len(gone)) as bar:
                stores.sweep(base, bar.step)
    return gone, [item for item in chosen if item not in gone]


def _count(found: list[Cached]) -> str:
    return f"{len(found)} cache{'' if len(found) == 1 else 's'}"


def _total(found: list[Cached]) -> str:
    return size(sum(item.size_bytes for item in found))


def _plain(item: Cached) -> dict[str, Any]:
    return {"id": item.identity, "path": str(item.path), "caches": list(item.names), "size_bytes": item.size_bytes,
            "used": item.used_s, "in_use": item.in_use, "profiles": list(item.profiles), "workspace": item.workspace}


def _found() -> list[Cached]:
    base = _base()
    used = stores.identities(base)
    with Progress("measuring", len(used)) as bar:
        sizes = measured(base, used, tick=bar.step) if used else {}
    every = (_cached(base, name, used[name], sizes[name].counted_bytes) for name in sorted(used))
    return [item for item in every if item is not None]


def _base() -> str:
    return os.path.realpath(state_home().caches)


def _cached(base: str, name: str, used_ns: int, size_bytes: int) -> Cached | None:
    path = Path(base, name)
    owner = _owner(path / OWNER_FILE)
    try:
        names = tuple(sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)))
    except FileNotFoundError:
        return None  # removed while others were measured
    return Cached(identity=name, path=path, names=names, size_bytes=size_bytes, used_s=used_ns // 10**9,
                  in_use=in_use(str(path)), profiles=tuple(map(str, owner.get("profiles", ()))),
                  workspace=str(owner.get("workspace", "")))


def _owner(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _pick(found: list[Cached], word: str) -> Cached:
    hits = [item for item in found if item.identity == word or (len(word) >= 6 and item.identity.startswith(word))]
    if len(hits) != 1:
        raise ConfigError("value_invalid", f"cache {word!r}: got {len(hits)} caches of that id, expected one",
                          hint=nearest(word, [item.identity for item in found]))
    return hits[0]
