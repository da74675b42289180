"""Whether a path is on one of the reviewed lists, at whatever tier a box is.

Owns: the question that a proposal of grants has to ask: a credential store, a place that runs code
later, a control socket. Fails closed: a directory that holds a listed store counts as one to be
asked about. Read next: ``needs.py``.
"""

from __future__ import annotations

import os
import re

from stockade.frozen import replace
from stockade.plan import hiding
from stockade.plan.want import Want, is_below
from stockade.rules.load import Entry, load_list
from stockade.rules.match import matches
from stockade.rules.moves import locations
from stockade.rules.tiers import Tier
from stockade.rules.voiding import socket_names


class Listed:
    """The lists, laid over this host and this user."""

    def __init__(self, want: Want) -> None:
        self._want = want
        # As at guarded and without grants: what is granted already is still on the list.
        plain = replace(want, tier=Tier.guarded, read=(), write=(), caches=(), asked=frozenset(), hide=())
        self._there = tuple(item for item in hiding.collect(plain) if item.there)
        self._stores = [(_literal(place), entry, place) for entry in load_list("credentials")
                        for place in locations(entry, want.home, want.env)]
        self._points = [(_literal(place), entry, place) for entry in load_list("persistence") if entry.scope == "home"
                        for home in want.homes for name in (entry.path, *entry.report) for place in (f"{home}/{name}",)]

    def secret(self, path: str) -> str | None:
        """Return the entry of credentials.toml that a path belongs to, or ``own state``."""
        for item in self._there:
            if is_below(path, item.path) and not (path != item.path and hiding.stays(path, item)):
                return item.why
        path = os.path.normpath(path)
        return next((entry.id for literal, entry, place in self._stores
                     if path.startswith(literal) and _of_store(path, place, entry)), None)

    def runs_later(self, path: str) -> str | None:
        """Return the entry of persistence.toml that changing a path of the home would touch, or ``PATH``."""
        if any(is_below(path, directory) for directory in self._want.env.get("PATH", "").split(":") if directory):
            return "PATH"
        path = os.path.normpath(path)
        return next((entry.id for literal, entry, place in self._points
                     if path.startswith(literal) and _within(path, place) is not None), None)

    def control_socket(self, path: str) -> str | None:
        """Return the name of a control socket that a path is."""
        names = socket_names(path, self._want.home, self._want.env)
        return names[0] if names else None

    def holds_secret(self, directory: str) -> bool:
        """Tell whether a listed store that exists lies in a directory."""
        return any(item.path != directory and is_below(item.path, directory) for item in self._there)


def _literal(pattern: str) -> str:
    """Return what every name of a pattern begins with: a run may have thousands of names to ask about."""
    return re.split(r"[*?[]", pattern, maxsplit=1)[0].rstrip("/")


def _of_store(path: str, place: str, entry: Entry) -> bool:
    rest = _within(path, place)
    if rest is None:
        return False
    return not (rest and entry.keep and hiding.kept_name(rest[0], entry.keep))


def _within(path: str, pattern: str) -> list[str] | None:
    """Return the components of a path behind what a pattern names, or None."""
    deep = pattern.removesuffix("/**")
    wanted, found = deep.split("/"), path.split("/")
    if len(found) < len(wanted) or not all(matches(part, rule) for part, rule in zip(found, wanted, strict=False)):
        return None
    return found[len(wanted):]
