"""Runs that get no box of their own: ``unconfined`` (D1, D3, D4) and ``passthrough`` (D7, D11).

Owns: the filtered environment, and the records. Those of an unconfined run claim the environment
rows and nothing else; those of a passthrough what the box around is attested to keep. Fails closed:
where less than a box is what somebody asked for, or policy requires it, nothing starts without its record
(``audit_unavailable``). Read next: ``stockade.environment``, ``record.py``, ``stockade.decision``.
"""

from __future__ import annotations

import os
import signal
import time

from stockade.environment import EnvResult, apply, compile_env
from stockade.errors import TOO_LONG, AuditUnavailable, LaunchFailed, Refused, limit_of, shortage
from stockade.frozen import dataclass, field
from stockade.ids import timestamp, ulid
from stockade.process import _exec, record
from stockade.process.prepare import audit_note
from stockade.process.receipt import SCHEMA
from stockade.rules.promises import PROMISES, effective_tier, required
from stockade.rules.tiers import parse
from stockade.rules.voiding import waived_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from stockade.process.api import Completed
    from stockade.process.prepare import Prepared
    from stockade.rules.tiers import Tier

# Rows by which a command gets less than it could have: audit or deny. A proven program (D3) and what a box keeps
# already (D7) have nothing safer that would do the work.
AUDIT_OR_DENY = frozenset({"D1", "D4", "D11"})
ENV_PROMISES = frozenset({"env.secrets", "env.injection"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The records of one unconfined run, in the spool and for its receipt."""

    audit: str
    launch: Mapping[str, Any] = field(repr=False)
    degraded: tuple[str, ...] = ()
    started: float = 0.0

    def ended(self, status: int, *, timed_out: bool) -> dict[str, Any]:
        """Write the end record and return it."""
        return self._written(_end_record(self, status, timed_out=timed_out))

    def failed(self, argv0: str, err: OSError) -> Refused | LaunchFailed:
        """Write that the command did not start, and return the typed error."""
        error = _not_started(argv0, err)
        self._written({
            "schema": SCHEMA, "record": "refused", "run_id": self.launch["run_id"], "ts": timestamp(),
            "code": error.code, "step": 14, "object": argv0, "errno": err.errno, "errno_name": _name(err),
            "message": error.message, "hint": error.hint, "transient": getattr(error, "transient", False)})
        return error

    def _written(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            record.append(self.audit, row)
        except OSError as err:
            _warn(f"the {row['record']} record of {row['run_id']} could not be written ({_name(err)})")
            row["degraded"] = [*row.get("degraded", ()), f"audit: {row['record']} record not written"]
        return row


def bare(prepared: Prepared) -> _exec.Bare:
    """Return what to start instead of the launcher; the decision is on record when this returns.

    Raises: AuditUnavailable.
    """
    request = prepared.resolved.request
    result = _environment(prepared)
    return _exec.Bare(argv=_argv(prepared), env=tuple(result.kept.items()), cwd=request.cwd, pass_fds=request.pass_fds,
                      journal=_decided(prepared, result, supervisor=None))


def become(prepared: Prepared) -> NoReturn:
    """Replace this process by the command, unconfined, with the filtered environment.

    The record names this process, which the command will be; nobody is left to write its end.
    """
    from stockade.process.spool import start_ticks

    request = prepared.resolved.request
    result = _environment(prepared)
    me = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    journal = _decided(prepared, result, supervisor=me)
    try:
        _exec.become_unconfined(_argv(prepared), result.kept, request.cwd)
    except OSError as err:
        raise journal.failed(request.argv[0], err) from err


def attend(prepared: Prepared) -> Completed[Any]:
    """Run the command in front of a person: Ctrl-C is for the command. Raises: as ``run``."""
    from stockade.process.api import run_prepared

    # A handler that does nothing, not SIG_IGN: the command would inherit that.
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return run_prepared(prepared, {})
    finally:
        signal.signal(signal.SIGINT, handler)


def _argv(prepared: Prepared) -> tuple[str, ...]:
    """In a box a program's own sandbox cannot be made, so the switches of its profile are set; else never."""
    if prepared.decision.kind != "passthrough":
        return prepared.resolved.request.argv
    from stockade.plan.compile import command_line

    return command_line(prepared.resolved, prepared.resolved.request.argv)


def _environment(prepared: Prepared) -> EnvResult:
    resolved = prepared.resolved
    policy = compile_env(resolved, tier=prepared.decision.env_tier)
    return apply(policy, resolved.request.environ(), resolved.set_env)


def _decided(prepared: Prepared, result: EnvResult, supervisor: dict[str, Any] | None) -> Journal:
    """Record the decision before acting."""
    resolved = prepared.resolved
    if prepared.request.on_persistence not in (None, "report"):
        raise Refused("persistence_unwatched", f"on_persistence {prepared.request.on_persistence!r}: got "
                      f"{prepared.decision.kind}, expected a box of its own")
    launch = _launch_record(prepared, result, supervisor)
    degraded = [prepared.decision.kind, *audit_note(resolved)]
    told = prepared.decision.kind == "passthrough" and record.tell_outside(launch)
    if prepared.decision.kind == "passthrough" and not told:
        degraded.append("audit: the box around was not told")
    try:
        record.append(resolved.state_home.audit, launch)
    except OSError as err:
        what = f"launch record of {resolved.request.argv[0]!r} in {resolved.state_home.audit!r}: cannot be written"
        why = _must_be_recorded(prepared, told=told)
        if why:
            raise _unrecorded(what, why, err) from err
        _warn(f"{what} ({_name(err)})")
        degraded.append("audit: launch record not written")
    return Journal(audit=resolved.state_home.audit, launch=launch, degraded=tuple(degraded),
                   started=time.monotonic())


def _must_be_recorded(prepared: Prepared, *, told: bool) -> str:
    """Return why nothing runs without its record; empty where it goes on and the gap is marked."""
    policy = prepared.resolved.policy
    if policy.require_audit:
        return f"{policy.origin('require_audit')} requires it"
    if prepared.decision.row in AUDIT_OR_DENY and not told:
        return f"what runs by {prepared.decision.row} ({prepared.decision.kind}) is on record, or does not run"
    return ""


def _unrecorded(what: str, why: str, err: OSError) -> Refused | AuditUnavailable:
    """Return the error of a run that is not started; a limit of the caller's is a shortage, not a fault of the log."""
    limit, hint = limit_of(err.errno or 0)
    if limit:
        return Refused("resource", f"{what} ({_name(err)}; {limit})", hint=hint)
    return AuditUnavailable("audit_unavailable", f"{what} ({_name(err)}), and {why}")


def _warn(text: str) -> None:
    from logging import getLogger  # only what goes wrong is logged

    getLogger("stockade").warning("audit degraded: %s", text)


def _not_started(argv0: str, err: OSError) -> Refused | LaunchFailed:
    import errno

    short = shortage(err, f"command {argv0!r}")
    if short is not None:
        return short
    name = _name(err)
    if err.errno == errno.E2BIG:
        return LaunchFailed("launch_failed", f"command {argv0!r}: could not be started ({name})", hint=TOO_LONG)
    if err.errno in (errno.ENOENT, errno.ENOTDIR):
        return Refused("not_found", f"command {argv0!r}: not found ({name})")
    if err.errno in (errno.EACCES, errno.ENOEXEC, errno.EPERM):
        return Refused("exec_failed", f"command {argv0!r}: cannot be executed ({name})")
    return LaunchFailed("launch_failed", f"command {argv0!r}: could not be started ({name})")


def _name(err: OSError) -> str:
    import errno

    return errno.errorcode.get(err.errno or 0, "EIO")


def _states(prepared: Prepared) -> list[dict[str, Any]]:
    """The promise rows: the environment's, unless a named variable gave them away, and those of a box around."""
    resolved, decision = prepared.resolved, prepared.decision
    given = {promise: name for name in resolved.env_keep
             for rule in waived_by("env", name, resolved.home) for promise in rule.waives}
    inside = decision.kind == "passthrough" and decision.tier_known and decision.active_tier is not None
    around = {row.id for row in required(parse(str(decision.active_tier)))} if inside else frozenset()
    rows = []
    for promise in PROMISES:
        own, waived = promise.id in ENV_PROMISES, promise.id in ENV_PROMISES and promise.id in given
        kept = not waived and (own or promise.id in around) and promise.id not in decision.missing
        why = f"grant: env {given[promise.id]}" if waived else decision.kind
        rows.append({"id": promise.id, "state": "kept" if kept else "waived" if waived else "not_kept",
                     "mechanism": [] if not kept else ["env_filtered"] if own else ["box_around"],
                     "reason": None if kept else why})
    return rows


def _effective(prepared: Prepared, promises: list[dict[str, Any]]) -> Tier:
    """Return what the box around is attested to keep, without what a grant gave away.

    What the request lacks there is missing from its own tier, not from that of the box.
    """
    told = parse(prepared.decision.effective_tier or "off")
    return min(told, effective_tier(row["id"] for row in promises if row["state"] != "waived"))


def _launch_record(prepared: Prepared, result: EnvResult, supervisor: dict[str, Any] | None) -> dict[str, Any]:
    resolved, decision = prepared.resolved, prepared.decision
    promises = _states(prepared)
    effective = _effective(prepared, promises)
    asked = {row.id for row in required(resolved.tier)} or {row.id for row in PROMISES}
    return {
        "schema": SCHEMA, "record": "launch", "run_id": ulid(), "ts": timestamp(), "plan": None, "backend": "none",
        "kernel": os.uname().release, "landlock_abi": 0, "caller": resolved.caller,
        "decision": decision.kind, "row": decision.row, "active_tier": decision.active_tier,
        "tier_known": decision.tier_known, "tier_downgrade": effective < resolved.tier,
        "requested_tier": str(resolved.tier), "effective_tier": str(effective), "profiles": list(resolved.profiles),
        "promises": promises, "would_be": str(effective),
        "missing": [row["id"] for row in promises if row["state"] != "kept" and resolved.tier and row["id"] in asked],
        "kept": sum(row["state"] == "kept" and row["id"] in asked for row in promises), "of": len(asked),
        "mechanisms": ["env_filtered"], "home": "host", "net": _net(prepared), "env_kept": sorted(result.kept),
        "env_dropped": result.dropped, "limits": [], "argv0": resolved.request.argv[0],
        "cwd": resolved.request.cwd, "supervisor": supervisor, "command_pid": supervisor and supervisor["pid"],
        "origin": "outside",
    }


def _net(prepared: Prepared) -> str:
    """Return the network that is there: the host's, or that of the box around."""
    if prepared.decision.kind != "passthrough":
        return "host"
    from stockade.host.active import box_record

    return "none" if box_record().get("net") == "none" else "host"


def _end_record(journal: Journal, status: int, *, timed_out: bool) -> dict[str, Any]:
    outcome = "timed_out" if timed_out else "exited" if status >= 0 else "signalled"
    return {
        "schema": SCHEMA, "record": "end", "run_id": journal.launch["run_id"], "ts": timestamp(), "outcome": outcome,
        "exit_code": status if status >= 0 else None, "signal": -status if status < 0 else None,
        "limit_hit": "wall" if timed_out else None, "wall_ms": int((time.monotonic() - journal.started) * 1000),
        "cpu_ms": None, "max_rss_bytes": None, "persistence": [], "earlier": [], "guard_lost": [], "discarded": None,
        "copyback": [],
        "net_denied": None, "inside": 0, "degraded": list(journal.degraded),
    }
