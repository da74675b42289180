"""Guards inside write roots: what exists and runs code later stays as it is.

Owns: finding the persistence points that exist (git's, editors', agents'), our own paths, hard
links of protected files, and the masks of secrets; and the ancestors that must be pinned so that
nothing can be swapped by a rename of a parent. Nothing is created on the host for a point that
does not exist: such points are compared before and after. Fails closed: an unfinished search for
hard links refuses at strict. Read next: ``gitfacts.py``, ``launcher/src/steps/guards.rs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from stockade.errors import Refused
from stockade.plan import gitfacts, hardlinks, own, rows, writeroots
from stockade.plan.hiding import Hidden, within
from stockade.plan.want import Want, is_below
from stockade.rules.load import Entry, load_list
from stockade.rules.match import is_pattern, matches

NESTED_ENTRIES = 4000
NESTED_DEPTH = 4
NESTED_REPOSITORY = "*/.git"  # a new repository inside the tree brings its own hooks: reported
SECRET_ENTRIES = 4000
SECRET_DEPTH = 4
_SKIP = frozenset({".git", "node_modules", "target", "__pycache__"})


class Guards:
    """Read-only points, masks and notes, as they are collected.

    ``mounted``: the write roots that are mounts; a guard's parents are pinned up to the next one.
    """

    __slots__ = ("masks", "mounted", "notes", "points")

    def __init__(self) -> None:
        self.points: set[str] = set()
        self.masks: dict[str, bool] = {}  # path -> is a directory
        self.notes: list[str] = []
        self.mounted: tuple[str, ...] = ()

    def plan_rows(self) -> list[dict[str, object]]:
        """Return the plan's guards: pinned ancestors and read-only points, by depth."""
        found: dict[str, bool] = {}
        for path in (*self.points, *self.masks):
            root = _root_of(path, self.mounted)
            if root is None:
                continue
            for parent in rows.parents(path, root):
                found.setdefault(parent, False)
            found[path] = True
        # Below a read-only point nothing can be renamed: its inner guards would only cost mounts.
        result = [{"path": path, "read_only": locked} for path, locked in found.items()
                  if path in self.masks or not _inside_locked(path, found)]
        result.sort(key=lambda row: (rows.depth(str(row["path"])), str(row["path"])))
        return result


def _inside_locked(path: str, found: dict[str, bool]) -> bool:
    current = path.rpartition("/")[0]
    while current:
        if found.get(current):
            return True
        current = current.rpartition("/")[0]
    return False


def _root_of(path: str, roots: tuple[str, ...]) -> str | None:
    """Return the innermost write root strictly above ``path``."""
    above = [root for root in roots if path != root and is_below(path, root)]
    return max(above, key=len) if above else None


def collect(want: Want, hidden: tuple[Hidden, ...], repositories: Iterable[gitfacts.Repository]) -> Guards:
    """Return every guard and mask of this request's write roots."""
    guards = Guards()
    guards.points.update(own.inside_write_roots(want))
    for root in want.write:
        for item in within(hidden, root):
            _mask_but(guards, want, item.path, item.shown)
    opened = opened_classes(want)
    if want.guarded and "git" not in opened:
        for repo in repositories:
            guards.points.update(_existing_real(gitfacts.points(repo), want.write))
    if want.guarded:
        _listed_points(guards, want, opened)
        _hard_links(guards, want, hidden)
    if want.strict:
        _workspace_secrets(guards, want)
    guards.mounted = writeroots.mounted(want, (*guards.points, *guards.masks))
    return guards


def _existing_real(paths: Iterable[str], roots: tuple[str, ...]) -> set[str]:
    """Symlinks cannot be mount points: the object they lead to is guarded instead."""
    found: set[str] = set()
    for path in paths:
        real = os.path.realpath(path) if os.path.islink(path) else path
        if os.path.lexists(real) and _root_of(real, roots) is not None:
            found.add(real)
    return found


def _mask(guards: Guards, path: str) -> None:
    if os.path.islink(path) or not os.path.lexists(path):
        return
    guards.masks[path] = os.path.isdir(path)


def _mask_but(guards: Guards, want: Want, path: str, shown: tuple[str, ...]) -> None:
    """Mask a path, or everything in it but what a grant names."""
    if path in shown:
        return
    if not any(is_below(inner, path) for inner in shown):
        _mask(guards, path)
        return
    want.witness.saw(path)
    for name in _names(path):
        _mask_but(guards, want, os.path.join(path, name), shown)


def opened_classes(want: Want) -> frozenset[str]:
    """Classes of persistence points that a named grant opens (``git-config``, ``build-config`` ...)."""
    return frozenset(klass for entry in load_list("grants") if entry.klass == "allow" and entry.id in want.allow
                     for klass in entry.match)


def _listed_points(guards: Guards, want: Want, opened: frozenset[str]) -> None:
    entries = [entry for entry in load_list("persistence") if entry.guard and entry.klass not in opened]
    top = Names([entry for entry in entries if entry.scope == "workspace"])
    nested = Names([entry for entry in entries if entry.scope == "workspace" and entry.nested])
    for root in want.write:
        if not os.path.isdir(root) or root in want.homes:
            continue
        for directory, names in _directories(root):
            want.witness.saw(directory)
            chosen = top if directory == root else nested
            guards.points.update(_existing_real(chosen.found(directory, names), want.write))
    guards.points.update(_existing_real(_home_points(want, entries), want.write))


def _home_points(want: Want, entries: Iterable[Entry]) -> list[str]:
    """Points of the home that exist; one listing of the home answers for most of the list."""
    names = Names(entry for entry in entries if entry.scope == "home")
    return [path for home in want.homes for path in names.found(home, _names(home))]


