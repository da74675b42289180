"""What the supervisor compares before and after a run, and what of it is moved when it is new.

Owns: the names of persistence points for each write root, and which of them quarantine takes: those
that are guarded where they exist, and files of instructions. What ordinary tools make
(``node_modules/.bin``, ``.venv``, ``build.rs``) is only reported: moving it would break them. Fails
closed: a root that lies in no repository has nothing moved, and says so. Read next:
``launcher/src/persist/quarantine.rs``.
"""

from __future__ import annotations

import os

from stockade.light import Iterable
from stockade.paths import git_top
from stockade.plan import gitfacts
from stockade.plan.want import Want, is_below
from stockade.rules.load import Entry, load_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NESTED_REPOSITORY = "*/.git"  # a new repository inside the tree brings its own hooks: reported
REPORTED_REPOSITORIES = 50
# Git itself makes these: `worktree add`, `submodule update`.
_GITS_OWN = ("worktrees/", "modules/")


def persistence_rows(want: Want, repositories: Iterable[gitfacts.Repository]) -> list[dict[str, Any]]:
    """Return what the supervisor compares, per write root."""
    directories = sorted(repo.git_dir for repo in repositories)
    result: list[dict[str, Any]] = []
    for root in sorted(want.write):
        if not os.path.isdir(root) or root in want.homes:
            continue
        names = _names(load_list("persistence"), root, directories)
        names |= {NESTED_REPOSITORY} | _home_names(load_list("persistence"), root, want)
        result.append({"root": root, "names": sorted(names), "mode": want.on_persistence,
                       "quarantine": _quarantine(want, root, directories)})
    return result


def _names(entries: Iterable[Entry], root: str, directories: list[str]) -> set[str]:
    """Names of a root and of the git directories in it. Args: directories: those of every repository."""
    found = {(entry.scope, name) for entry in entries for name in entry.report or (entry.path,)}
    top = {name for scope, name in found if scope == "workspace"}
    git = {name for scope, name in found if scope == "git"}
    inside = [path[len(root) + 1:] for path in directories if path.startswith(root + "/")][:REPORTED_REPOSITORIES]
    own = git if root in directories else top | {f".git/{name}" for name in git}
    return own | {f"{place}/{name}" for place in inside for name in git}


def _quarantine(want: Want, root: str, directories: list[str]) -> dict[str, Any] | None:
    """Return what is moved, and the index that says what git tracks; None: the root is in no repository."""
    if want.on_persistence != "quarantine":
        return None
    place = _index(root, directories)
    if place is None:
        return None
    entries = [entry for entry in load_list("persistence") if _is_moved(entry)]
    index, prefix = place
    want.witness.saw(os.path.dirname(index))
    return {"index": index, "prefix": prefix, "names": sorted(_names(entries, root, directories))}


def _is_moved(entry: Entry) -> bool:
    if entry.scope == "git":
        return bool(entry.guard) and not entry.path.startswith(_GITS_OWN)
    return entry.path != ".git" and (bool(entry.guard) or entry.klass == "instructions")


def _index(root: str, directories: list[str]) -> tuple[str, str] | None:
    """Return the index of the repository around ``root``, and where the root lies in its work tree."""
    if root in directories:
        return os.path.join(root, "index"), ".git/"  # nothing in a git directory is tracked
    top = root if os.path.lexists(os.path.join(root, ".git")) else git_top(root)
    repo = gitfacts.find(top) if top is not None else None
    if top is None or repo is None or repo.work_tree is None:
        return None
    prefix = "" if root == top else os.path.relpath(root, top) + "/"
    return os.path.join(repo.git_dir, "index"), prefix


def _home_names(entries: Iterable[Entry], root: str, want: Want) -> set[str]:
    """Points of the home that lie in this write root (a profile may grant ``~/.claude``)."""
    found: set[str] = set()
    for home in want.homes:
        if is_below(root, home):
            inner = root[len(home.rstrip("/")) + 1:] + "/"
            found.update(name[len(inner):] for entry in entries if entry.scope == "home"
                         for name in entry.report or (entry.path,) if name.startswith(inner))
    return found
