"""What git would execute or follow in a repository, found without running git.

Owns: where the git directories of a work tree are, and which existing files in them can make git
run a program. To guard, every word of the tree is taken; to grant, none is: a directory outside
is believed to be the tree's repository only when it points back. Read next: ``gitprograms.py``,
``guards.py``. Source: gitrepository-layout(5).
"""

from __future__ import annotations

import os
import stat

from stockade.frozen import dataclass
from stockade.light import Iterable, Iterator
from stockade.plan.want import below_any

# Reading configuration is loaded where there is a repository.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from stockade.plan.gitconfig import GitConfig

MAX_MODULES = 500
MAX_DEPTH = 6

# Below a git directory: what git executes, follows, or takes configuration from.
GIT_DIR_POINTS = ("hooks", "config", "config.worktree", "info/attributes", "commondir", "gitdir",
                  "objects/info/alternates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """One repository as seen from a work tree."""

    work_tree: str | None
    git_dir: str
    common_dir: str
    dot_git: str | None  # the `.git` file of a linked work tree or submodule, or a link of that name
    config: GitConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """``paths`` to guard; ``files``: configuration that named them, to be looked at again.

    ``cut``: the file that held more configuration than was looked at, or nothing.
    """

    paths: tuple[str, ...]
    files: tuple[str, ...]
    cut: str


def find(root: str) -> Repository | None:
    """Return the repository whose work tree top (or bare directory) is ``root``."""
    dot_git = os.path.join(root, ".git")
    kind = _kind(dot_git)
    if kind == "dir":
        return _open(work_tree=root, git_dir=dot_git, dot_git=None)
    if kind == "link" and os.path.isdir(dot_git):
        return _open(work_tree=root, git_dir=os.path.realpath(dot_git), dot_git=dot_git)
    if kind == "file":
        return _linked(root, dot_git)
    if looks_like_git_dir(root):
        return _open(work_tree=None, git_dir=root, dot_git=None)
    return None


def looks_like_git_dir(path: str) -> bool:
    """Tell whether git would take ``path`` as a git directory (HEAD, objects, refs)."""
    return (os.path.lexists(os.path.join(path, "HEAD"))
            and os.path.isdir(os.path.join(path, "objects"))
            and os.path.isdir(os.path.join(path, "refs")))


def _open(*, work_tree: str | None, git_dir: str, dot_git: str | None) -> Repository:
    from stockade.plan import gitconfig

    common = git_dir
    named = _first_line(os.path.join(git_dir, "commondir"))
    if named:
        common = os.path.realpath(os.path.join(git_dir, named))
    return Repository(
        work_tree=work_tree, git_dir=git_dir, common_dir=common, dot_git=dot_git,
        config=gitconfig.read(os.path.join(common, "config")),
    )


def _linked(root: str, dot_git: str) -> Repository | None:
    line = _first_line(dot_git)
    if not line.startswith("gitdir:"):
        return None
    git_dir = os.path.realpath(os.path.join(root, line.removeprefix("gitdir:").strip()))
    return _open(work_tree=root, git_dir=git_dir, dot_git=dot_git) if os.path.isdir(git_dir) else None


def git_directories(repo: Repository) -> tuple[str, ...]:
    """Return the git directories whose points count: own, common, modules, linked trees."""
    found = [repo.git_dir]
    if repo.common_dir != repo.git_dir:
        found.append(repo.common_dir)
    found.extend(_modules(os.path.join(repo.common_dir, "modules"), 0))
    linked = os.path.join(repo.common_dir, "worktrees")
    found.extend(os.path.join(linked, name) for name in _names(linked)
                 if os.path.isdir(os.path.join(linked, name)))
    return tuple(dict.fromkeys(found))[:MAX_MODULES]


def _modules(base: str, depth: int) -> Iterator[str]:
    """Submodule git directories; names may hold slashes, and modules nest."""
    if depth > MAX_DEPTH:
        return
    for name in _names(base):
        path = os.path.join(base, name)
        if _kind(path) != "dir":
            continue
        if os.path.lexists(os.path.join(path, "HEAD")):
            yield path
            yield from _modules(os.path.join(path, "modules"), depth + 1)
        else:
            yield from _modules(path, depth + 1)


def submodule_trees(repo: Repository) -> tuple[str, ...]:
    """Return work trees of submodules that exist, from their own core.worktree."""
    from stockade.plan import gitconfig

    found: list[str] = []
    for directory in _modules(os.path.join(repo.common_dir, "modules"), 0):
        tree = gitconfig.read(os.path.join(directory, "config")).last("core.worktree")
        if tree:
            path = os.path.realpath(os.path.join(directory, tree))
            if os.path.lexists(os.path.join(path, ".git")):
                found.append(path)
    return tuple(found[:MAX_MODULES])


def points(repo: Repository, home: str = "", user: Iterable[str] = ()) -> Points:
    """Return existing paths that must be read-only for git to run nothing new, sorted.

    Args: user: configuration files of the user, whose relative values mean this work tree as well.
    """
    from stockade.plan.gitprograms import Programs

    found: set[str] = set()
    top = repo.work_tree or repo.git_dir
    programs = Programs((top,), home)
    for path in user:
        programs.read(path)
    for directory in git_directories(repo):
        for name in GIT_DIR_POINTS:
            path = os.path.join(directory, name)
            if os.path.lexists(path):
                found.add(path)
        for name in ("config", "config.worktree"):
            programs.read(os.path.join(directory, name))
    if repo.dot_git is not None:
        found.add(repo.dot_git)
    found.update(os.path.join(tree, ".git") for tree in submodule_trees(repo))
    # What a file includes is as good as the file.
    found.update(path for path in programs.files if os.path.lexists(path))
    return Points(paths=tuple(sorted(found | programs.paths)), files=tuple(programs.files), cut=programs.cut)


def commits_outside(repo: Repository, roots: tuple[str, ...]) -> str | None:
    """Return the directory outside ``roots`` that commits of this tree are written to.

    The tree itself says so in its ``.git`` file, and it may have been packed by somebody else. So
    the other end must lie outside everything that a box of this request writes, be the repository
    that it claims to be, and name this tree.
    """
    if repo.dot_git is None or below_any(repo.common_dir, roots) or below_any(repo.git_dir, roots):
        return None
    if repo.common_dir != repo.git_dir:
        return repo.common_dir if _is_own_worktree(repo) else None
    return repo.common_dir if _is_own_module(repo) else None


def _is_own_worktree(repo: Repository) -> bool:
    """``<common>/worktrees/<name>`` of a real repository, whose ``gitdir`` names this ``.git``."""
    if os.path.dirname(repo.git_dir) != os.path.join(repo.common_dir, "worktrees"):
        return False
    back = _first_line(os.path.join(repo.git_dir, "gitdir"))
    return bool(back) and looks_like_git_dir(repo.common_dir) and _same(os.path.join(repo.git_dir, back), repo.dot_git)


def _is_own_module(repo: Repository) -> bool:
    """``modules/<name>`` of a real repository, whose core.worktree names this tree."""
    tree = repo.config.last("core.worktree")
    if not tree or not looks_like_git_dir(repo.git_dir) or not _same(os.path.join(repo.git_dir, tree), repo.work_tree):
        return False
    above = repo.git_dir
    while (index := above.rfind("/modules/")) > 0:
        above = above[:index]
        outer, kind = os.path.split(os.path.dirname(above))
        if looks_like_git_dir(above) or (kind == "worktrees" and looks_like_git_dir(outer)):
            return True
    return False


def _same(path: str, other: str | None) -> bool:
    return other is not None and os.path.realpath(path) == os.path.realpath(other)


def borrowed(repo: Repository) -> tuple[str, ...]:
    """Return object directories of other repositories that git would read (alternates).

    They do not name the borrower, so they are never granted because of it.
    """
    objects = os.path.join(repo.common_dir, "objects")
    lines = [line for line in _lines(os.path.join(objects, "info", "alternates")) if "\0" not in line]
    found = [os.path.realpath(os.path.join(objects, line)) for line in lines if line and not line.startswith("#")]
    return tuple(path for path in dict.fromkeys(found) if looks_like_git_dir(os.path.dirname(path)))


def _kind(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "none"
    if stat.S_ISDIR(mode):
        return "dir"
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else "other"


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))[:MAX_MODULES]
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    # O_NONBLOCK and the type check: a FIFO of that name must not hang the compiler.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    with os.fdopen(fd, "rb") as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        data = stream.read(65536)
    return data.decode("utf-8", "surrogateescape").splitlines()


def _first_line(path: str) -> str:
    lines = _lines(path)
    return lines[0].strip() if lines and "\0" not in lines[0] else ""
