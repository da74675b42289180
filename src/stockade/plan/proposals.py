"""The smallest grants that meet what a command needed.

Owns: grouping names into directories, and the choice between a grant and a cache. Fails closed:
many names become their directory only where that shows no listed store and nothing that others
share; the home is never proposed, nor one of its base directories. Nothing here has been tried yet.
Read next: ``stockade.cli.learn``, which tries each proposal before it is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from stockade.frozen import dataclass
from stockade.plan.hiding import parents
from stockade.plan.listed import Listed
from stockade.plan.needs import Need, nearest_directory
from stockade.plan.want import below_any, is_below
from stockade.rules.roots import is_shared, is_system

# So many names in one directory are the directory.
MANY = 3
# Directories of the home that belong to every program; what lies in one belongs to one of them.
BASES = (".cache", ".config", ".local", ".local/share", ".local/state", ".local/lib", ".local/bin")
# What is written there is a tool's own data: a private layer serves it as well as the user's own.
_DATA = (".cache", ".local/share", ".local/state")
_NO_FILE = "a file of its own in a shared directory: a grant cannot follow a file that is replaced"
_NO_BASE = "every program's directory, which no grant makes: make it yourself, then learn again"
_WIDE = "the directory is too wide to be granted unseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """``kind``: ``read``, ``write``, ``cache``, ``sockets`` or ``net``; ``needs``: what it is for."""

    kind: str
    value: str
    needs: tuple[Need, ...] = ()
    plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A need that is told and not proposed. ``option``: what would grant it; empty: nothing does."""

    need: Need
    why: str
    option: tuple[str, ...] = ()


class Proposer:
    """Makes proposals of needs. Args: homes: the user's; workspace: what lies around it is no tool's own."""

    def __init__(self, listed: Listed, homes: tuple[str, ...], workspace: str) -> None:
        self._listed, self._homes = listed, homes
        self._around = (*homes, workspace)
        self._bases = frozenset(f"{home}/{base}" for home in homes for base in BASES)
        self.apart: list[Apart] = []

    def make(self, needs: Iterable[Need]) -> tuple[Proposal, ...]:
        """Return the proposals; ``apart`` holds what is only told."""
        open_: list[Need] = []
        for need in needs:
            if need.why_not:
                self.apart.append(Apart(need=need, why=need.why_not, option=need.option))
            else:
                open_.append(need)
        if any(need.kind == "net" for need in open_):
            self.apart = [item for item in self.apart if item.need.kind != "net"]
        kinds = {kind: [need for need in open_ if need.kind == kind] for kind in ("read", "write", "socket", "net")}
        changes = self._changes(kinds["write"])
        reads = self._reads(kinds["read"], [change.value for change in changes])
        sockets = [Proposal(kind="sockets", value=need.path, needs=(need,)) for need in kinds["socket"]]
        net = [Proposal(kind="net", value="host", needs=tuple(kinds["net"]))] if kinds["net"] else []
        return (*net, *reads, *changes, *sockets)

    def wide(self, directory: str) -> bool:
        """Tell whether a directory shows more than the tool's own."""
        return (is_shared(directory) or directory in self._bases or self._listed.holds_secret(directory)
                or any(is_below(inner, directory) for inner in self._around))

    # -- reading ---------------------------------------------------------------------------------

    def _reads(self, needs: list[Need], covered: list[str]) -> list[Proposal]:
        paths = {self._shown_by(need.path): need for need in needs if not below_any(need.path, covered)}
        wanted: set[str] = set()
        for path, need in paths.items():
            if not os.path.isdir(path):
                wanted.add(path)
            elif self.wide(path):
                if need.listing:
                    self.apart.append(Apart(need=need, why=_WIDE))
            elif need.listing or not any(other != path and is_below(other, path) for other in paths):
                # One that was only looked at on the way is there when what lies in it is.
                wanted.add(path)
        chosen = self._collapsed(wanted)
        shown = [(self._shown_by(need.path), need) for need in needs]
        return [Proposal(kind="read", value=path, needs=tuple(need for name, need in shown if is_below(name, path)))
                for path in chosen]

    def _shown_by(self, path: str) -> str:
        """Return the link of the home that a name leads through: the box has that link only if it is granted."""
        for home in self._homes:
            if is_below(path, home) and path != home:
                parts = path[len(home) + 1:].split("/")
                above = (f"{home}/{'/'.join(parts[:count])}" for count in range(1, len(parts)))
                return next((link for link in above if os.path.islink(link)), path)
        return path

    def _collapsed(self, paths: set[str]) -> list[str]:
        while True:
            paths = {path for path in paths if paths.isdisjoint(parents(path))}
            names: dict[str, int] = {}
            for path in paths:
                names[os.path.dirname(path)] = names.get(os.path.dirname(path), 0) + 1
            many = {parent for parent, count in names.items()
                    if count >= MANY and not self.wide(parent) and not is_system(parent)}
            if not many:
                return sorted(paths)
            paths = {path for path in paths if os.path.dirname(path) not in many} | many

    # -- changing --------------------------------------------------------------------------------

    def _changes(self, needs: list[Need]) -> list[Proposal]:
        found: dict[tuple[str, str], tuple[Need, ...]] = {}
        for need in sorted(needs, key=lambda need: need.path):
            if need.path in self._bases or any(is_below(base, need.path) for base in self._bases):
                # The tool makes sure that ~/.cache is there: in a private home it may.
                # (One that the host lacks may stand for a hidden name in it: the rule is not always of the home.)
                if need.promise != "fs.home" and not need.lost:
                    self.apart.append(Apart(need=need, why=_NO_BASE))
                continue
            target = self._target(need)
            if target is None:
                self.apart.append(Apart(need=need, why=_NO_FILE))
                continue
            found[target] = (*found.get(target, ()), need)
        made = [Proposal(kind=kind, value=path, needs=asked, plain=not os.path.isdir(path))
                for (kind, path), asked in found.items()]
        return [item for item in made if not any(is_below(item.value, other.value) and item is not other
                                                 for other in made)]

    def _target(self, need: Need) -> tuple[str, str] | None:
        """Return kind and path of what keeps a change, or None where nothing can."""
        home = next((home for home in self._homes if is_below(need.path, home)), None)
        plain_file = os.path.isfile(need.path) and not need.names
        if home is not None:
            unit, base = _unit(home, need.path)
            there = os.path.isdir(unit)
            if unit == need.path and not there and not need.directory:
                return ("write", need.path) if plain_file else None
            if base in _DATA or not there:
                return "cache", unit
        if plain_file:
            return "write", need.path
        directory = nearest_directory(need.path)
        return None if self.wide(directory) or is_system(directory) else ("write", directory)


def _unit(home: str, path: str) -> tuple[str, str]:
    """Return the part of a path that belongs to one tool, and the base directory that it lies in."""
    parts = path[len(home) + 1:].split("/")
    for depth in (2, 1):
        base = "/".join(parts[:depth])
        if base in BASES and len(parts) > depth:
            return f"{home}/{base}/{parts[depth]}", base
    return f"{home}/{parts[0]}", ""
