"""``stockade doctor``: the printing of ``stockade.doctor``.

Status 0: every tier is kept (with ``--require``: that tier is). 1: it is not. 2: cannot tell.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from stockade import doctor as examination
from stockade.cli.grammar import Parsed, usage
from stockade.cli.output import Progress, clean, emit, paint, say, table
from stockade.doctor import NETS, Fix, Health, Trial
from stockade.errors import ConfigError
from stockade.frozen import replace
from stockade.rules.promises import required
from stockade.rules.tiers import ALL_TIERS, AUTO, Tier, parse

SCHEMA = "stockade.doctor.v1"


def doctor(parsed: Parsed) -> int:
    """Examine this host and say what it can keep."""
    wanted = _wanted(parsed.text("require"))
    if parsed.flag("dry_run") and not parsed.flag("fix"):
        raise usage("option --dry-run: got no --fix, which it is about")
    health = _examine()
    applied: list[str] = []
    if parsed.flag("fix") and not parsed.flag("dry_run") and os.geteuid() == 0:
        applied = [fix.why for fix in health.fixes if fix.sysctl and examination.apply_fix(fix)]
        health = _examine() if applied else health
    if parsed.flag("json"):
        emit(SCHEMA, {**document(health, wanted, applied), "dry_run": parsed.flag("dry_run")})
    else:
        _print(health, wanted, applied, fix=parsed.flag("fix"))
    reached = health.reach(wanted)
    return 2 if health.host is None or reached is None else 0 if reached else 1


def _wanted(text: str | None) -> Tier:
    if text is None:
        return Tier.strict
    tier = parse(text)
    if text == AUTO or tier == Tier.off:
        raise ConfigError("value_invalid", f"--require {text!r}: expected standard, guarded or strict")
    return tier


def _examine() -> Health:
    with Progress("trying boxes", 1.0) as bar:
        health = examination.examine(bar.step)
    # A box hides the host: what is broken in here says nothing about it, and a remedy for it misleads.
    return replace(health, fixes=(_go_outside(health),)) if health.place.where == "box" else health


def _go_outside(health: Health) -> Fix:
    place = health.place
    names = f"a {place.tier} box, run {place.run_id}" if place.known else "a box"
    return Fix(why=f"this process is inside {names}; the host cannot be examined from here, "
                   "and boxes inside it are built by its supervisor",
               commands=("# on the host, outside the box: stockade doctor",))


def document(health: Health, wanted: Tier, applied: list[str]) -> dict[str, Any]:
    """Return the examination as plain data."""
    return {
        "required": str(wanted), "reachable": health.reach(wanted), "best_tier": str(health.best),
        "kept": {net: str(health.best_with(net)) for net in NETS},
        "place": {"where": health.place.where, "tier": None if health.place.tier is None else str(health.place.tier)},
        "host": health.host.to_json() if health.host else None,
        "launcher": examination.launcher_report(),
        "state_home": {"path": str(health.state.path), "ephemeral": health.state.ephemeral} if health.state else None,
        "trials": [{"tier": str(t.tier), "net": t.net, "good": t.good, "kept": list(t.kept), "lost": list(t.lost),
                    "code": t.code or None, "reason": t.reason or None} for t in health.trials],
        "obstacles": [{"class": v.obstacle or None, "backend": v.name, "code": v.code, "step": v.step,
                       "object": v.object or None, "errno": v.errno or None, "reason": v.reason,
                       "transient": v.transient, "commands": list(v.commands)}
                      for v in (health.host.backends if health.host else ()) if v.code],
        "faults": [fault.to_json() for fault in health.faults],
        "fixes": [{"why": fix.why, "commands": list(fix.commands), "safe": fix.sysctl is not None}
                  for fix in health.fixes],
        "applied": applied,
    }


def _print(health: Health, wanted: Tier, applied: list[str], *, fix: bool) -> None:
    say(_answer(health, wanted))
    for fault in health.faults:
        say(f"  {clean(str(fault))}")
    rows = [_row(trial) for trial in health.trials]
    if rows:
        # Where all is well the last column has nothing to say.
        columns = 4 if any(row[3] for row in rows) else 3
        table([row[:columns] for row in rows], head=("TIER", "NET", "ANSWER", "WHY")[:columns], indent="  ")
    table(list(_facts(health)), indent="  ")
    for verdict in health.spare if health.place.where != "box" else ():
        say(f"note: backend {verdict.name} is not needed here, a stronger one works: {clean(verdict.reason)}")
    for line in applied:
        say(f"applied: {clean(line)}")
    for remedy in health.fixes:
        say(f"{paint('remedy', 'yellow')}: {clean(remedy.why)}")
        for command in remedy.commands:
            say(f"  {clean(command)}")
    if fix and not health.fixes:
        say("nothing to fix")
    elif fix and os.geteuid() != 0:
        say("run these as root; nothing was changed")


def _answer(health: Health, wanted: Tier) -> str:
    if health.host is None:
        return f"{paint('cannot tell', 'red')}: the host could not be asked"
    if health.best >= wanted:
        names = [str(tier) for tier in ALL_TIERS if tier <= health.best]
        return f"{paint('good', 'green')}: {', '.join(names)} are kept here, with net none and host"
    if health.reach(wanted) is None:
        return f"{paint('cannot tell', 'red')}: the host was short of something just now; try again"
    first = next((t for t in health.trials if t.tier == wanted and not t.good), None)
    why = "" if first is None else f": {first.code}: {first.reason}" if first.code else f": lost {' '.join(first.lost)}"
    here = [net for net in NETS if health.best_with(net) >= wanted]
    if here:
        answer = f"{wanted} is kept here with net {here[0]}, not with net {first.net if first else 'host'}"
        return f"{paint(answer, 'yellow')}{clean(why)}"
    return f"{paint(f'{wanted} is not kept here', 'red')}{clean(why)} (best: {health.best})"


def _row(trial: Trial) -> tuple[str, str, str, str]:
    total = len(required(trial.tier))
    answer = f"kept {len(trial.kept)} of {total}" if not trial.code else "refused"
    return str(trial.tier), trial.net, answer, f"{trial.code}: {trial.reason}" if trial.code else " ".join(trial.lost)


def _facts(health: Health) -> list[tuple[str, str]]:
    rows = [("place", health.place.where)]
    if health.host is not None:
        host = health.host
        rows += [("kernel", f"{host.release} {host.arch}"),
                 ("landlock", f"ABI {host.landlock_abi}" if host.landlock_abi else "none"),
                 ("caller", f"uid {host.uid}" + (", with CAP_SYS_ADMIN" if host.has_sys_admin else ""))]
        rows += [("backend", f"{v.name}: {f'{v.code}: {v.reason}' if v.code else f'keeps {len(v.keeps)} promises'}")
                 for v in host.backends]
        rows += [("obstacle", " ".join(part for part in (v.obstacle, v.object, v.errno) if part))
                 for v in host.backends if v.obstacle and v not in health.spare]
        rows += [("container", host.container_id)] if host.container_id else []
    launcher = examination.launcher_report()
    said = launcher.get("error", {}).get("message") or f"{launcher.get('version')} at {launcher.get('path')}"
    rows += [("launcher", str(said)), ("python", f"{sys.version.split()[0]} at {sys.executable}")]
    if health.state is not None:
        rows.append(("state home", f"{health.state.path}{' (ephemeral)' if health.state.ephemeral else ''}"))
    return rows
