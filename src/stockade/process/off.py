"""Tier ``off``: run without a box, with the environment promises of standard, and say so.

Owns: the records of an unconfined run; they claim the environment rows and nothing else. Only a
decision of kind ``unconfined`` leads here. Fails closed: where policy requires a record and it
cannot be written before the command starts, nothing starts (``audit_unavailable``).
Read next: ``stockade.environment``, ``record.py``.
"""

from __future__ import annotations

import os
import signal
import time

from stockade.environment import EnvResult, apply, compile_env
from stockade.errors import TOO_LONG, AuditUnavailable, LaunchFailed, Refused, shortage
from stockade.frozen import dataclass, field
from stockade.ids import ulid
from stockade.process import _exec, record
from stockade.process.prepare import audit_note
from stockade.process.receipt import SCHEMA
from stockade.rules.promises import PROMISES
from stockade.rules.voiding import waived_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from stockade.process.api import Completed
    from stockade.process.prepare import Prepared

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
            "schema": SCHEMA, "record": "refused", "run_id": self.launch["run_id"], "ts": _now(), "code": error.code,
            "step": 14, "object": argv0, "errno": err.errno, "errno_name": _name(err), "message": error.message,
            "hint": error.hint, "transient": getattr(error, "transient", False)})
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
    return _exec.Bare(argv=request.argv, env=tuple(result.kept.items()), cwd=request.cwd, pass_fds=request.pass_fds,
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
        _exec.become_unconfined(request.argv, result.kept, request.cwd)
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


def _environment(prepared: Prepared) -> EnvResult:
    resolved = prepared.resolved
    policy = compile_env(resolved, tier=prepared.decision.env_tier)
    return apply(policy, resolved.request.environ(), resolved.set_env)


def _decided(prepared: Prepared, result: EnvResult, supervisor: dict[str, Any] | None) -> Journal:
    """Record the decision before acting."""
    resolved = prepared.resolved
    if prepared.request.on_persistence not in (None, "report"):
        raise Refused("persistence_unwatched", f"on_persistence {prepared.request.on_persistence!r}: got tier off, "
                      "expected one with a box")
    launch = _launch_record(prepared, result, supervisor)
    degraded = ["unconfined", *audit_note(resolved)]
    try:
        record.append(resolved.state_home.audit, launch)
    except OSError as err:
        what = f"launch record of {resolved.request.argv[0]!r} in {resolved.state_home.audit!r}: cannot be written"
        if resolved.policy.require_audit:
            raise AuditUnavailable("audit_unavailable", f"{what} ({_name(err)}), and "
                                   f"{resolved.policy.origin('require_audit')} requires it") from err
        _warn(f"{what} ({_name(err)})")
        degraded.append("audit: launch record not written")
    return Journal(audit=resolved.state_home.audit, launch=launch, degraded=tuple(degraded),
                   started=time.monotonic())


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
    """The promise rows: the environment's are kept unless a named variable gave them away."""
    resolved = prepared.resolved
    given = {promise: name for name in resolved.env_keep
             for rule in waived_by("env", name, resolved.home) for promise in rule.waives}
    rows = []
    for promise in PROMISES:
        kept = promise.id in ENV_PROMISES and promise.id not in given
        waived = promise.id in ENV_PROMISES and promise.id in given
        rows.append({"id": promise.id, "state": "kept" if kept else "waived" if waived else "not_kept",
                     "mechanism": ["env_filtered"] if kept else [],
                     "reason": None if kept else f"grant: env {given[promise.id]}" if waived else "unconfined"})
    return rows


def _launch_record(prepared: Prepared, result: EnvResult, supervisor: dict[str, Any] | None) -> dict[str, Any]:
    resolved = prepared.resolved
    promises = _states(prepared)
    return {
        "schema": SCHEMA, "record": "launch", "run_id": ulid(), "ts": _now(), "plan": None, "backend": "none",
        "kernel": os.uname().release, "landlock_abi": 0, "caller": resolved.caller,
        "requested_tier": str(resolved.tier), "effective_tier": "off", "profiles": list(resolved.profiles),
        "promises": promises, "missing": [], "would_be": "off",
        "kept": sum(row["state"] == "kept" for row in promises), "of": len(PROMISES),
        "mechanisms": ["env_filtered"], "home": "host", "net": "host", "env_kept": sorted(result.kept),
        "env_dropped": result.dropped, "limits": [], "argv0": resolved.request.argv[0],
        "cwd": resolved.request.cwd, "supervisor": supervisor, "command_pid": supervisor and supervisor["pid"],
        "origin": "outside",
    }


def _end_record(journal: Journal, status: int, *, timed_out: bool) -> dict[str, Any]:
    outcome = "timed_out" if timed_out else "exited" if status >= 0 else "signalled"
    return {
        "schema": SCHEMA, "record": "end", "run_id": journal.launch["run_id"], "ts": _now(), "outcome": outcome,
        "exit_code": status if status >= 0 else None, "signal": -status if status < 0 else None,
        "limit_hit": "wall" if timed_out else None, "wall_ms": int((time.monotonic() - journal.started) * 1000),
        "cpu_ms": None, "max_rss_bytes": None, "persistence": [], "earlier": [], "guard_lost": [], "discarded": None,
        "copyback": [],
        "net_denied": None, "inside": 0, "degraded": list(journal.degraded),
    }


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
