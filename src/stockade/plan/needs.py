"""What a command wanted from the host and did not get, from what it used in a box.

Owns: the judgement of one use: a name that failed in the box and is there on the host, a change
that was refused or thrown away, a socket or host out of reach. What the host itself would have
refused is no need. Fails closed: what is on a credential, persistence or control list is a need
that nobody proposes (``why_not``). Read next: ``proposals.py``.
"""

from __future__ import annotations

import os
import stat

from stockade.frozen import dataclass
from stockade.light import Callable, Iterable
from stockade.plan import lookup
from stockade.plan.listed import Listed
from stockade.plan.verdict import Judge, Verdict
from stockade.plan.want import below_any
from stockade.rules.roots import is_system

_MISSED = frozenset({"ENOENT", "EACCES", "EPERM", "ENOTDIR"})
_REFUSED = frozenset({"EROFS", *_MISSED})
# A question about a right is no change.
_ASKS = frozenset({"access", "faccessat", "faccessat2"})
# These change names in a directory, whatever the object itself allows.
_NAMES = frozenset({"creat", "mkdir", "mkdirat", "mknod", "mknodat", "symlink", "symlinkat", "link", "linkat",
                    "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"})
_LISTS = frozenset({"open", "openat"})
_OWN = ("/proc", "/sys", "/dev")
# The C libraries read it when a name is looked up, and not before.
_RESOLVER = "/etc/resolv.conf"
_NO_NET = "the box has no network"
_UNDER_WAY = frozenset({"ok", "EINPROGRESS", "EALREADY", "EISCONN", "EAGAIN", "EINTR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One line of the tracer. ``kind``: ``path``, ``socket`` or ``address``; ``result``: ``ok`` or an error name."""

    call: str
    kind: str
    name: str
    write: bool = False
    result: str = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """``kind``: ``read``, ``write``, ``socket``, ``net`` or ``device``.

    ``names``: names in the directory were changed, not only a file; ``directory``: it was made as
    one; ``listing``: a directory was opened; ``lost``: it worked, and is thrown away with the box.
    ``why_not``: why it is not proposed; ``option``: what would grant it all the same.
    """

    kind: str
    path: str
    rule: str
    promise: str | None = None
    names: bool = False
    directory: bool = False
    listing: bool = False
    lost: bool = False
    why_not: str = ""
    option: tuple[str, ...] = ()


class Needs:
    """Judges the uses of one run."""

    def __init__(self, judge: Judge, listed: Listed, net: str) -> None:
        self._judge, self._listed, self._net = judge, listed, net
        self._homes = judge.want.homes
        self._served: frozenset[str] = frozenset()

    def of(self, uses: Iterable[Use]) -> tuple[Need, ...]:
        """Return each need once; a name that was needed in two ways is as wide as both."""
        uses = tuple(uses)
        self._served = frozenset(_port(use) for use in uses if use.call == "bind" and use.result == "ok")
        found: dict[tuple[str, str], Need] = {}
        for use in uses:
            need = self._one(use)
            if need is None:
                continue
            known = found.get((need.kind, need.path))
            if known is None or _width(need) > _width(known):
                found[need.kind, need.path] = need
        return tuple(found.values())

    def _one(self, use: Use) -> Need | None:
        if use.kind == "address":
            return self._address(use)
        if use.name.startswith("@"):
            return None  # abstract sockets of the host are reached by no grant
        path = place(use.name)
        if path == _RESOLVER and use.call in _LISTS and self._net == "none":
            return Need(kind="net", path=path, promise="net.policy", rule=_NO_NET, option=("--net", "host"),
                        why_not="a name was looked up, which needs the network unless it was localhost")
        if use.kind == "socket" or _is(path, stat.S_ISSOCK):
            return None if use.write or use.result in _UNDER_WAY else self._socket(path)
        if below_any(path, _OWN):
            return self._device(path) if use.result in _MISSED and not use.write else None
        if use.write and use.call not in _ASKS:
            return self._change(path, use)
        return self._read(path, use) if use.result in _MISSED else None

    def _address(self, use: Use) -> Need | None:
        if self._net != "none" or use.call == "bind" or self._inside(use):
            return None
        return Need(kind="net", path=use.name, promise="net.policy", rule=_NO_NET)

    def _inside(self, use: Use) -> bool:
        """Tell whether an address is the box's own: it answered, or something inside serves that port."""
        if use.result not in _UNDER_WAY or use.result == "ok":
            return use.result == "ok"
        # How a call that was only begun ended is not seen; the port may be one that the kernel chose.
        return not self._served.isdisjoint({_port(use), "0"})

    def _socket(self, path: str) -> Need | None:
        if not _is(path, stat.S_ISSOCK) or not os.access(path, os.W_OK):
            return None
        verdict = self._judge.judge(path, write=False)
        if verdict.allowed:
            return None
        # A link may spell a control socket in a way that no list has: only the object itself is named.
        real = os.path.realpath(path)
        known = self._listed.control_socket(path) or self._listed.control_socket(real)
        if known == "name-service":
            return None  # asked by nearly every program, which goes on without
        secret = self._listed.secret(real)
        why_not = f"control socket {known}" if known else f"credential {secret}" if secret else ""
        return Need(kind="socket", path=real, rule=verdict.rule, promise="ipc.sockets",
                    why_not=why_not, option=("--allow-socket", real))

    def _device(self, path: str) -> Need | None:
        if not _is(path, lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) or not os.access(path, os.R_OK):
            return None
        verdict = self._judge.judge(path, write=False)
        return None if verdict.allowed else Need(kind="device", path=path, rule=verdict.rule, why_not="a device",
                                                 promise=verdict.promise, option=("--device", path))

    def _read(self, path: str, use: Use) -> Need | None:
        if not os.access(path, os.R_OK):
            return None  # not there, or the host says no as well
        verdict = self._judge.judge(path, write=False)
        if verdict.allowed:
            return None
        if self._judge.one(path, write=False).allowed:
            # A link that the box shows: what it leads to is missing.
            path = os.path.realpath(path)
        why_not, option = self._kept_from(path, verdict, "read")
        return Need(kind="read", path=path, rule=verdict.rule, promise=verdict.promise, why_not=why_not, option=option,
                    listing=use.call in _LISTS and os.path.isdir(path))

    def _change(self, path: str, use: Use) -> Need | None:
        makes = use.call.startswith("mkdir")
        if makes and os.path.isdir(path):
            return None  # what was made in a private home is there on the host
        names = use.call in _NAMES or not os.path.lexists(path)
        if use.result == "ok":
            seen = self._judge.view.look(path)
            lost = seen.state in (lookup.PRIVATE, lookup.ABSENT) and below_any(path, self._homes)
            if not lost or path in self._homes:
                return None
            verdict = self._judge.one(path, write=True)
        else:
            if use.result not in _REFUSED or not _host_would(path, use.call, names=names):
                return None
            verdict = self._judge.judge(path, write=True)
        if verdict.allowed or is_system(os.path.realpath(path)):
            return None
        why_not, option = self._kept_from(path, verdict, "write")
        return Need(kind="write", path=path, rule=verdict.rule, promise=verdict.promise, names=names,
                    directory=makes, lost=use.result == "ok", why_not=why_not, option=option)

    def _kept_from(self, path: str, verdict: Verdict, kind: str) -> tuple[str, tuple[str, ...]]:
        """Return why a need is not proposed, and the option that grants it; empty where nothing is against it."""
        option = (f"--{kind}", path)
        secret = self._listed.secret(path) or self._listed.secret(os.path.realpath(path))
        if secret == "own state" or verdict.promise == "fs.own_state":
            return "own state of stockade", ()
        if verdict.origin and not verdict.grants:
            return verdict.rule, ()
        if secret is not None:
            return f"credential {secret}", option
        if verdict.promise == "fs.workspace_secrets":
            return verdict.rule, option
        if verdict.promise == "fs.persistence":
            allow = next(((f"--{name}", value) for name, value in verdict.grants if name == "allow"), ())
            return f"it can make code run later ({verdict.rule})", allow
        if kind == "read" and is_system(os.path.realpath(path)):
            return "a file of the system that is left out of the reviewed list, as it may hold secrets", option
        spellings = (path, os.path.realpath(path)) if kind == "write" else ()
        later = next(filter(None, map(self._listed.runs_later, spellings)), None)
        return (f"it can make code run later: {later}", option) if later else ("", ())


def _port(use: Use) -> str:
    return use.name.rpartition(":")[2]


def _width(need: Need) -> tuple[bool, bool, bool]:
    return need.names, need.directory, need.listing


def place(path: str) -> str:
    """Return the name as it was spelled, since a grant shows that spelling; one that climbs is made canonical."""
    return os.path.realpath(path) if ".." in path.split("/") else path


def nearest_directory(path: str) -> str:
    """Return the innermost directory above a name that exists on the host."""
    above = os.path.dirname(path)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    return above


def _host_would(path: str, call: str, *, names: bool) -> bool:
    """Tell whether the host itself lets the caller do it."""
    there = os.path.lexists(path)
    if not names:
        return os.access(path, os.W_OK)
    if not there and call.startswith(("unlink", "rmdir", "rename")):
        # Of a rename the new name counts; the old one must be there.
        return call.startswith("rename") and _parent_writable(path)
    return _parent_writable(path)


def _parent_writable(path: str) -> bool:
    parent = os.path.dirname(path)
    return os.path.isdir(parent) and os.access(parent, os.W_OK)


def _is(path: str, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.stat(path).st_mode)
    except OSError:
        return False
