"""Guards inside write roots: what exists and runs code later stays as it is.

Owns: finding the persistence points that exist (git's, editors', agents'), our own paths, hard
links of protected files, and the masks of secrets; and the ancestors that must be pinned so that
nothing can be swapped by a rename of a parent. Nothing is created on the host for a point that
does not exist: such points are compared before and after. Fails closed: an unfinished search for
hard links refuses at strict. Read next: ``gitfacts.py``, ``launcher/src/steps/guards.rs``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.light import Iterable
from stockade.plan import gitfacts, hardlinks, nested, own, rows, writeroots
from stockade.plan.hiding import Hidden, within
from stockade.plan.trails import trail
from stockade.plan.want import Want, below_any, is_below
from stockade.rules.load import Entry, load_list
from stockade.rules.match import expanded, is_pattern, matches

SECRET_ENTRIES = 4000
SECRET_DEPTH = 4
# Reasons of a promise that is not kept.
TOO_LARGE = "write_root_too_large"
TOO_MUCH_CONFIG = "git_config_too_large"
UNNAMEABLE = "name_not_utf8"
LOCKED = "directory_locked"


class Guards:
    """Read-only points, masks and notes, as they are collected.

    ``mounted``: the write roots that are mounts; a guard's parents are pinned up to the next one.
    ``repositories``: all of the write roots, also nested ones. ``lost``: promise -> why it is not
    kept, as a reason and as a sentence.
    """

    __slots__ = ("lost", "masks", "mounted", "notes", "pinned", "points", "repositories")

    def __init__(self, repositories: Iterable[gitfacts.Repository] = ()) -> None:
        self.points: set[str] = set()
        self.masks: dict[str, bool] = {}  # path -> is a directory
        self.notes: list[str] = []
        self.lost: dict[str, tuple[str, str]] = {}
        self.mounted: tuple[str, ...] = ()
        self.pinned: tuple[str, ...] = ()  # private directories: nobody may swap what they lie in
        self.repositories = {repo.git_dir: repo for repo in repositories}

    def plan_rows(self, read: tuple[str, ...] = ()) -> list[dict[str, object]]:
        """Return the plan's guards: pinned ancestors and read-only points, by depth.

        Args: read: granted directories; nothing in them changes, but a mask in one must hold when
        the host renames over its name.
        """
        found: dict[str, bool] = {}
        for path in (*self.points, *self.masks):
            root = _root_of(path, (*self.mounted, *read) if path in self.masks else self.mounted)
            if root is None:
                continue
            for parent in rows.parents(path, root):
                found.setdefault(parent, False)
            found[path] = True
        for path in self.pinned:
            for parent in rows.parents(path, _root_of(path, self.mounted) or path):
                found.setdefault(parent, False)
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
    guards = Guards(repositories)
    guards.points.update(own.inside_write_roots(want))
    for root in want.write:
        for item in within(hidden, root):
            _mask_but(guards, want, item.path, item.shown)
    if want.guarded:
        opened = opened_classes(want)
        points = _home_points(want)
        _listed_points(guards, want, opened, points)
        if "git" not in opened:
            _git_points(guards, want)
        _hard_links(guards, want, hidden, [path for _, path in points])
    if want.strict:
        _workspace_secrets(guards, want)
    _nameable(guards, want)
    # What is private is nobody's later: the box may write there.
    guards.points = {path for path in guards.points if not below_any(path, want.private)}
    guards.masks = {path: kind for path, kind in guards.masks.items() if not below_any(path, want.private)}
    guards.pinned = want.private
    guards.mounted = writeroots.mounted(want, (*guards.points, *guards.masks))
    return guards


def _places(paths: Iterable[str], roots: tuple[str, ...]) -> set[str]:
    """Canonical places inside the roots: each link on the way to a path, and the object at its end.

    A link is a point like what it leads to: who may replace it chooses what runs.
    """
    found: set[str] = set()
    for path in paths:
        links, end = trail(path)
        found.update(place for place in (*links, end) if _root_of(place, roots) is not None)
    return {path for path in found if os.path.lexists(path)}


def _nameable(guards: Guards, want: Want) -> None:
    """A plan is UTF-8 text: a point with another name cannot be guarded, and that is said."""
    odd = {path for path in guards.points if not _is_text(path)}
    guards.points -= odd
    for path in sorted(odd):
        _lose(guards, want, UNNAMEABLE, f"{os.fsencode(path)!r}: not guarded, its name is not UTF-8")


def _lose(guards: Guards, want: Want, reason: str, text: str) -> None:
    """Say that points inside the write roots may stay unguarded; a tier that promises them is not kept."""
    guards.notes.append(text)
    if want.guarded:
        guards.lost.setdefault("fs.persistence", (reason, text))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def _git_points(guards: Guards, want: Want) -> None:
    """What every repository of the write roots would run; the user's own settings count in each."""
    user = [os.path.join(home, name) for home in want.homes for name in (".gitconfig", ".config/git/config")]
    for repo in guards.repositories.values():
        points = gitfacts.points(repo, want.home, user)
        # Where `.git` is a link its end must stay writable: git commits into it.
        guards.points.update(_places(points.paths, want.write) - {repo.git_dir, repo.common_dir})
        want.witness.saw(*points.files)
        if points.cut:
            _lose(guards, want, TOO_MUCH_CONFIG, f"git configuration {points.cut!r}: larger than what is looked at "
                  "for the programs that it names, so some of them may be writable")


