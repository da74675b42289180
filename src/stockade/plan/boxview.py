"""A plan as a place to walk in: what the launcher puts where, ready for look-ups by path.

Owns: the parameters filled in, the rows that the launcher makes of a row (/dev, the box record),
guards, the sockets that are covered at the start, and what Landlock adds. Text alone: no path of
the host is opened here. Fails closed: what no Landlock rule allows is not allowed.
Read next: ``boxwalk.py``, ``launcher/src/steps/mounts.rs``, ``launcher/src/cover.rs``.
"""

from __future__ import annotations

import os
import re
import stat

from stockade.light import Iterable, Mapping
from stockade.plan import rows
from stockade.plan.rows import Row
from stockade.plan.want import is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RECORD = "/run/stockade"
# launcher/src/steps/dev.rs
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
          ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"))
# launcher/src/steps/landlock.rs: what each kind of rule allows.
_READS = frozenset({"execute", "read_file", "read_dir"})
_RIGHTS = {"read": _READS, "write": _READS | {"write_file", "make", "remove"},
           "device": frozenset({"read_file", "write_file", "read_dir"}), "list": frozenset({"read_dir"})}
# net/unix/af_unix.c, unix_seq_show: num refcount protocol flags type st inode name.
_SOCKET = re.compile(rb"[0-9a-fA-F]+:(?: [0-9a-fA-F]+){5} +[0-9]+ (/.*)")


class BoxView:
    """One plan with its parameters filled in. ``bare``: there is no box, the host is asked as it is."""

    def __init__(self, plan: Mapping[str, Any], binds: Mapping[str, str], sockets: Iterable[str] = ()) -> None:
        self._binds = binds
        self.bare = plan.get("backend") is None
        self.ids: Mapping[str, Any] = plan["ids"]
        self.cwd = self._fill(plan["cwd"])
        self.rows: dict[str, Row] = {}
        # Without namespaces the box sees the host as it is, and the rules say what of it may be opened.
        self.alone = plan.get("backend") == "landlock"
        table = [rows.bind("/", attrs=())] if self.alone else plan["mounts"]
        self.sealed = {self._fill(row["target"]) for row in table if row["kind"] == "seal"}
        for row in table:
            if row["kind"] != "seal":
                self._take(self._filled(row))
        self.guards = {self._fill(guard["path"]): bool(guard["read_only"]) for guard in plan["guards"]}
        self._rules = None if plan["landlock"] is None else [
            (self._fill(rule["path"]), _RIGHTS[rule["access"]]) for rule in plan["landlock"]["rules"]]
        self.above = {parent for target in self.rows for parent in ("/", *rows.parents(target, "/"))}
        self.listening = frozenset(sockets)
        self.covered_dirs: frozenset[str] = frozenset()
        self.covered_files: dict[str, bool] = {}  # path -> the inert device on it cannot be opened
        if plan.get("cover_sockets"):
            self._cover(self._fill(plan["executable"]) if plan["executable"] else None)

    def _fill(self, text: str) -> str:
        if not text.startswith("@"):
            return text
        name, slash, rest = text[1:].partition("/")
        return self._binds.get(name, text) + slash + rest

    def _filled(self, row: Row) -> Row:
        names = ("source", "target", "upper", "work")
        return {**row, **{name: self._fill(row[name]) for name in names if isinstance(row.get(name), str)}}

    def _take(self, row: Row) -> None:
        target = row["target"]
        if row["kind"] == "dev":
            self._devices(target)
            return
        if row["kind"] == "bind" and row["source"].startswith("@"):
            row = rows.tmpfs(target, mode="0700", size_bytes=0)  # a new directory of this box, on disk
        self.rows[target] = row
        if target == "/run":
            # launcher/src/steps/record.rs
            self.rows[RECORD] = rows.tmpfs(RECORD, size_bytes=0, attrs=rows.SEALED)
            self.rows[f"{RECORD}/box.json"] = rows.file(f"{RECORD}/box.json", "")
            self.rows[f"{RECORD}/box.sock"] = {"kind": "socket", "target": f"{RECORD}/box.sock", "mode": "0755"}

    def _devices(self, target: str) -> None:
        made = [rows.tmpfs(target, size_bytes=0, attrs=("nosuid", "ro"))]
        made += [rows.bind(f"/dev/{name}", f"{target}/{name}", attrs=()) for name in _NODES]
        made += [rows.symlink(f"{target}/{name}", to) for name, to in _LINKS]
        made += [{"kind": "proc", "target": f"{target}/{name}"} for name in ("pts", "mqueue")]
        made.append(rows.tmpfs(f"{target}/shm", mode="1777", size_bytes=0))
        self.rows.update((row["target"], row) for row in made)

    def locked(self, path: str) -> bool:
        """Tell whether a read-only guard stands at or above a path."""
        return any(locked and is_below(path, guard) for guard, locked in self.guards.items())

    def landlock_allows(self, path: str, right: str) -> bool:
        """Tell whether a rule at or above a canonical path of the box gives the right."""
        return self._rules is None or any(right in rights and is_below(path, place) for place, rights in self._rules)

    def _cover(self, executable: str | None) -> None:
        """What ``cover.rs`` does with the sockets that are there when the box starts."""
        needed = [*self.rows, *self.guards, self.cwd, *([executable] if executable else [])]
        dirs: set[str] = set()
        for path in self.listening:
            shown = self._shown(path)
            if shown is None or not _is_socket(path):
                continue
            parent = os.path.dirname(path)
            if "ro" not in shown["attrs"] or parent == "/" or any(is_below(need, parent) for need in needed):
                # The cover of a read-only place is a plain /dev/null; that of a write root is `nodev`.
                self.covered_files[path] = "ro" not in shown["attrs"]
            else:
                dirs.add(parent)
        self.covered_dirs = frozenset(dirs)

    def _shown(self, path: str) -> Row | None:
        """Return the bind that shows a path, if one does and it is no grant of that socket."""
        while path not in self.rows or self.rows[path]["kind"] == "dir":
            if path == "/":
                return None
            path = os.path.dirname(path)
        row = self.rows[path]
        return row if row["kind"] == "bind" and row["type"] != "socket" else None


def listening() -> list[str]:
    """Return the plain absolute paths of the sockets of this network namespace."""
    try:
        with open("/proc/net/unix", "rb") as stream:
            found = [match[1] for match in map(_SOCKET.fullmatch, stream.read().split(b"\n")) if match]
    except OSError:
        return []
    paths = {os.fsdecode(name) for name in found}
    return sorted(path for path in paths if os.path.normpath(path) == path)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def bare(cwd: str) -> BoxView:
    """Return the view of a request without a box: the host as its caller sees it."""
    plan = {"ids": {"mode": "identity"}, "cwd": cwd, "mounts": [rows.bind("/", attrs=())], "guards": [],
            "landlock": None}
    return BoxView(plan, {})
