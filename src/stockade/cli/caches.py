"""``stockade cache``: what boxes keep of their tools' caches.

Owns: listing and removal of cache uppers in the state home. Fails closed: a cache that a live box
may have mounted stays (an overlay whose upper vanishes is undefined); names are ours, nothing is
followed. Read next: ``stockade.plan.inputs``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stockade.cli.grammar import Parsed, usage
from stockade.cli.output import Progress, emit, say, size, table
from stockade.cli.request import state_home
from stockade.errors import ConfigError, nearest
from stockade.frozen import dataclass
from stockade.paths import is_below
from stockade.plan.linux import SCRATCH

OWNER_FILE = "identity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """The caches of one identity."""

    identity: str
    path: Path
    names: tuple[str, ...]
    size_bytes: int
    profiles: tuple[str, ...] = ()
    workspace: str = ""


def listing(parsed: Parsed) -> int:
    """List caches, whose they are, and their size."""
    found = _found()
    if parsed.flag("json"):
        emit("stockade.caches.v1", {"caches": [_plain(item) for item in found]})
        return 0
    say(f"{len(found)} cache{'' if len(found) == 1 else 's'}, {size(sum(item.size_bytes for item in found))}")
    table([(c.identity, size(c.size_bytes), " ".join(c.names), " ".join(c.profiles) or "-", c.workspace or "-")
           for c in found], head=("ID", "SIZE", "CACHES", "PROFILES", "WORKSPACE") if found else ())
    return 0


def clear(parsed: Parsed) -> int:
    """Remove caches that no live box uses."""
    if parsed.flag("all") == bool(parsed.words):
        raise usage(f"{parsed.path}: expected cache ids or --all", hint="stockade cache list shows them")
    found = _found()
    chosen = found if parsed.flag("all") else [_pick(found, word) for word in parsed.words]
    busy = _in_use(chosen)
    gone = [item for item in chosen if item not in busy]
    if not parsed.flag("dry_run"):
        with Progress("removing", len(gone)) as bar:
            for number, item in enumerate(gone):
                _remove(item.path, partial(bar.step, number))
    if parsed.flag("json"):
        emit("stockade.cache-clear.v1", {"removed": [_plain(item) for item in gone], "dry_run": parsed.flag("dry_run"),
                                         "in_use": [item.identity for item in busy]})
    else:
        say(f"{len(gone)} cache{'' if len(gone) == 1 else 's'} {'would be ' if parsed.flag('dry_run') else ''}removed, "
            f"{size(sum(item.size_bytes for item in gone))}")
        for item in busy:
            say(f"  {item.identity} stays: a live box uses it")
    return 1 if busy else 0


def _plain(item: Cached) -> dict[str, Any]:
    return {"id": item.identity, "path": str(item.path), "caches": list(item.names), "size_bytes": item.size_bytes,
            "profiles": list(item.profiles), "workspace": item.workspace}


def _found() -> list[Cached]:
    base = Path(state_home().caches)
    names = sorted(os.listdir(base)) if base.is_dir() else []
    found = []
    with Progress("measuring", len(names)) as bar:
        for number, name in enumerate(names):
            path = base / name
            if path.is_dir() and not path.is_symlink():
                found.append(_cached(path, partial(bar.step, number)))
    return found


def _cached(path: Path, tick: Callable[[], None]) -> Cached:
    owner = _owner(path / OWNER_FILE)
    names = tuple(sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)))
    return Cached(identity=path.name, path=path, names=names, size_bytes=sum(_sizes(str(path), tick)),
                  profiles=tuple(map(str, owner.get("profiles", ()))), workspace=str(owner.get("workspace", "")))


def _owner(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _sizes(path: str, tick: Callable[[], None]) -> Iterator[int]:
    """Yield what each file really takes; a directory that overlayfs keeps to itself counts nothing."""
    tick()
    try:
        entries = list(os.scandir(path))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _sizes(entry.path, tick)
        else:
            yield entry.stat(follow_symlinks=False).st_blocks * 512


def _pick(found: list[Cached], word: str) -> Cached:
    hits = [item for item in found if item.identity == word or (len(word) >= 6 and item.identity.startswith(word))]
    if len(hits) != 1:
        raise ConfigError("value_invalid", f"cache {word!r}: got {len(hits)} caches of that id, expected one",
                          hint=nearest(word, [item.identity for item in found]))
    return hits[0]


def _in_use(found: list[Cached]) -> list[Cached]:
    """Return the caches that a live box may have mounted.

    The kernel shows an overlay by descriptors that were valid in the launcher alone, so the
    identity is compared: the same profiles, and a working directory in the same workspace or none.
    """
    from stockade.process.spool import runs

    live = [run.launch for run in runs(Path(state_home().audit)).values() if run.launch and run.supervisor is not None]
    return [item for item in found if any(_may_use(item, launch) for launch in live)]


def _may_use(item: Cached, launch: Mapping[str, Any]) -> bool:
    cwd = str(launch.get("cwd", ""))
    inside = not item.workspace or is_below(cwd, item.workspace) or is_below(cwd, SCRATCH)
    return inside and tuple(launch.get("profiles", ())) == item.profiles


def _remove(path: Path, tick: Callable[[], None]) -> None:
    """Remove a tree of ours. Overlayfs leaves a directory of mode 0000; its owner may open it again."""
    for root, directories, _ in os.walk(path):
        tick()
        for name in directories:
            place = os.path.join(root, name)
            if not os.path.islink(place) and os.lstat(place).st_mode & 0o700 != 0o700:
                os.chmod(place, 0o700)
    shutil.rmtree(path)
