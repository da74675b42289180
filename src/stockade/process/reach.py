"""Do the file systems that a request names answer?

Owns: finding mounts that another program or machine answers for (FUSE, NFS ...) on the way to what
a request names, and inside its write roots, before anything looks there: a look at one that hangs
may never end, not even by SIGKILL. The launcher looks, in a child that can be left behind; other
mounts are not looked at at all. Fails closed: one that does not answer in time is refused
(``mount_stuck``). Read next: ``launcher/src/look.rs``, ``plan/mountinfo.py``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.light import Iterable, Iterator, Mapping, memo
from stockade.paths import steps
from stockade.plan import mountinfo
from stockade.plan.want import is_below
from stockade.process import _exec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMED = ("read", "write", "hide", "profile", "sockets", "devices")
PATH = (str, bytes, os.PathLike)


def check_named(options: Mapping[str, Any]) -> None:
    """Refuse paths of a request that lead to a file system that does not answer. Raises: Refused(mount_stuck).

    What is no path, or cannot be looked at, is for the request itself to say.
    """
    env = options.get("env")
    home = (env if isinstance(env, Mapping) else os.environ).get("HOME", "")
    paths = [item for name in NAMED for item in _listed(options.get(name))]
    named = [_spelled(item, home) for item in (options.get("cwd") or "", *paths) if isinstance(item, PATH)]
    try:
        # Found once: a warm start does not even read the mount table.
        crossings = _crossings(os.getcwd(), tuple(named))
    except OSError:
        return
    for point, text in crossings:
        _must_answer(point, text)  # who answered before may not now


def _listed(value: Any) -> Iterable[Any]:
    if isinstance(value, PATH):
        return [value]
    return value if isinstance(value, (list, tuple, set, frozenset)) else ()


def _spelled(value: Any, home: str) -> str:
    text = os.fsdecode(value)
    return home + text[1:] if text == "~" or text.startswith("~/") else text


@memo(maxsize=256)
def _crossings(here: str, named: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the distant mounts on the way to each name; the first is the directory from which others count."""
    distant = {mount.point for mount in mountinfo.read() if mount.distant}
    found: list[tuple[str, str]] = []
    for text in named if distant else ():
        for point in crossed(os.path.join(here, named[0], text), distant):
            _must_answer(point, text or here)  # before the way goes on behind it
            found.append((point, text or here))
    return tuple(found)


def check_roots(roots: Iterable[str]) -> None:
    """Refuse write roots in which something is mounted that does not answer. Raises: Refused(mount_stuck)."""
    distant = [mount.point for mount in mountinfo.read() if mount.distant and mount.fstype != "autofs"]
    for root in roots if distant else ():
        for point in distant:
            if is_below(point, root):
                _must_answer(point, root)


def crossed(path: str, points: set[str]) -> Iterator[str]:
    """Yield the mount points of ``points`` on the way along a path, links followed, each before it is entered."""
    return (place for place in steps(path) if place in points)


def _must_answer(point: str, named: str) -> None:
    if not _exec.answers(point):
        raise Refused("mount_stuck", f"mount {point!r}, needed for {named!r}: got no answer, expected one within 3 s",
                      transient=True)