class Names:
    """Entries by their first path component: a directory listing answers most of them at once."""

    __slots__ = ("_literal", "_patterns")

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._literal: dict[str, list[Entry]] = {}
        self._patterns: list[tuple[str, Entry]] = []
        for entry in entries:
            first = entry.path.split("/")[0]
            if is_pattern(first):
                self._patterns.append((first, entry))
            else:
                self._literal.setdefault(first, []).append(entry)

    def found(self, directory: str, names: Iterable[str]) -> list[str]:
        """Return the points that exist in ``directory``, whose listing is ``names``."""
        result: list[str] = []
        for name in names:
            for entry in self._literal.get(name, ()):
                result.extend(_matches(entry, directory))
            for pattern, entry in self._patterns:
                if matches(name, pattern):
                    result.extend(_matches(entry, directory))
        return result


def _matches(entry: Entry, directory: str) -> list[str]:
    return [path for path in _expand(directory, entry.path) if is_kind(path, entry.kind)]


def is_kind(path: str, kind: str) -> bool:
    """Tell whether a path is what the list speaks of: a `.git` *file* is a point, a directory not."""
    if kind == "dir":
        return os.path.isdir(path)
    return kind != "file" or not os.path.isdir(path)


def _expand(base: str, path: str) -> list[str]:
    place = os.path.join(base, path)
    if not is_pattern(path):
        return [place] if os.path.lexists(place) else []
    from glob import escape, glob

    return glob(os.path.join(escape(base), path), include_hidden=True)


def _directories(root: str) -> list[tuple[str, list[str]]]:
    """The root, and directories below in which points are looked for by name; bounded."""
    found: list[tuple[str, list[str]]] = []
    level = [root]
    budget = NESTED_ENTRIES
    for _ in range(NESTED_DEPTH):
        below: list[str] = []
        for directory in level:
            try:
                entries = list(os.scandir(directory))
            except OSError:
                continue
            budget -= len(entries)
            found.append((directory, sorted(entry.name for entry in entries)))
            if budget < 0:
                return found
            below.extend(e.path for e in entries
                         if e.name not in _SKIP and e.is_dir(follow_symlinks=False))
        level = sorted(below)
    return found


def _hard_links(guards: Guards, want: Want, hidden: tuple[Hidden, ...]) -> None:
    """Other names of credential and persistence files inside the write roots."""
    secret = [item.path for item in hidden if item.there and item.why != "hide"]
    secret += _files_below([path for path in secret if os.path.isdir(path)])
    wanted = hardlinks.multiply_linked([*secret, *_home_points(want, load_list("persistence"))])
    if not wanted:
        return
    found = hardlinks.search(wanted, want.write)
    secrets = frozenset(secret)
    for original, aliases in found.aliases.items():
        for alias in aliases:
            if original in secrets:
                _mask(guards, alias)
                guards.notes.append(f"hidden: {alias!r} is another name of {original!r}")
            else:
                guards.points.add(alias)
    if not found.finished:
        names = ", ".join(repr(path) for path in sorted(wanted.values())[:3])
        if want.strict:
            raise Refused("hard_link", f"protected file {names}: has more than one link, and the write roots "
                          "are too large to search for the other name")
        guards.notes.append(f"not searched to the end for other names of {names}")


def _files_below(directories: list[str]) -> list[str]:
    """Files inside hidden directories; breadth first, so that a browser profile cannot eat the budget."""
    found: list[str] = []
    level = directories
    for _ in range(SECRET_DEPTH):
        below: list[str] = []
        for directory in level:
            try:
                entries = list(os.scandir(directory))
            except OSError:
                continue
            for entry in entries:
                (below if entry.is_dir(follow_symlinks=False) else found).append(entry.path)
            if len(found) > SECRET_ENTRIES:
                return found
        level = below
    return found


def _workspace_secrets(guards: Guards, want: Want) -> None:
    """At strict ``.env`` and the like at the top of each root cannot be read."""
    granted = {*want.read, *want.write}
    for root in want.write:
        for name in _names(root):
            path = os.path.join(root, name)
            if is_workspace_secret(name) and path not in granted:
                _mask(guards, os.path.realpath(path))


def is_workspace_secret(name: str) -> bool:
    """Tell whether a file name is on the list of workspace secrets."""
    return any(matches(name, entry.pattern)
               and not any(matches(name, other) for other in entry.except_)
               for entry in load_list("workspace-secrets"))


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def persistence_rows(want: Want, repositories: Iterable[gitfacts.Repository]) -> list[dict[str, object]]:
    """Return what the supervisor compares before and after, per write root."""
    entries = load_list("persistence")
    top = {name for e in entries if e.scope == "workspace" for name in e.report or (e.path,)}
    git = {name for e in entries if e.scope == "git" for name in e.report or (e.path,)}
    tops = {repo.git_dir for repo in repositories}
    result: list[dict[str, object]] = []
    for root in sorted(want.write):
        if not os.path.isdir(root) or root in want.homes:
            continue
        bare = root in tops
        names = git if bare else top | {f".git/{name}" for name in git}
        names |= {NESTED_REPOSITORY} | _home_names(entries, root, want)
        result.append({"root": root, "names": sorted(names), "mode": want.on_persistence})
    return result


def _home_names(entries: Iterable[Entry], root: str, want: Want) -> set[str]:
    """Points of the home that lie in this write root (a profile may grant ``~/.claude``)."""
    found: set[str] = set()
    for home in want.homes:
        if is_below(root, home):
            inner = root[len(home.rstrip("/")) + 1:] + "/"
            found.update(name[len(inner):] for entry in entries if entry.scope == "home"
                         for name in entry.report or (entry.path,) if name.startswith(inner))
    return found
