"""Tier ``off``: run without a box, with the environment promises of standard, and say so.

Owns: the receipt of an unconfined run; it claims the environment rows and nothing else. Only a
decision of kind ``unconfined`` leads here. Read next: ``stockade.environment``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from stockade.environment import apply, compile_env
from stockade.errors import LaunchFailed, Refused, TimedOut
from stockade.ids import ulid
from stockade.process import _exec, capture
from stockade.process.receipt import SCHEMA, Receipt
from stockade.rules.promises import PROMISES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from stockade.process.api import Completed
    from stockade.process.prepare import Prepared

ENV_PROMISES = frozenset({"env.secrets", "env.injection"})


def run(prepared: Prepared, options: Mapping[str, Any], popen: dict[str, Any]) -> Completed:
    """Run a command unconfined and return it with a receipt that says so."""
    from stockade.process.api import Completed

    resolved = prepared.resolved
    policy = compile_env(resolved, tier=prepared.decision.env_tier)
    result = apply(policy, resolved.request.environ(), resolved.set_env)
    popen = {**popen, "cwd": resolved.request.cwd, "pass_fds": resolved.request.pass_fds}
    popen.pop("env", None)
    launch = _launch_record(prepared, sorted(result.kept), result.dropped)
    started = time.monotonic()
    try:
        process = _exec.unconfined(resolved.request.argv, result.kept, **popen)
    except OSError as err:
        raise _not_started(resolved.request.argv[0], err) from err
    with process:
        out = capture.communicate(process, options, 0.0)
        status = process.wait()
    receipt = Receipt(launch=launch, end=_end_record(launch, status, started, out.timed_out))
    args = list(resolved.request.argv)
    if out.timed_out:
        raise TimedOut(args, float(options["timeout"]), output=out.stdout, stderr=out.stderr, receipt=receipt)
    return Completed(args, status, out.stdout, out.stderr, receipt=receipt, truncated=out.truncated)


def become(prepared: Prepared) -> NoReturn:
    """Replace this process by the command, unconfined, with the filtered environment."""
    request = prepared.resolved.request
    policy = compile_env(prepared.resolved, tier=prepared.decision.env_tier)
    result = apply(policy, request.environ(), prepared.resolved.set_env)
    try:
        _exec.become_unconfined(request.argv, result.kept, request.cwd)
    except OSError as err:
        raise _not_started(request.argv[0], err) from err


def attend(prepared: Prepared) -> Completed:
    """Run the command in front of a person: Ctrl-C is for the command. Raises: as ``run``."""
    wall_ms = prepared.resolved.limits.get("wall_ms")
    # A handler that does nothing, not SIG_IGN: the command would inherit that.
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return run(prepared, {} if wall_ms is None else {"timeout": wall_ms / 1000}, {})
    finally:
        signal.signal(signal.SIGINT, handler)


def _not_started(argv0: str, err: OSError) -> Refused | LaunchFailed:
    import errno

    name = errno.errorcode.get(err.errno or 0, "EIO")
    if err.errno in (errno.ENOENT, errno.ENOTDIR):
        return Refused("not_found", f"command {argv0!r}: not found ({name})")
    if err.errno in (errno.EACCES, errno.ENOEXEC, errno.EPERM):
        return Refused("exec_failed", f"command {argv0!r}: cannot be executed ({name})")
    return LaunchFailed("launch_failed", f"command {argv0!r}: could not be started ({name})")


def _launch_record(prepared: Prepared, kept: list[str], dropped: list[str]) -> dict[str, Any]:
    resolved = prepared.resolved
    promises = [{"id": p.id, "state": "kept" if p.id in ENV_PROMISES else "not_kept",
                 "mechanism": ["env_filtered"] if p.id in ENV_PROMISES else [],
                 "reason": None if p.id in ENV_PROMISES else "unconfined"} for p in PROMISES]
    return {
        "schema": SCHEMA, "record": "launch", "run_id": ulid(), "ts": _now(), "plan": None, "backend": "none",
        "kernel": os.uname().release, "landlock_abi": 0, "caller": resolved.caller,
        "requested_tier": str(resolved.tier), "effective_tier": "off", "profiles": list(resolved.profiles),
        "promises": promises, "missing": [], "would_be": "off", "kept": len(ENV_PROMISES), "of": len(PROMISES),
        "mechanisms": ["env_filtered"], "home": "host", "net": "host", "env_kept": kept,
        "env_dropped": dropped, "limits": [], "argv0": resolved.request.argv[0],
        "cwd": resolved.request.cwd, "supervisor": None, "command_pid": None, "origin": "outside",
    }


def _end_record(launch: Mapping[str, Any], status: int, started: float, timed_out: bool) -> dict[str, Any]:
    outcome = "timed_out" if timed_out else "exited" if status >= 0 else "signalled"
    return {
        "schema": SCHEMA, "record": "end", "run_id": launch["run_id"], "ts": _now(), "outcome": outcome,
        "exit_code": status if status >= 0 else None, "signal": -status if status < 0 else None,
        "limit_hit": "wall" if timed_out else None, "wall_ms": int((time.monotonic() - started) * 1000),
        "cpu_ms": 0, "max_rss_bytes": 0, "persistence": [], "guard_lost": [], "discarded": None,
        "net_denied": None, "inside": 0, "degraded": ["unconfined"],
    }


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
