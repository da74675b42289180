"""Which symbolic links a path leads through.

A link inside a write root is a word of the tree, which may come out of an archive or from an
earlier box: it may be guarded, but it may not lead a grant out of the tree. Fails closed: a chain
longer than the kernel follows ends where it was cut. Source: path_resolution(7).
"""

from __future__ import annotations

import os

from stockade.light import Iterable
from stockade.plan.want import below_any

MAX_LINKS = 40


def trail(path: str) -> tuple[tuple[str, ...], str]:
    """Return the canonical places of the links that ``path`` leads through, and where it ends."""
    links: list[str] = []
    left = path.split("/")[::-1]
    place = ""
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = place.rpartition("/")[0]
            continue
        current = f"{place}/{name}"
        try:
            target = os.readlink(current)
        except OSError:
            place = current
            continue
        links.append(current)
        if len(links) > MAX_LINKS:
            return tuple(links), current
        if target.startswith("/"):
            place = ""
        left.extend(target.split("/")[::-1])
    return tuple(links), place or "/"


def leads_out(path: str, roots: Iterable[str]) -> str | None:
    """Return the link inside one of ``roots`` through which ``path`` ends outside all of them."""
    inside = tuple(roots)
    links, end = trail(path)
    if below_any(end, inside):
        return None
    return next((link for link in links if below_any(link, inside)), None)
