"""A box without namespaces: Landlock rules are the whole view, a filter what else is refused.

Owns: the allow-list of paths (Landlock cannot take a name away from a directory that it gives, so a
directory in which something is hidden is given entry by entry and cannot be listed), the promises
that a request loses here, and what is refused because only a mount could give it.
Fails closed: what no rule names cannot be opened, a directory entry that appears later among them.
Read next: ``landlock.py`` (the second mechanism under namespaces), ``launcher/src/alone.rs``.
"""

from __future__ import annotations

import os

from stockade.errors import Refused
from stockade.frozen import replace
from stockade.light import Iterable
from stockade.plan import hiding, own, strict
from stockade.plan.guards import Guards, is_workspace_secret
from stockade.plan.hiding import Hidden, parents
from stockade.plan.linux import CONFIG_DIR, MAIL
from stockade.plan.want import Want, below_any, is_below
from stockade.rules.load import load_list
from stockade.rules.resolve import Resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "landlock"
MIN_ABI = 6  # scopes of signals and abstract sockets; Linux 6.12
TMP = "@tmp"
# Shared with everybody, or with every process of the user: the box gets a directory of its own instead.
SHARED = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/proc")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
FILTERS = {"none": "landlock-offline", "host": "landlock"}
HOLDS_POINTS = "write_root_holds_points"
HOLDS_SECRETS = "write_root_holds_secrets"


def sockets(resolved: Resolved) -> tuple[Resolved, tuple[str, ...]]:
    """Return the request without sockets, and a note for what it had by default.

    Raises: Refused(socket_grant_impossible) for a socket that somebody named.
    """
    named = [item.value for item in resolved.sockets if not item.origin.startswith(("tier ", "profile "))]
    if named:
        raise Refused("socket_grant_impossible", f"socket {named[0]!r}: got a host without namespaces, where a box "
                      "reaches every local socket or none")
    left_out = [item.value for item in resolved.sockets]
    notes = (f"left out: socket {' '.join(left_out)}, since no local socket can be reached without namespaces",)
    return replace(resolved, sockets=()), notes if left_out else ()


def adapt(want: Want, resolved: Resolved, *, stored: bool) -> Want:
    """Return the request with what lies on private mounts under namespaces taken elsewhere, or left out."""
    notes = list(want.notes)
    literal = {name: value for name, value in want.policy.set if not is_below(value, CONFIG_DIR)}
    if len(literal) < len(want.policy.set):
        notes.append("left out: generated tool configuration, which needs a private mount")
    del literal["TMPDIR"]  # its place is known when the box starts
    specs = {spec.name: spec for spec in resolved.caches}
    for item in want.caches:
        variable = specs[item.name].env
        if variable and item.upper and variable in literal:
            literal[variable] = item.upper
    if any(spec.mode == "copyback" for spec in resolved.state):
        notes.append("left out: files to copy back, which need a private home")
    if stored:
        notes.append("no temporary directory: a stored launch line without namespaces has none of its own")
    pairs = tuple(sorted(literal.items()))
    return replace(want, policy=replace(want.policy, set=pairs), notes=tuple(notes), sockets=())


def lose(want: Want, found: Guards, hidden: tuple[Hidden, ...]) -> None:
    """Add to ``found.lost`` what no rule can keep inside a write root.

    Raises: Refused (own_install, own_state, grant_unsupported) for what nobody may accept.
    """
    mine = own.inside_write_roots(want)
    for path in mine:
        code = "own_state" if below_any(path, own.state_homes(want.homes, want.env, want.state_home)) else "own_install"
        raise Refused(code, f"write root above {path!r}: nothing inside a write root can be protected without "
                      "namespaces", hint="name a smaller write root")
    inside = {item.path: item.why for item in hidden if below_any(item.path, want.write) and _there(item.path)}
    for path, why in inside.items():
        if why == "own state":
            raise Refused("own_state", f"write root above {path!r}: nothing inside a write root can be hidden "
                          "without namespaces")
        if why == "hide":
            raise Refused("grant_unsupported", f"hide {path!r}: lies in a write root, in which nothing can be hidden "
                          "without namespaces", hint="name a smaller write root")
    for path in sorted(found.points | set(want.private)):
        _lost(found, "fs.persistence", HOLDS_POINTS, f"write root above {path!r}: what can make code run later "
              "cannot be guarded in it without namespaces")
    for path in sorted(path for path in found.masks if below_any(path, want.write)):
        secret = path not in inside and is_workspace_secret(os.path.basename(path))
        _lost(found, "fs.workspace_secrets" if secret else "fs.credentials", HOLDS_SECRETS,
              f"write root above {path!r}: nothing inside a write root can be hidden without namespaces")


