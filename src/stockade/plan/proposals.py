"""The smallest grants that meet what a command needed.

Owns: grouping names into directories, and the choice between a grant and a cache. Fails closed:
many names become their directory only where that shows no listed store and nothing that others
share; the home is never proposed, nor one of its base directories. Nothing here has been tried yet.
Read next: ``stockade.cli.learn``, which tries each proposal before it is named.
"""

from __future__ import annotations

import os

from stockade.frozen import dataclass
from stockade.light import Iterable, Mapping, Sequence
from stockade.plan.hiding import parents
from stockade.plan.listed import Listed
from stockade.plan.needs import Need, nearest_directory
from stockade.plan.want import is_below
from stockade.rules.roots import is_shared, is_system

# So many names in one directory are the directory.
MANY = 3
# A profile that is longer is read by nobody, and a run may have used as many names as it liked.
MOST = 50
# Directories of the home that belong to every program; what lies in one belongs to one of them.
BASES = (".cache", ".config", ".local", ".local/share", ".local/state", ".local/lib", ".local/bin")
# What is written there is a tool's own data: a private layer serves it as well as the user's own.
_DATA = (".cache", ".local/share", ".local/state")
# What lies in a directory of such a name runs when somebody calls it, whatever tool it belongs to.
_RUN = frozenset({"bin", "sbin", "shims", "hooks"})
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
    """A need that is told and not proposed. ``option``: what would grant it; empty: nothing does.

    ``tried``: False where that was left out, so the option may not be enough.
    """

    need: Need
    why: str
    option: tuple[str, ...] = ()
    tried: bool = True


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
        reads = self._reads(kinds["read"], {change.value for change in changes})
        sockets = self._bounded({need.path: [need] for need in kinds["socket"]}, "sockets")
        net = [Proposal(kind="net", value="host", needs=tuple(kinds["net"]))] if kinds["net"] else []
        return (*net, *reads, *changes, *sockets)

    def _bounded(self, found: Mapping[str, Sequence[Need]], kind: str) -> list[Proposal]:
        """Return the proposals of one kind; of those beyond the bound the first is told, and how many there are."""
        paths = sorted(found)
        for path in paths[MOST:MOST + 1]:
            self.apart.append(Apart(need=found[path][0], why=(
                f"no more than {MOST} grants of a kind are proposed, and this and {len(paths) - MOST - 1} "
                "more would be needed: grant what they have in common")))
        return [Proposal(kind=kind, value=path, needs=tuple(found[path]),
                         plain=kind in ("write", "cache") and not os.path.isdir(path)) for path in paths[:MOST]]

    def wide(self, directory: str) -> bool:
        """Tell whether a directory shows more than the tool's own."""
        return (is_shared(directory) or directory in self._bases or self._listed.holds_secret(directory)
                or any(is_below(inner, directory) for inner in self._around))

    # -- reading ---------------------------------------------------------------------------------

    def _reads(self, needs: list[Need], covered: set[str]) -> list[Proposal]:
        paths = {self._shown_by(need.path): need for need in needs if covered.isdisjoint(_and_above(need.path))}
        within = {above for path in paths for above in parents(path)}
        wanted: set[str] = set()
        for path, need in paths.items():
            if not os.path.isdir(path):
                wanted.add(path)
            elif self.wide(path):
                if need.listing:
                    self.apart.append(Apart(need=need, why=_WIDE))
            elif need.listing or path not in within:
                # One that was only looked at on the way is there when what lies in it is.
                wanted.add(path)
        found: dict[str, list[Need]] = {path: [] for path in self._collapsed(wanted)}
        for need in needs:
            for path in _and_above(self._shown_by(need.path)):
                if path in found:
                    found[path].append(need)
        return self._bounded(found, "read")

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
        found: dict[str, dict[str, list[Need]]] = {"write": {}, "cache": {}}
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
            # In a cache it is the boxes' own: nothing outside runs it.
            later = self._runs(need.path, target[1]) if target[0] == "write" else None
            if later is not None:
                self.apart.append(Apart(need=need, why=f"it can make code run later: {later}",
                                        option=("--write", need.path)))
                continue
            found[target[0]].setdefault(target[1], []).append(need)
        every = found["write"].keys() | found["cache"].keys()
        return [item for kind, of_kind in found.items() for item in self._bounded(
            {path: asked for path, asked in of_kind.items() if every.isdisjoint(parents(path))}, kind)]

    def _runs(self, path: str, directory: str) -> str | None:
        """Return the directory of programs that a grant for a path would open, by its name or its content."""
        for spelling in (path, directory, os.path.realpath(path), os.path.realpath(directory)):
            home = next((home for home in self._homes if is_below(spelling, home)), "")
            found = next((above for above in (spelling, *parents(spelling))
                          if len(above) > len(home) and os.path.basename(above) in _RUN), None)
            if found is not None:
                return found
        # The hooks of a repository that is a write root are guarded.
        inner = _RUN - {"hooks"} if os.path.isfile(f"{directory}/HEAD") else _RUN
        return next((f"{directory}/{name}" for name in sorted(inner) if os.path.isdir(f"{directory}/{name}")), None)

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


def _and_above(path: str) -> tuple[str, ...]:
    return (path, *parents(path))


def _unit(home: str, path: str) -> tuple[str, str]:
    """Return the part of a path that belongs to one tool, and the base directory that it lies in."""
    parts = path[len(home) + 1:].split("/")
    for depth in (2, 1):
        base = "/".join(parts[:depth])
        if base in BASES and len(parts) > depth:
            return f"{home}/{base}/{parts[depth]}", base
    return f"{home}/{parts[0]}", ""
