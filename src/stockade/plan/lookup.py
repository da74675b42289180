"""What a path of the host is in the box of a plan.

Owns: reading a mount table the way the kernel will apply it: the deepest row above a path decides,
of equal ones the last. A pure function of the plan. Fails closed: what no row shows is absent.
Read next: ``table.py`` (how the rows came about), ``stockade.cli.why``.
"""

from __future__ import annotations

import os

from stockade.frozen import dataclass
from stockade.light import Mapping
from stockade.plan.rows import Row
from stockade.plan.want import is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LINKS = 40  # as the kernel: path_resolution(7)

# What a path is in the box.
SAME = "same_object"  # the host's own object
CACHE = "cache"  # the host's object below a private upper
PRIVATE = "private"  # another object under that name
MASKED = "masked"  # there, and unreadable
ABSENT = "absent"  # not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """``writable``: the mounts allow changing it. ``row``: the row that decided.

    ``guard``: the guard that makes it read-only; ``hidden``: the name that an overlay takes away.
    """

    path: str
    state: str
    writable: bool = False
    row: Row | None = None
    guard: str | None = None
    hidden: str | None = None


class View:
    """One plan with its parameters filled in."""

    def __init__(self, plan: Mapping[str, Any], binds: Mapping[str, str]) -> None:
        self._binds = dict(binds)
        self._rules = None if plan["backend"] != "landlock" else [
            (self._fill(rule["path"]), rule["access"]) for rule in plan["landlock"]["rules"]]
        self._rows = [self._filled(row) for row in plan["mounts"] if row["kind"] != "seal"]
        self._guards = {self._fill(guard["path"]) for guard in plan["guards"] if guard["read_only"]}
        self._sealed = {row["target"] for row in plan["mounts"] if row["kind"] == "seal"}

    def _fill(self, text: str) -> str:
        if not text.startswith("@"):
            return text
        name, slash, rest = text[1:].partition("/")
        return self._binds.get(name, text) + slash + rest

    def _filled(self, row: Row) -> Row:
        names = ("source", "target", "upper", "work")
        return {**row, **{name: self._fill(row[name]) for name in names if isinstance(row.get(name), str)}}

    @staticmethod
    def _by_rules(path: str, rules: list[tuple[str, str]]) -> Seen:
        """Without namespaces every name is the host's; what no rule gives is there and cannot be opened."""
        given = {access for place, access in rules if is_below(path, place)}
        if not given:
            return Seen(path=path, state=ABSENT)
        return Seen(path=path, state=SAME, writable=bool(given & {"write", "device"}))

    def look(self, path: str) -> Seen:
        """Return what an absolute path is in the box; links that the box itself has are followed."""
        if self._rules is not None:
            return self._by_rules(path, self._rules)
        for _ in range(MAX_LINKS):
            row = self._row(path)
            if row is None:
                return Seen(path=path, state=ABSENT)
            if row["kind"] != "symlink":
                return self._seen(path, row)
            rest = path[len(row["target"]):]
            path = os.path.normpath(os.path.join(os.path.dirname(row["target"]), row["to"]) + rest)
        return Seen(path=path, state=ABSENT)

    def _row(self, path: str) -> Row | None:
        best: Row | None = None
        for row in self._rows:
            if is_below(path, row["target"]) and (best is None or len(row["target"]) >= len(best["target"])):
                best = row
        return best

    def _seen(self, path: str, row: Row) -> Seen:
        kind, rest = row["kind"], path[len(row["target"].rstrip("/")):].lstrip("/")
        if kind == "bind":
            return self._bind(path, row, rest)
        if kind == "overlay":
            return self._overlay(path, row, rest)
        if kind == "cache":
            return Seen(path=path, state=CACHE, writable=True, row=row)
        if kind == "tmpfs" and row["mode"] == "0000":
            return Seen(path=path, state=MASKED, row=row)
        if kind in ("proc", "dev"):
            return Seen(path=path, state=PRIVATE, row=row)
        writable = kind == "tmpfs" and "ro" not in row["attrs"] and row["target"] not in self._sealed
        # Below a private place only what other rows put there exists.
        there = not rest or any(is_below(other["target"], path) for other in self._rows)
        return Seen(path=path, state=PRIVATE if there else ABSENT, writable=writable, row=row)

    def _bind(self, path: str, row: Row, rest: str) -> Seen:
        if row["source"] == "/dev/null" and row["target"] != "/dev/null":
            return Seen(path=path, state=MASKED, row=row)
        place = os.path.join(row["source"], rest) if rest else row["source"]
        if row["optional"] and not os.path.lexists(row["source"]):
            return Seen(path=path, state=ABSENT, row=row)
        guard = next((item for item in sorted(self._guards) if is_below(path, item)), None)
        writable = "ro" not in row["attrs"] and guard is None
        return Seen(path=path, state=SAME if place == path else PRIVATE, writable=writable, row=row, guard=guard)

    def _overlay(self, path: str, row: Row, rest: str) -> Seen:
        for name in row["hide"]:
            if rest and is_below(rest, name):
                return Seen(path=path, state=ABSENT, row=row, hidden=os.path.join(row["target"], name))
        return Seen(path=path, state=SAME, row=row)
