"""Why a box can or cannot reach a path: the rule, its reviewed entry, and the origin.

Owns: the words for what ``stockade.plan.lookup`` found in the compiled plan. Nothing is guessed
from names: the plan that would run is asked, and the lists only say why a row of it is there.
Fails closed: what no row shows is denied. Read next: ``why.py``.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from typing import Any

from stockade.errors import Refused
from stockade.frozen import dataclass
from stockade.host.facts import HostFacts
from stockade.light import Iterable
from stockade.plan import guards, hiding, inputs, lookup, own
from stockade.plan.compile import Compiled
from stockade.plan.lookup import Seen, View
from stockade.plan.want import Want, is_below
from stockade.rules.load import Entry, load_list
from stockade.rules.resolve import Resolved
from stockade.rules.tiers import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``promise``: the promise that the rule serves; ``entry``: the reviewed entry behind it.

    ``grants``: options that might change it, likeliest first; none of them is tried yet.
    """

    allowed: bool
    rule: str
    promise: str | None = None
    entry: Entry | None = None
    origin: str = ""
    grants: tuple[tuple[str, str], ...] = ()


class Judge:
    """One compiled request, asked about paths."""

    def __init__(self, resolved: Resolved, host: HostFacts, compiled: Compiled) -> None:
        self.resolved = resolved
        self.view = View(compiled.plan, compiled.binds)
        repositories = inputs.repositories_of(inputs.write_paths(resolved, ()))
        self.want: Want = inputs.gather(resolved, host, resolved.tier, repositories)
        self.hidden = hiding.collect(self.want)

    def judge(self, path: str, *, write: bool) -> Verdict:
        """Return the verdict for an absolute path and, where it is a link, for what it leads to."""
        real = os.path.realpath(path)
        verdict = self.one(path, write=write)
        if real != path and verdict.allowed:
            # The link may be shown and its target not.
            verdict = self.one(real, write=write)
        return verdict

    def one(self, path: str, *, write: bool) -> Verdict:
        """Return the verdict for the name itself."""
        seen = self.view.look(path)
        if seen.state in (lookup.ABSENT, lookup.MASKED):
            return self._gone(path, seen)
        if seen.state == lookup.PRIVATE:
            return self._private(path, seen)
        if not write:
            return self._host_says(path, self._shown(path), write=write)
        if seen.state == lookup.CACHE:
            return Verdict(allowed=True, rule="a cache: changes go to a private layer", origin="profile")
        return self._host_says(path, self._root(path), write=write) if seen.writable else self._read_only(path, seen)

    # -- denied ----------------------------------------------------------------------------------

    def _gone(self, path: str, seen: Seen) -> Verdict:
        item = next((item for item in self.hidden if is_below(path, item.path)), None)
        if item is not None:
            return self._hidden(path, item)
        if seen.state == lookup.MASKED:
            name = os.path.basename(path)
            if guards.is_workspace_secret(name):
                entry = _first(e for e in load_list("workspace-secrets") if fnmatch.fnmatchcase(name, e.pattern))
                return Verdict(allowed=False, rule="a secret at the top of a write root cannot be read", entry=entry,
                               promise="fs.workspace_secrets", grants=(("read", path),))
            return Verdict(allowed=False, rule="another name of a protected file", promise="fs.credentials")
        return self._private(path, seen)

    def _hidden(self, path: str, item: hiding.Hidden) -> Verdict:
        if item.why == "own state":
            return Verdict(allowed=False, rule="the state home is out of reach of every box", promise="fs.own_state")
        if item.why == "hide":
            origin = next((g.origin for g in self.resolved.hide if item.path in (g.path, g.real)), "hide")
            return Verdict(allowed=False, rule="hidden by request, which wins over every grant", origin=origin)
        entry = _first(e for e in load_list("credentials") if e.id == item.why)
        return Verdict(allowed=False, rule="a credential store does not exist in the box", promise="fs.credentials",
                       entry=entry, grants=_reach(path))

    def _private(self, path: str, seen: Seen) -> Verdict:
        if _is_socket(path):
            return Verdict(allowed=False, rule="a socket of the host is out of reach unless granted",
                           promise="ipc.sockets", grants=(("allow_socket", path),))
        if is_below(path, "/proc"):
            return Verdict(allowed=False, rule="/proc of the box is its own", promise="proc.invisible")
        if is_below(path, "/dev"):
            return Verdict(allowed=False, rule="/dev of the box is its own", promise="kernel.surface",
                           grants=(("device", path),))
        if any(is_below(path, home) for home in self.resolved.homes) and self.resolved.tier >= Tier.strict:
            return Verdict(allowed=False, promise="fs.home", grants=_reach(path),
                           rule="the home is private and empty but for grants; what is written there is lost")
        # A directory that was made for what is mounted in it is part of the new root.
        of_the_root = seen.row is not None and (seen.row["target"] == "/" or seen.row["kind"] == "dir")
        if self.resolved.tier >= Tier.strict and of_the_root:
            return Verdict(allowed=False, promise="fs.system", grants=_reach(path),
                           rule="outside the home only the operating system, toolchains and grants exist")
        place = seen.row["target"] if seen.row is not None else "/"
        if seen.row is not None and seen.row["kind"] == "file":
            return Verdict(allowed=False, rule=f"{place} of the box is made for it", grants=_reach(path))
        return Verdict(allowed=False, rule=f"{place} of the box is its own, empty at start", grants=_reach(path))

    def _read_only(self, path: str, seen: Seen) -> Verdict:
        if seen.guard is None:
            return Verdict(allowed=False, promise="fs.write_roots", grants=_reach(path)[1:],
                           rule="outside the write roots nothing can be changed")
        if any(is_below(seen.guard, place) for place in own.protected(self.want)):
            return Verdict(allowed=False, rule=f"{seen.guard} belongs to the product that confines the box",
                           promise="fs.own_state")
        entry = self._point(seen.guard)
        classes = {entry.klass} if entry is not None else {"git"}
        allow = tuple(("allow", e.id) for e in load_list("grants") if e.klass == "allow" and classes & set(e.match))
        return Verdict(allowed=False, rule=f"{seen.guard} can make code run later", promise="fs.persistence",
                       entry=entry, grants=allow)

    def _point(self, guard: str) -> Entry | None:
        """Return the entry of persistence.toml that a guard stands for; None: git's configuration names it."""
        roots = [root for root in self.want.write if is_below(guard, root) and guard != root]
        for entry in load_list("persistence"):
            for root in roots:
                rest = guard[len(root) + 1:].removeprefix(".git/" if entry.scope == "git" else "")
                tail = "/".join(rest.split("/")[-(entry.path.count("/") + 1):]) if entry.nested else rest
                if fnmatch.fnmatchcase(tail, entry.path):
                    return entry
        return None

    # -- allowed ---------------------------------------------------------------------------------

    def _shown(self, path: str) -> Verdict:
        for what, grants in (("write root", self.resolved.write_roots), ("read grant", self.resolved.read)):
            for grant in grants:
                if is_below(path, grant.real):
                    return Verdict(allowed=True, rule=f"{what} {grant.path}", origin=grant.origin)
        if self.resolved.tier < Tier.strict:
            return Verdict(allowed=True, rule=f"{self.resolved.tier} shows the host but for hidden names",
                           origin=self.resolved.values["tier"].origin)
        for name in ("system", "toolchains"):
            for entry in load_list(name):
                if entry.path.startswith("/") and is_below(path, entry.path):
                    return Verdict(allowed=True, rule="part of the operating system", entry=entry, origin="strict")
        return Verdict(allowed=True, rule="a toolchain or a directory on PATH", origin="strict")

    def _root(self, path: str) -> Verdict:
        grant = next((g for g in self.resolved.write_roots if is_below(path, g.real)), None)
        if grant is None:
            return Verdict(allowed=True, rule="part of a write root's repository", origin="git")
        return Verdict(allowed=True, rule=f"write root {grant.path}", origin=grant.origin)

    def _host_says(self, path: str, verdict: Verdict, *, write: bool) -> Verdict:
        """A box is never allowed more than its caller: the host's own permissions still hold."""
        if not os.path.lexists(path):
            return verdict
        if self.want.ids.shifted:
            allowed = self._shifted(path, write=write)
        else:
            allowed = os.access(path, os.W_OK if write else os.R_OK)
        return verdict if allowed else Verdict(allowed=False, rule="the permissions of the host deny it")

    def _shifted(self, path: str, *, write: bool) -> bool:
        """A root caller's box is nobody to the kernel, and the owner only where its files are mapped."""
        info = os.stat(path)
        row = self.view.look(path).row or {}
        wanted = stat.S_IWOTH if write else stat.S_IROTH
        owner = row.get("owner") or list(self.want.ids.owner)
        if row.get("idmap") and owner == [info.st_uid, info.st_gid]:
            wanted = stat.S_IWUSR if write else stat.S_IRUSR
        return bool(info.st_mode & wanted)


def _reach(path: str) -> tuple[tuple[str, str], ...]:
    return ("read", path), ("write", path), ("write", os.path.dirname(path))


def _first(entries: Iterable[Entry]) -> Entry | None:
    return next(iter(entries), None)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def accepted_with(error: Refused) -> dict[str, Any]:
    """Return the options that make a voiding grant possible: accept exactly what it gives away."""
    return {"accept": list(error.missing)} if error.code == "grant_voids_tier" else {}