def _listed_points(guards: Guards, want: Want, opened: frozenset[str], home: Iterable[tuple[Entry, str]]) -> None:
    entries = [entry for entry in load_list("persistence") if entry.guard and entry.klass not in opened]
    top = Names([entry for entry in entries if entry.scope == "workspace"])
    inner = Names([entry for entry in entries if entry.scope == "workspace" and entry.nested])
    for root in want.write:
        if not os.path.isdir(root) or root in want.homes:
            continue
        walk = nested.survey(root)
        for directory, names in walk.named:
            want.witness.saw(directory)
            chosen = top if directory == root else inner
            guards.points.update(_places((path for _, path in chosen.found(directory, names)), want.write))
        _nested_repositories(guards, want, walk)
        if not walk.finished:
            _unfinished(guards, want, root, walk.locked)
    kept = [path for entry, path in home if entry.guard and entry.klass not in opened]
    guards.points.update(_places(kept, want.write))


def _nested_repositories(guards: Guards, want: Want, walk: nested.Survey) -> None:
    for directory in walk.repositories:
        want.witness.saw(directory, os.path.join(directory, ".git"))
        repo = gitfacts.find(directory)
        if repo is not None:
            guards.repositories.setdefault(repo.git_dir, repo)


def _unfinished(guards: Guards, want: Want, root: str, locked: str) -> None:
    if locked:
        _lose(guards, want, LOCKED, f"directory {locked!r}: its mode lets nobody look for repositories in it, and a "
              "box can change that")
        return
    _lose(guards, want, TOO_LARGE, f"write root {root!r}: too large to search to the end for repositories, so hooks "
          "and configuration of some may be writable")


def inside_home_point(want: Want) -> str | None:
    """Return a write root that is, or lies in, a persistence point of a home.

    Guards stand inside write roots, so nothing of such a root would be left to guard.
    """
    opened = opened_classes(want)
    entries = [entry for entry in load_list("persistence")
               if entry.scope == "home" and entry.guard and entry.klass not in opened]
    for root in want.write:
        for home in want.homes:
            inside = root[len(home.rstrip("/")) + 1:].split("/") if is_below(root, home) and root != home else []
            near = (entry.path.split("/") for entry in entries if entry.path.count("/") < len(inside))
            if any(_leads_in(point, inside) for point in near):
                return root
    return None


def _leads_in(point: list[str], place: list[str]) -> bool:
    return len(place) >= len(point) and all(map(matches, place, point))


def _home_points(want: Want) -> list[tuple[Entry, str]]:
    """Points of the home that exist; one listing of the home answers for most of the list."""
    names = Names(entry for entry in load_list("persistence") if entry.scope == "home")
    return [point for home in want.homes for point in names.found(home, _names(home))]


class Names:
    """Entries by their first path component: a directory listing answers most of them at once."""

    __slots__ = ("_literal", "_patterns")

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._literal: dict[str, list[Entry]] = {}
        self._patterns: list[tuple[str, Entry]] = []
        for entry in entries:
            first = entry.path.partition("/")[0]
            if entry.kind == "glob" and is_pattern(first):
                self._patterns.append((first, entry))
            else:
                self._literal.setdefault(first, []).append(entry)

    def found(self, directory: str, names: Iterable[str]) -> list[tuple[Entry, str]]:
        """Return the points that exist in ``directory``, whose listing is ``names``, with their entries."""
        result: list[tuple[Entry, str]] = []
        for name in names:
            chosen = [*self._literal.get(name, ()), *(e for pattern, e in self._patterns if matches(name, pattern))]
            for entry in chosen:
                result.extend((entry, path) for path in _expand(directory, entry.path) if is_kind(path, entry.kind))
        return result


def is_kind(path: str, kind: str) -> bool:
    """Tell whether a path is what the list speaks of: a `.git` *file* is a point, a directory not."""
    if kind == "dir":
        return os.path.isdir(path)
    return kind != "file" or not os.path.isdir(path)


def _expand(base: str, path: str) -> list[str]:
    if is_pattern(path):
        return expanded(path, base=base)
    place = f"{base.rstrip('/')}/{path}"
    return [place] if os.path.lexists(place) else []


def _hard_links(guards: Guards, want: Want, hidden: tuple[Hidden, ...], points: list[str]) -> None:
    """Other names of credential and persistence files inside the write roots."""
    secret = [item.path for item in hidden if item.there and item.why != "hide"]
    secret += _files_below([path for path in secret if os.path.isdir(path)])
    wanted = hardlinks.multiply_linked([*secret, *points])
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
    """At strict ``.env`` and the like at the top of each root cannot be read, by no name they have there.

    A read grant of a directory that the caller named is such a root; a reviewed profile that names
    its tool's own directory means what is in it.
    """
    named = {*want.read, *want.write}
    roots = [*want.write, *(path for path in want.read if path in want.asked and path not in want.write)]
    secret: list[str] = []
    for root in roots:
        want.witness.saw(root)
        for name in _names(root) if os.path.isdir(root) else ():
            path = os.path.join(root, name)
            if is_workspace_secret(name) and path not in named:
                secret.append(os.path.realpath(path))
    wanted = hardlinks.multiply_linked(path for path in secret if path not in named)
    found = hardlinks.search(wanted, roots) if wanted else hardlinks.Found(aliases={}, finished=True)
    for path in (*secret, *(alias for aliases in found.aliases.values() for alias in aliases)):
        if path not in named:
            _mask(guards, path)
    if not found.finished:
        text = f"secret {sorted(wanted.values())[0]!r}: not searched to the end for its other names"
        guards.notes.append(text)
        guards.lost["fs.workspace_secrets"] = (TOO_LARGE, text)


def is_workspace_secret(name: str) -> bool:
    """Tell whether a file name is on the list of workspace secrets."""
    # `.ENV` is the same file to whoever wrote it on a file system without case.
    lower = name.lower()
    return any((matches(name, entry.pattern) or matches(lower, entry.pattern))
               and not any(matches(lower, other) for other in entry.except_)
               for entry in load_list("workspace-secrets"))


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
