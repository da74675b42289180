"""Write roots and the working directory of the box.

Owns: the default write root of each caller class, and when the command starts in a private
directory instead. Fails closed: a home, ``/``, a system directory or anything above the state
home is never granted by default, and refused when it was named.
Read next: ``stockade.rules.settings``.
"""

from __future__ import annotations

from stockade.errors import Refused
from stockade.frozen import dataclass
from stockade.light import Iterable
from stockade.paths import git_top, is_below
from stockade.rules.grants import Grant, Places
from stockade.rules.request import Request
from stockade.rules.tiers import Caller

# Classes whose work is a project on disk; the others get nothing until somebody names it.
PROJECT = frozenset({Caller.OPERATOR, Caller.AGENT, Caller.REPOSITORY, Caller.FIRST_PARTY})

# Never a write root, named or not: kernel interfaces.
_KERNEL = ("/proc", "/sys", "/dev")
# Never by default: a caller who happens to stand there (root, a cron job) did not ask to change it.
_SYSTEM_TREES = ("/etc", "/usr", "/boot", "/bin", "/sbin", "/lib", "/lib32", "/lib64", *_KERNEL)
_SHARED = frozenset({"/tmp", "/var/tmp", "/var", "/run", "/home", "/mnt", "/media", "/srv", "/opt", "/usr/src"})
_SOURCES = "/usr/src"  # where images by convention keep the application


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The answer: ``cwd`` None is the private scratch directory."""

    write_roots: tuple[Grant, ...]
    cwd: str | None
    cwd_origin: str
    read: tuple[Grant, ...] = ()
    notes: tuple[str, ...] = ()


def is_system(path: str) -> bool:
    """Tell whether a path lies in the system's own trees, which no tool of a user has to change."""
    return any(is_below(path, tree) for tree in _SYSTEM_TREES)


def is_shared(path: str) -> bool:
    """Tell whether a directory is one that everybody uses, or holds all others."""
    return path in _SHARED or path.count("/") < 2


def workspace_of(cwd: str) -> str:
    """Return the git top level above ``cwd``, else ``cwd``: the identity of the project."""
    top = git_top(cwd)
    return str(top) if top is not None else cwd


def refuse_wide(grants: Iterable[Grant], places: Places) -> None:
    """Refuse a write root that somebody named and that would give the box everything.

    Raises: Refused ``write_root_refused``.
    """
    for grant in grants:
        why = places.too_wide(grant.real)
        if why is None and any(is_below(grant.real, tree) for tree in _KERNEL):
            why = "an interface of the kernel"
        if why:
            raise Refused("write_root_refused", f"write root {grant.path!r} ({grant.origin}): it is {why}")


def find_roots(request: Request, caller: str, places: Places, named: tuple[Grant, ...],
               readable: tuple[Grant, ...]) -> Roots:
    """Return write roots and working directory.

    Args: named: write roots that the request or a file named; readable: read grants.
    """
    refuse_wide(named, places)
    granted = [grant.real for grant in (*named, *readable)]
    if any(is_below(request.cwd, path) for path in granted):
        extra = _default_root(caller, request.cwd, places)[0] if caller in PROJECT else None
        roots = (*named, extra) if extra else named
        return Roots(write_roots=roots, cwd=request.cwd, cwd_origin="a grant covers it")
    if caller not in PROJECT:
        return _no_project(request, caller, places, named)
    root, why = _default_root(caller, request.cwd, places)
    if root is None:
        return _scratch(request, named, f"cwd {request.cwd!r} is {why}")
    return Roots(write_roots=(*named, root), cwd=request.cwd, cwd_origin=root.origin)


def _no_project(request: Request, caller: str, places: Places, named: tuple[Grant, ...]) -> Roots:
    """Give a hostile class the directory its caller named, to read; else an empty private one."""
    if not request.cwd_named:
        why = f"class {caller} gets no directory of its own choosing"
        return Roots(write_roots=named, cwd=None, cwd_origin=why)
    why_wide = places.too_wide(request.cwd)
    if why_wide:
        return _scratch(request, named, f"cwd {request.cwd!r} is {why_wide}")
    own = Grant(path=request.cwd, real=request.cwd, origin="argument cwd")
    return Roots(write_roots=named, cwd=request.cwd, cwd_origin="argument", read=(own,))


def _scratch(request: Request, named: tuple[Grant, ...], why: str) -> Roots:
    note = (f"{why}: nothing there is granted; the command starts in an empty private directory, and what it writes "
            "there is lost (start it in a project directory, or name one with --cwd DIR; --write DIR alone does not "
            "move the start)")
    return Roots(write_roots=named, cwd=None, cwd_origin=why, notes=(note,))


def _default_root(caller: str, cwd: str, places: Places) -> tuple[Grant | None, str]:
    """Return the default write root, or None and why there is none."""
    top = git_top(cwd)
    if top is not None and not _unfit(str(top), places, project=True):
        return Grant(path=str(top), real=str(top), origin=f"class {caller}: git top level"), ""
    why = _unfit(cwd, places)
    if why:
        return None, why
    return Grant(path=cwd, real=cwd, origin=f"class {caller}: working directory"), ""


def _unfit(path: str, places: Places, *, project: bool = False) -> str | None:
    """Return why ``path`` is no default; ``project``: a repository, which may lie anywhere below."""
    # Dotfiles under git make the home a work tree; that must not make it a write root.
    why = places.too_wide(path)
    if why:
        return why
    if path in _SHARED:
        return "a directory that others share"
    below = not project and not is_below(path, _SOURCES)
    if any(path == tree or (below and is_below(path, tree)) for tree in _SYSTEM_TREES):
        return "a directory of the system"
    return None
