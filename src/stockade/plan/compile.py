"""Compile a resolved request into a plan.

Owns: the order of things and the final shape; each part has its own module. The result is a
pure function of the request and of what the compiler saw on this host, so the same request gives
the same digest. The workspace is a parameter (``@ws``), so that many workspaces share a plan.
Fails closed: whatever a plan cannot say is a typed refusal. Read next: ``inputs.py`` (what is
asked), ``linux.py`` and ``strict.py`` (mounts), ``guards.py``, ``states.py`` (promises).
"""

from __future__ import annotations

import os

from stockade.frozen import dataclass, field
from stockade.light import Iterable, Mapping
from stockade.plan import (
    appearing,
    canonical,
    discover,
    gitfacts,
    guards,
    hiding,
    inputs,
    linux,
    narrow,
    own,
    rows,
    strict,
    watched,
    writeroots,
)
from stockade.plan.landlock import ruleset
from stockade.plan.states import promise_rows, verdict_words
from stockade.plan.table import Table
from stockade.plan.want import Want, below_any, is_below
from stockade.plan.witness import Witness
from stockade.rules.profile import InnerSandbox
from stockade.rules.resolve import Resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stockade.decision import Decision
    from stockade.host.facts import HostFacts

SCHEMA = "stockade.plan.v1"
MAX_DISCARDS = 32  # the launcher hands over no more
NAMESPACES = ("cgroup", "ipc", "mount", "pid", "user", "uts")
LIMITS = ("processes", "files", "cpu_time_s", "memory_bytes", "address_space_bytes", "wall_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A plan and what goes beside it on the launcher's command line.

    ``binds``: parameters of the plan. ``cwd``: the real working directory, or None for the
    private scratch of the plan. ``set_env``: values for the launcher's descriptor.
    ``tmp_points``: what a /tmp on disk must hold before the start; None when it is in memory.
    ``argv``: the command, with the switches of an inner sandbox in place.
    """

    plan: Mapping[str, Any] = field(repr=False)
    canonical: bytes = field(repr=False)
    digest: str
    binds: Mapping[str, str]
    cwd: str | None
    argv: tuple[str, ...]
    set_env: tuple[tuple[str, str], ...] = field(repr=False)
    notes: tuple[str, ...]
    tmp_points: tuple[tuple[str, str], ...] | None
    witness: Witness = field(repr=False)

    @property
    def tmp_disk(self) -> bool:
        """True when /tmp lies on disk, in a directory that somebody must make and remove."""
        return self.tmp_points is not None


def compile_plan(resolved: Resolved, host: HostFacts, decision: Decision,
                 *, keep_env: tuple[str, ...] = (), stored: bool = False, make: bool = True) -> Compiled:
    """Compile a request that was decided ``wrap``.

    Args: keep_env: names that the plan keeps because their values come with the environment
    (a stored launch line has no descriptor for values); stored: the plan will be started later,
    when the tree has changed, so it also names what does not exist yet; make: it will be started at
    all, so its caches are made.
    Raises: Refused (``own_install``, ``grant_voids_tier``, ``hard_link``, ``source_missing`` ...).
    """
    # (8) Compile the plan: everything below is a function of the request and of this host.
    alone = _without_namespaces(decision)
    resolved, dropped = alone.sockets(resolved) if alone else (resolved, ())
    wide = narrow.wide(resolved)
    roots = inputs.write_paths(wide, ())
    repositories = inputs.repositories_of(roots)
    want = inputs.gather(wide, host, resolved.tier, repositories)
    own.check_write_roots(want)
    own.check_reads(want)
    hidden, opened = hiding.survey(want)
    found = guards.collect(want, hidden, repositories)
    _watch(want, found.repositories.values())
    command = _command(want)
    tools = strict.toolchains(want, command) if want.strict else []
    want = narrow.apply(want, resolved, found, hidden)
    if alone:
        want = alone.adapt(want, resolved, stored=stored)
        alone.lose(want, found, hidden)
    promises = promise_rows(want, opened, found.lost, verdict_words(host))
    later = appearing.plan_rows(want) if stored else []
    if alone:
        later = [] if "fs.persistence" in found.lost else later
        points: tuple[tuple[str, str], ...] | None = None if stored else ()
        plan = {**_plan(want, [], guards.Guards(found.repositories.values()), command, keep_env, resolved),
                "promises": promises, "appearing": later, "executable": _canonical(command),
                **alone.plan_parts(want, found, hidden, tools, command.needs, stored=stored)}
    else:
        table = _table(want, hidden, found, (command, tools), resolved)
        mounts = _within_memory(table.finish(), want)
        points = tuple(table.disk_points) if want.tmp_disk else None
        plan = {**_plan(want, mounts, found, command, keep_env, resolved), "promises": promises, "appearing": later,
                "discards": _discards(mounts, want), "copyback": _copyback(want, resolved, mounts)}
    # What the launch record says of the decision; the launcher knows no other row.
    known = {"active_tier": decision.active_tier} if decision.tier_known and decision.active_tier else {}
    plan["record"] |= {"decision": decision.kind, "row": decision.row, **known}
    _parametrise(plan, want.workspace)
    if make:
        inputs.make_cache_dirs(want, resolved)
    data = canonical.canonical(plan)
    return Compiled(
        plan=plan, canonical=data, digest=canonical.digest(data), binds=_binds(want), cwd=want.cwd,
        argv=command_line(resolved, resolved.request.argv), set_env=resolved.set_env,
        notes=(*resolved.notes, *dropped, *_notes(resolved), *want.notes, *found.notes,
               *_doubted(want, command)),
        tmp_points=points, witness=want.witness,
    )


def _without_namespaces(decision: Decision) -> Any:
    """Return what compiles for hosts without namespaces, where that is decided; nobody else pays for the module."""
    if decision.backend != "landlock":
        return None
    from stockade.plan import alone

    return alone


def _copyback(want: Want, resolved: Resolved, mounts: list[rows.Row]) -> list[dict[str, str]]:
    if not any(spec.mode == "copyback" for spec in resolved.state):
        return []
    from stockade.plan import copyback

    return copyback.plan_rows(want, resolved, mounts)


def _command(want: Want) -> discover.Command:
    found = discover.command(want.argv0, cwd=want.host_cwd, search_path=want.env.get("PATH", os.defpath),
                             ground=strict.ground_of(want))
    want.witness.saw(*found.needs)
    return found


def _within_memory(table: list[rows.Row], want: Want) -> list[rows.Row]:
    """No file system in memory holds more than the box may have memory."""
    limit = want.limits.get("memory_bytes")
    for row in table:
        for key in ("size_bytes", "shm_size_bytes"):
            if limit is not None and key in row:
                row[key] = min(row[key], limit)
    return table


def _table(want: Want, hidden: tuple[hiding.Hidden, ...], found: guards.Guards,
           start: tuple[discover.Command, list[str]], resolved: Resolved) -> Table:
    table = Table()
    command, tools = start
    if want.strict:
        strict.view(table, want, hidden, tools)
    else:
        linux.host_view(table, want, hidden)
    linux.spellings(table, want, inputs.links((*resolved.read, *resolved.write_roots)))
    linux.common(table, want)
    linux.resolver(table, want)
    # What a private place would cover: a read grant, or the command itself, below /tmp.
    linux.reads(table, want, hidden, () if want.strict else (*want.read, *command.needs))
    linux.caches(table, want)
    writeroots.add(table, want, found.mounted)
    linux.private(table, want)
    linux.sockets(table, want)
    for path, is_dir in sorted(found.masks.items()):
        table.add(rows.mask(path, is_dir=is_dir))
    return table


def _plan(want: Want, table: list[rows.Row], found: guards.Guards, command: discover.Command,
          keep_env: tuple[str, ...], resolved: Resolved) -> dict[str, Any]:
    env = want.policy.to_plan()
    env["keep"] = sorted({*env["keep"], *keep_env})
    plan: dict[str, Any] = {
        "schema": SCHEMA, "backend": "namespaces", "caller": want.caller, "requested_tier": str(want.tier),
        "profiles": list(want.profiles), "accept": sorted(want.accept), "net": want.net,
        "namespaces": sorted((*NAMESPACES, "net") if want.net == "none" else NAMESPACES),
        "ids": _ids(want), "mounts": table, "guards": found.plan_rows(want.read),
        "guard_lost": "end" if want.strict else "restore", "cover_sockets": True, "env": env,
        "fds": list(want.fds), "landlock": ruleset(want, table),
        "limits": {name: want.limits.get(name) for name in LIMITS},
        "seccomp": {"filter": "default-root" if want.ids.shifted else "default"},
        "cwd": want.cwd or linux.SCRATCH, "executable": _executable(want, table, command),
        "hostname": strict.HOSTNAME,
        "persistence": watched.persistence_rows(want, found.repositories.values()) if want.watched else [],
        "record": {"tier": str(want.tier), "net": want.net, "caller": want.caller,
                   "profiles": list(want.profiles), **_allowed(want, resolved)},
    }
    for row in table:
        # One owner for nearly all rows stands in `ids`; a row names only another one.
        if row.get("owner") == list(want.ids.owner):
            del row["owner"]
    return plan


def _allowed(want: Want, resolved: Resolved) -> dict[str, list[str]]:
    """What the box may do, for a request from inside it; ``host/within.py`` compares both."""
    kept = (item.path for item in resolved.state if item.mode == "copyback")
    given = {*resolved.env_keep, *(name for name, _ in resolved.set_env)}
    write = {*want.write, *(cache.path for cache in want.caches), *kept}
    return {"env": sorted(given), "read": sorted(want.read), "write": sorted(write),
            "sockets": sorted(item.value for item in resolved.sockets), "devices": sorted(want.devices),
            "allow": sorted(want.allow), "limits": sorted(f"{name}={value}" for name, value in want.limits.items())}


def _ids(want: Want) -> dict[str, Any]:
    if not want.ids.shifted:
        return {"mode": "identity"}
    owner_uid, owner_gid = want.ids.owner
    return {"mode": "shifted", "kernel_uid": want.ids.kernel_id, "kernel_gid": want.ids.kernel_id,
            "owner_uid": owner_uid, "owner_gid": owner_gid}


def _executable(want: Want, table: list[rows.Row], command: discover.Command) -> str | None:
    """The file that argv[0] must be in the box; None when the host has none of that name."""
    path = _canonical(command)
    if path is None or not want.strict:
        return path
    # A command that no row shows cannot start: "not found" says so better than "changed".
    shown = any(row["kind"] in ("bind", "overlay", "cache") and is_below(path, row["target"]) for row in table)
    return path if shown else None


def _canonical(command: discover.Command) -> str | None:
    if command.canonical is None or not os.access(command.canonical, os.X_OK):
        return None  # exec itself says why, with its own errno
    return command.canonical


def _discards(table: list[rows.Row], want: Want) -> list[str]:
    """Private places of a home that look as if they were kept; a cache that was asked to go is none."""
    gone = [item.path for item in want.caches if not item.upper]
    homes = tuple(home for home in want.homes if home != "/")
    found = [row["target"] for row in table if row["kind"] == "tmpfs" and "ro" not in row["attrs"]
             and below_any(row["target"], homes) and row["target"] not in gone]
    return found[:MAX_DISCARDS]


def _parametrise(plan: dict[str, Any], workspace: str | None) -> None:
    """Replace the workspace by ``@ws`` wherever a path lies in it."""
    if workspace is None:
        return

    def short(path: str | None) -> str | None:
        if path is None or not is_below(path, workspace):
            return path
        return "@ws" + path[len(workspace):]

    for row in plan["mounts"]:
        for key in ("source", "target", "upper", "work"):
            if key in row:
                row[key] = short(row[key])
    for guard in plan["guards"]:
        guard["path"] = short(guard["path"])
    for item in (*plan["persistence"], *plan["appearing"]):
        item["root"] = short(item["root"])
    for asked in (item["quarantine"] for item in plan["persistence"] if item["quarantine"]):
        asked["index"] = short(asked["index"])
    for key in ("read", "write"):
        plan["record"][key] = [short(path) for path in plan["record"][key]]
    plan["discards"] = [short(path) for path in plan["discards"]]
    for rule in (plan["landlock"] or {"rules": []})["rules"]:
        rule["path"] = short(rule["path"])
    # The real working directory travels on the command line: one plan for every subdirectory.
    plan["cwd"] = "@ws" if is_below(plan["cwd"], workspace) else plan["cwd"]
    plan["executable"] = short(plan["executable"])


def _binds(want: Want) -> dict[str, str]:
    return {} if want.workspace is None else {"ws": want.workspace}


def command_line(resolved: Resolved, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command; a profile's switch for an inner sandbox goes directly behind argv[0]."""
    extra = [word for inner in resolved.inner_sandbox if not own_switch(inner, argv) for word in inner.args]
    return (argv[0], *extra, *argv[1:])


def own_switch(inner: InnerSandbox, argv: tuple[str, ...]) -> str | None:
    """Return the word by which the caller chose that sandbox, which then stands; None when there is none."""
    words = (*inner.args[:1], *inner.own)
    return next((name for name in (word.partition("=")[0] for word in argv[1:]) if name in words), None)


def _notes(resolved: Resolved) -> list[str]:
    argv = resolved.request.argv
    own = [(inner, own_switch(inner, argv)) for inner in resolved.inner_sandbox]
    found = [f"inner sandbox: {word!r} is the caller's own, so its sandbox is not switched {inner.mode}"
             for inner, word in own if word]
    found += [f"inner sandbox {inner.mode}: {inner.note}" for inner, word in own if inner.note and not word]
    return found


def _doubted(want: Want, command: discover.Command) -> list[str]:
    """Say what is missing because only the tree named it; at the other tiers it is visible anyway."""
    outer = [path for path in command.doubted
             if not any(path != other and is_below(path, other) for other in command.doubted)]
    return [f"{path!r} is named by the write root alone, and not shown" for path in outer if want.strict]


def _watch(want: Want, repositories: Iterable[gitfacts.Repository]) -> None:
    """Remember what the plan depended on, for the warm path."""
    want.witness.saw(*want.write, *want.homes, *want.sockets, *want.hide, *want.read)
    for root in want.write:
        want.witness.saw(os.path.join(root, ".git"))
    for repo in repositories:
        for directory in gitfacts.git_directories(repo):
            want.witness.saw(directory, *(os.path.join(directory, name) for name in gitfacts.GIT_DIR_POINTS))
