"""Hand-made plans: the launcher alone, without the compiler.

Owns ``small_plan`` (the whole set of steps with the fewest rows) and ``Launch`` (runs the
launcher with a plan as an account and reads its records). Faults and refusals are tested here,
so that what the compiler would never write is tested too.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from support.actors import WAIT_S, Actor

NAMESPACES = ["cgroup", "ipc", "mount", "net", "pid", "user", "uts"]
ENOUGH = ["userns", "mntns", "mounts", "pidns", "init_protected", "fds_closed", "env_filtered", "no_new_privs", "keyring", "caps_empty", "rlimits", "seccomp"]


def bind(source: str, *attrs: str, target: str | None = None, **more: Any) -> dict[str, Any]:
    """A bind row with every field."""
    row = {"kind": "bind", "source": source, "target": target or source, "attrs": sorted(attrs), "type": "any", "recursive": False,
           "optional": False, "idmap": False, "create": True}
    return row | more


def tmpfs(target: str, **more: Any) -> dict[str, Any]:
    """A tmpfs row with every field."""
    return {"kind": "tmpfs", "target": target, "mode": "0755", "size_bytes": 16 << 20, "attrs": ["nodev", "nosuid"], "create": True} | more


def small_plan(actor: Actor, **changed: Any) -> dict[str, Any]:
    """A plan with every kind of step: private root, overlay, guards, Landlock, limits, filter."""
    workspace = actor.workspace
    plan: dict[str, Any] = {
        "schema": "stockade.plan.v1", "backend": "namespaces", "caller": "generated", "requested_tier": "standard", "profiles": [], "accept": [],
        "net": "none", "namespaces": NAMESPACES, "ids": {"mode": "identity"},
        "mounts": [
            bind("/", "ro", "nosuid", "nodev", type="dir", recursive=True, create=False),
            tmpfs("/run"), tmpfs("/tmp", mode="1777"),
            {"kind": "proc", "target": "/proc", "covers": ["sys", "sysrq-trigger"]},
            {"kind": "dev", "target": "/dev", "shm_size_bytes": 1 << 20},
            {"kind": "overlay", "source": actor.home, "target": actor.home, "hide": [".netrc"], "dirs": ["work/repo"], "idmap": False, "create": False},
            bind(workspace, "nosuid", "nodev", type="dir", create=False),
        ],
        "guards": [{"path": f"{workspace}/.git", "read_only": False}, {"path": f"{workspace}/.git/hooks", "read_only": True}],
        "guard_lost": "restore", "cover_sockets": True,
        "env": {"mode": "deny", "keep": [], "drop": ["*_TOKEN"], "drop_values": [], "set": {"TMPDIR": "/tmp"}},
        "fds": [],
        "landlock": {"abi": 6, "scope_signal": True, "scope_abstract": True, "rules": [
            {"path": "/", "access": "read"}, {"path": workspace, "access": "write"}, {"path": "/tmp", "access": "write"}, {"path": "/dev", "access": "device"},
            {"path": "/proc", "access": "write"}]},
        "limits": {"processes": None, "files": 256, "cpu_time_s": None, "memory_bytes": None, "address_space_bytes": None, "wall_ms": 30000},
        "seccomp": {"filter": "default"}, "cwd": workspace, "executable": None, "hostname": "stockade",
        "appearing": [], "discards": [], "copyback": [],
        "persistence": [{"root": workspace, "names": [".envrc", ".git/hooks/*"], "mode": "report", "quarantine": None}],
        "promises": [{"id": "fs.write_roots", "tiers": ["standard", "guarded", "strict"], "ns": False, "needs": [ENOUGH], "state": None, "reason": None}],
        "record": {"tier": "standard"},
    }
    return plan | changed


def launching(actor: Actor, plan: dict[str, Any], argv: Sequence[str], *, options: Sequence[str] = (), extra_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start the launcher with the plan as the actor, without its report; a signal to it reaches the launcher itself."""
    job = {"mode": "raw", "plan": plan, "launcher": str(actor.stage.launcher), "options": list(options), "argv": list(argv)}
    return actor.drive(job, pass_fds=extra_fds, stdin=subprocess.DEVNULL)


@dataclass(slots=True)
class Ended:
    """One launch: its status, its texts and its records by kind."""

    status: int
    out: str
    err: str
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def code(self) -> str | None:
        """Code of the refusal, or None."""
        row = self.records.get("refused")
        return None if row is None else str(row["code"])


def launch(actor: Actor, plan: dict[str, Any], argv: Sequence[str], *, before: Sequence[str] = (), options: Sequence[str] = (),
           seals: int = 0xF, timeout_s: float = WAIT_S, extra_fds: Sequence[int] = (), **more: Any) -> Ended:
    """Run the launcher with the plan through a sealed memfd, as the actor."""
    reader, writer = os.pipe()
    job = {"mode": "raw", "plan": plan, "launcher": str(actor.stage.launcher), "options": list(options), "before": list(before), "argv": list(argv),
           "seals": seals, "report_fd": writer}
    try:
        child = actor.drive(job, pass_fds=[writer, *extra_fds], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    finally:
        os.close(writer)
    with child, os.fdopen(reader, "rb") as report:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        rows = [json.loads(line) for line in report.read().splitlines() if line.strip()]
    return Ended(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), {row["record"]: row for row in rows})
