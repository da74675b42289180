"""What git would execute or follow in a repository, found without running git.

Owns: where the git directories of a work tree are, which existing files in them can make git
run a program, and which outside paths git must be able to read. Fails closed: a ``.git`` file
is believed only when the directory it names points back (a hostile tree could name the
repository of somebody else and be granted its hooks). Read next: ``guards.py``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from stockade.frozen import dataclass
from stockade.plan import gitconfig
from stockade.plan.gitconfig import GitConfig
from stockade.rules.match import matches

MAX_MODULES = 500
MAX_DEPTH = 6

# Keys whose value git (or a tool of git) executes or loads. Source: `git help -c`.
EXEC_KEYS = (
    "core.hookspath", "core.fsmonitor", "core.sshcommand", "core.editor", "core.pager",
    "core.askpass", "core.gitproxy", "core.alternaterefscommand", "core.attributesfile",
    "include.path", "includeif.*.path", "alias.*", "pager.*", "sequence.editor",
    "interactive.difffilter", "credential.helper", "credential.*.helper", "diff.external",
    "diff.*.command", "diff.*.textconv", "difftool.*.cmd", "difftool.*.path", "mergetool.*.cmd",
    "mergetool.*.path", "merge.*.driver", "filter.*.clean", "filter.*.smudge", "filter.*.process",
    "gpg.program", "gpg.*.program", "gpg.ssh.defaultkeycommand", "hook.*.command",
    "submodule.*.update", "remote.*.uploadpack", "remote.*.receivepack", "trailer.*.cmd",
    "trailer.*.command", "tar.*.command", "uploadpack.packobjectshook", "init.templatedir",
)

# Below a git directory: what git executes, follows, or takes configuration from.
GIT_DIR_POINTS = ("hooks", "config", "config.worktree", "info/attributes", "commondir", "gitdir",
                  "objects/info/alternates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """One repository as seen from a work tree."""

    work_tree: str | None
    git_dir: str
    common_dir: str
    dot_git: str | None  # the `.git` file of a linked work tree or submodule
    config: GitConfig


def find(root: str) -> Repository | None:
    """Return the repository whose work tree top (or bare directory) is ``root``."""
    dot_git = os.path.join(root, ".git")
    kind = _kind(dot_git)
    if kind == "dir":
        return _open(work_tree=root, git_dir=dot_git, dot_git=None)
    if kind == "link" and os.path.isdir(dot_git):
        return _open(work_tree=root, git_dir=os.path.realpath(dot_git), dot_git=None)
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
    if not os.path.isdir(git_dir) or not _points_back(git_dir, root, dot_git):
        return None
    return _open(work_tree=root, git_dir=git_dir, dot_git=dot_git)


def _points_back(git_dir: str, root: str, dot_git: str) -> bool:
    """A linked work tree is named by ``<git dir>/gitdir``, a submodule by its core.worktree."""
    back = _first_line(os.path.join(git_dir, "gitdir"))
    if back:
        return os.path.realpath(os.path.join(git_dir, back)) == os.path.realpath(dot_git)
    tree = gitconfig.read(os.path.join(git_dir, "config")).last("core.worktree")
    return tree is not None and os.path.realpath(os.path.join(git_dir, tree)) == os.path.realpath(root)


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
    found: list[str] = []
    for directory in _modules(os.path.join(repo.common_dir, "modules"), 0):
        tree = gitconfig.read(os.path.join(directory, "config")).last("core.worktree")
        if tree:
            path = os.path.realpath(os.path.join(directory, tree))
            if os.path.lexists(os.path.join(path, ".git")):
                found.append(path)
    return tuple(found[:MAX_MODULES])


def points(repo: Repository) -> tuple[str, ...]:
    """Return existing paths that must be read-only for git to run nothing new, sorted."""
    found: set[str] = set()
    for directory in git_directories(repo):
        for name in GIT_DIR_POINTS:
            path = os.path.join(directory, name)
            if os.path.lexists(path):
                found.add(path)
        config = os.path.join(directory, "config")
        found.update(executed(gitconfig.read(config), directory, repo.work_tree or directory))
        extra = os.path.join(directory, "config.worktree")
        found.update(executed(gitconfig.read(extra), directory, repo.work_tree or directory))
    if repo.dot_git is not None:
        found.add(repo.dot_git)
    found.update(os.path.join(tree, ".git") for tree in submodule_trees(repo))
    return tuple(sorted(found))


def executed(config: GitConfig, config_dir: str, work_tree: str) -> set[str]:
    """Return existing files and directories that the values of executing keys name."""
    found: set[str] = set()
    for key, value in config.items:
        if not any(matches(key, pattern) for pattern in EXEC_KEYS):
            continue
        for word in _words(value):
            for base in (work_tree, config_dir):
                path = os.path.join(base, os.path.expanduser(word))
                if os.path.lexists(path):
                    found.add(os.path.realpath(path))
    return found


def _words(value: str) -> list[str]:
    """Words of a command that look like a path; a bare name is looked up in PATH by git."""
    import shlex  # only a configuration that runs something needs it

    try:
        words = shlex.split(value.lstrip("!"), comments=False)
    except ValueError:
        words = value.split()
    # hooksPath and include.path may be one bare directory name: the first word always counts.
    return [word for index, word in enumerate(words)
            if word and "\0" not in word and word not in (".", "..") and (index == 0 or "/" in word)]


def outside_paths(repo: Repository) -> tuple[str, ...]:
    """Return paths outside the work tree that git must read: alternates and includes."""
    found: list[str] = []
    listing = os.path.join(repo.common_dir, "objects", "info", "alternates")
    for line in _lines(listing):
        if line and not line.startswith("#"):
            found.append(os.path.realpath(os.path.join(repo.common_dir, "objects", line)))
    for path in executed(repo.config, repo.common_dir, repo.work_tree or repo.common_dir):
        found.append(path)
    return tuple(dict.fromkeys(path for path in found if os.path.lexists(path)))


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
    return lines[0].strip() if lines else ""