def _there(path: str) -> bool:
    return os.path.lexists(path)


def _lost(found: Guards, promise: str, reason: str, text: str) -> None:
    found.lost.setdefault(promise, (reason, text))


def plan_parts(want: Want, found: Guards, hidden: tuple[Hidden, ...], tools: list[str], needs: Iterable[str],
               *, stored: bool) -> dict[str, Any]:
    """Return the fields of the plan that are others than under namespaces."""
    access = _reads(want, found, hidden, tools, needs) | _writes(want, stored=stored)
    rules = [{"path": path, "access": kind} for path, kind in sorted(access)]
    return {
        "backend": NAME, "namespaces": [], "mounts": [], "guards": [], "cover_sockets": False, "discards": [],
        "copyback": [], "ids": {"mode": "identity"}, "seccomp": {"filter": FILTERS[want.net]},
        "cwd": want.cwd or ("/" if stored else TMP),
        "landlock": {"abi": MIN_ABI, "scope_signal": True, "scope_abstract": True, "rules": rules},
    }


def _writes(want: Want, *, stored: bool) -> set[tuple[str, str]]:
    found = {(f"/dev/{name}", "device") for name in DEVICES}
    found |= {(path, "device") for path in want.devices}
    found |= {(path, "write") for path in want.write}
    found |= {(item.upper, "write") for item in want.caches if item.upper}
    return found if stored else found | {(TMP, "write")}


def _reads(want: Want, found: Guards, hidden: tuple[Hidden, ...], tools: list[str],
           needs: Iterable[str]) -> set[tuple[str, str]]:
    secret = [item.path for item in hidden]
    masks = [path for path in found.masks if not below_any(path, want.write)]
    reads = _Reads(want, barred=[*secret, *masks, *SHARED, want.state_home, *_mail(want)])
    if want.strict:
        for path in _system(want, reads):
            reads.allow(path)
        for path in tools:
            reads.allow(path)
    else:
        reads.allow("/")
    for path in (*needs, *own.shown()):
        reads.allow(path)
    hide = [item.path for item in hidden if item.why == "hide"]
    asked = [path for path in want.read if not below_any(path, hide)]
    lower = [item.lower for item in want.caches if item.lower is not None]
    kept = [path for item in hidden if item.why != "hide" for path in hiding.kept_children(item)]
    for path in (*asked, *lower, *kept):
        reads.inside(path)
    return {("/proc", "read"), *((path, "read") for path in reads.rules)}


def _mail(want: Want) -> list[str]:
    return [os.path.realpath(path) for path in MAIL] if want.guarded else []


class _Reads:
    """Paths that may be read, without what is barred below them."""

    __slots__ = ("_above", "_barred", "_distant", "_want", "rules")

    def __init__(self, want: Want, barred: Iterable[str]) -> None:
        self._want = want
        self._distant = frozenset(mount.point for mount in want.mounts if mount.distant)
        self.rules: set[str] = set()
        self._barred: set[str] = set()
        self._above: set[str] = {"/"}
        self.bar(*barred)

    def bar(self, *paths: str) -> None:
        """Never give these by what is above them."""
        self._barred.update(paths)
        self._above.update(above for path in paths for above in parents(path))

    def allow(self, path: str) -> None:
        """Give an existing path, unless it or something above it is barred; links are given as what they lead to."""
        real = os.path.realpath(path)
        if not any(above in self._barred for above in (real, *parents(real))):
            self.inside(real)

    def inside(self, path: str) -> None:
        """Give a real path, whatever is above it, but for what is barred below it."""
        if path in self._distant:
            return  # whoever looks at it may not come back
        if path not in self._above or not os.path.isdir(path):
            self.rules.add(path)
            return
        self._want.witness.saw(path)
        for entry in _entries(path):
            # A rule on a link would be one on what it leads to.
            if entry.path not in self._barred and not entry.is_symlink():
                self.inside(entry.path)


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def _system(want: Want, reads: _Reads) -> list[str]:
    """Paths of the operating system; files that other backends make anew are the host's own here."""
    found: list[str] = []
    for entry in load_list("system"):
        if entry.scope == "net-host" and want.net != "host":
            continue
        paths = strict.matches(entry.path)
        for path in paths if paths and strict.has_reader(entry, want) else ():
            reads.bar(*(os.path.join(path, name) for name in entry.except_))
            if is_below(os.path.realpath(path), "/run"):
                reads.inside(os.path.realpath(path))  # resolv.conf of most systems
            found.append(path)
    return found
