"""``stockade ps``, ``stop`` and ``show``: boxes that live and boxes that were.

Owns: answers from the spool. Fails closed: a box is called alive only when its supervisor's pid
and start time both fit; a record that is damaged shows nothing. Read next:
``stockade.process.spool``.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from stockade.cli.grammar import Parsed
from stockade.cli.output import Progress, age, clean, emit, paint, say, table
from stockade.cli.request import state_home
from stockade.host.active import active
from stockade.process.spool import Run, Supervisor, pick, runs

_TICK_S = 0.2


def _runs() -> dict[str, Run]:
    with Progress("reading the spool", 1.0) as bar:
        return runs(Path(state_home().audit), bar.step)


def _none() -> str:
    # A box sees no process and no record of the host: silence in here is no answer about out there.
    return "no box can be seen from inside a box" if active().where == "box" else "no box lives"


def ps(parsed: Parsed) -> int:
    """List the boxes that live."""
    rows = [_row(run, pid) for run in _runs().values() if (pid := run.supervisor) is not None]
    if parsed.flag("json"):
        emit("stockade.ps.v1", {"boxes": rows})
        return 0
    say(f"{len(rows)} box{'' if len(rows) == 1 else 'es'} live" if rows else _none())
    table([(row["run_id"], age(row["age_s"]), row["tier"], row["net"], " ".join(row["profiles"]) or "-", row["pid"],
            row["command"], row["cwd"]) for row in rows],
          head=("RUN", "AGE", "TIER", "NET", "PROFILE", "PID", "COMMAND", "CWD") if rows else ())
    return 0


def _row(run: Run, pid: int) -> dict[str, Any]:
    launch = run.launch or {}
    return {"run_id": run.run_id, "pid": pid, "command_pid": launch.get("command_pid"),
            "tier": launch.get("effective_tier"), "requested_tier": launch.get("requested_tier"),
            "net": launch.get("net"), "profiles": list(launch.get("profiles", ())), "command": launch.get("argv0"),
            "cwd": launch.get("cwd"), "started": launch.get("ts"), "age_s": round(_age_s(str(launch.get("ts", ""))), 1)}


def _age_s(stamp: str) -> float:
    try:
        # Nanoseconds are more than datetime takes.
        head, _, tail = stamp.removesuffix("Z").partition(".")
        return time.time() - datetime.fromisoformat(f"{head}.{tail[:6] or '0'}+00:00").timestamp()
    except ValueError:
        return 0.0


def stop(parsed: Parsed) -> int:
    """End a box: SIGTERM to its command, after the grace time everything."""
    from stockade.rules import units

    grace_s = units.milliseconds("--grace", parsed.text("grace") or "10s") / 1000
    run = pick(_runs(), parsed.words[0])
    how = _stop(run, grace_s)
    if parsed.flag("json"):
        emit("stockade.stop.v1", {"run_id": run.run_id, "result": how})
    else:
        say({"ended": f"{run.run_id} ended", "killed": f"{run.run_id} was killed after {grace_s:g} s",
             "not_alive": f"{run.run_id} does not live", "stays": f"{run.run_id} does not end"}[how])
    return 0 if how in ("ended", "killed") else 1


def _stop(run: Run, grace_s: float) -> str:
    try:
        with Supervisor(run) as supervisor:
            supervisor.ask()
            if _wait(supervisor, grace_s, "waiting for the command"):
                return "ended"
            supervisor.kill()
            return "killed" if _wait(supervisor, 10.0, "ending the box") else "stays"
    except ProcessLookupError:
        return "not_alive"


def _wait(supervisor: Supervisor, limit_s: float, what: str) -> bool:
    started = time.monotonic()
    with Progress(what, limit_s) as bar:
        while (spent := time.monotonic() - started) < limit_s:
            if supervisor.ended(min(_TICK_S, limit_s - spent)):
                return True
            bar.step(spent)
    return supervisor.ended(0.0)


def show(parsed: Parsed) -> int:
    """Print the receipt of a box, or why it was refused."""
    run = pick(_runs(), parsed.words[0])
    receipt = run.receipt()
    if parsed.flag("json"):
        emit("stockade.receipt.v1", {
            "decided": run.decided, "launch": run.launch, "end": run.end, "refused": run.refused,
            "alive": run.supervisor is not None})
        return 0
    if receipt is None and run.refused is None:
        say(f"{paint('unknown', 'yellow')}: it was about to start, and nobody of ours lived to see whether it did · "
            f"run {clean(run.run_id)}")
        return 0
    if receipt is None:
        refused = run.refused or {}
        say(f"{paint('refused', 'red')}: {clean(refused.get('code'))}: {clean(refused.get('message'))} "
            f"(hint: {clean(refused.get('hint'))}) · run {clean(run.run_id)}")
        return 0
    from stockade.cli.receipts import show as show_receipt

    show_receipt(receipt)
    if receipt.end is None:
        unwatched = receipt.backend == "none"  # the command took the place of ours
        say("  it lives" if run.supervisor else "  no end record: nobody of ours waited for a run without a box"
            if unwatched else "  no end record: the supervisor was killed")
    return 0
