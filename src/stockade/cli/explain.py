"""``stockade explain``: what would happen, and where every value came from.

Owns: the report of steps (1) to (8) for one command. Starts nothing. Fails closed: it prints the
answer of the same code that ``run`` uses; a refusal is the answer of status 1, with its remedy.
Read next: ``stockade.process.prepare``, ``docs/decision.md``.
"""

from __future__ import annotations

import sys
from typing import Any

from stockade.cli import request as wanted
from stockade.cli.grammar import Parsed
from stockade.cli.output import clean, emit, paint, say, table, tell
from stockade.decision import Decision, decide
from stockade.environment import apply, compile_env, name_matches, secret_names
from stockade.errors import EXIT_NOT_FOUND, Refused
from stockade.host.active import Active, active
from stockade.host.probe import facts_at
from stockade.host.standpoint import standpoint
from stockade.light import Iterator, Mapping
from stockade.paths import is_below
from stockade.plan.compile import Compiled
from stockade.process.prepare import prepare
from stockade.rules.load import load_list
from stockade.rules.promises import PROMISES, required
from stockade.rules.resolve import Resolved, resolve
from stockade.rules.tiers import Tier, parse

SCHEMA = "stockade.explain.v1"
_LEGEND = ("steps on the path of every request: 1 request, 2 caller class, 3 policy, 4 where this process is,",
           "5 what the host can keep, 6 decision, 7 record, 8 plan; explain ends here, before 9 launch and 10 receipt")
_LISTS = ("write_roots", "read", "hide", "devices", "sockets", "allow", "accept")


class Explained:
    """A request followed through the steps, as far as it comes."""

    def __init__(self, parsed: Parsed) -> None:
        self.request = wanted.request(parsed, parsed.words)
        self.resolved: Resolved = resolve(self.request)
        self.place: Active = active()
        self.host = facts_at(self.place, self.resolved.state_home)
        self.decision: Decision = decide(standpoint(self.place, self.resolved), self.host, self.resolved)
        self.compiled: Compiled | None = None
        self.refused: Refused | None = None
        try:
            self.compiled = prepare(self.request).compiled
        except Refused as error:
            self.refused = error


def explain(parsed: Parsed) -> int:
    """Print the decision for a command and everything behind it."""
    if parsed.flag("argv"):
        return _launch_line(parsed)
    try:
        found = Explained(parsed)
    except Refused as error:
        return _refused_at_once(parsed, error)
    if parsed.flag("json"):
        emit(SCHEMA, document(found))
    else:
        _print(found)
    return 1 if found.refused else 0


def _refused_at_once(parsed: Parsed, error: Refused) -> int:
    """A request that is refused before a decision: there is nothing else to tell."""
    if parsed.flag("json"):
        emit(SCHEMA, {"answer": "refuse", "argv": list(parsed.words), "decision": None, "refused": error.to_json()})
    else:
        say(f"{paint('refuse', 'red')}: {clean(str(error))}")
    return 1


def _launch_line(parsed: Parsed) -> int:
    import shlex

    from stockade.process.api import wrap

    options = wanted.options(parsed)
    try:
        line = wrap(list(parsed.words), **options)
    except Refused as error:
        # Standard output is for a shell to run: an answer in words must not get there.
        tell(f"refused: {error}")
        return 1
    say(shlex.join(line.argv))
    if options.get("set_env") and sys.stderr.isatty():
        # An argv is readable for every process of the machine.
        tell(f"the values of {' '.join(sorted(options['set_env']))} are not in the line: set them where it is started")
    return 0


def document(found: Explained) -> dict[str, Any]:
    """Return the report as plain data."""
    resolved = found.resolved
    kept, dropped = environment(found)
    return {
        "answer": "refuse" if found.refused else found.decision.kind,
        "argv": list(found.request.argv),
        "decision": found.decision.to_json(),
        "refused": found.refused.to_json() if found.refused else None,
        "place": {"where": found.place.where, "run_id": found.place.run_id},
        "host": found.host.to_json(),
        "grants": [{"kind": kind, "value": value, "origin": origin}
                   for kind, value, origin in (*grants(resolved), *toolchains(found))],
        "promises": [{"id": row[0], "state": row[1], "reason": row[2], "statement": row[3]} for row in promises(found)],
        "environment": {"kept": kept, "dropped": [{"name": name, "rule": rule} for name, rule in dropped]},
        "limits": dict(resolved.limits),
        "plan": found.compiled.digest if found.compiled else None,
        "notes": notes(found),
    }


def grants(resolved: Resolved) -> Iterator[tuple[str, str, str]]:
    """Yield kind, value and origin of everything that was granted, set, hidden or accepted; of a variable its name."""
    for kind in _LISTS:
        for item in getattr(resolved, kind):
            value = getattr(item, "path", None) or getattr(item, "value", "")
            yield kind.replace("write_roots", "write"), str(value), item.origin
    for item in resolved.variables:
        yield "env", item.value, item.origin
    for cache in resolved.caches:
        yield "cache", cache.path, cache.origin
    for place in resolved.private:
        yield "private", place.path, place.origin


def toolchains(found: Explained) -> Iterator[tuple[str, str, str]]:
    """Yield what a strict box shows read-only besides grants and the operating system."""
    if found.compiled is None or found.resolved.tier != Tier.strict:
        return
    system = [entry.path for entry in load_list("system") if entry.path]
    known = [*system, "/etc", *(value for kind, value, _ in grants(found.resolved) if kind != "env")]
    plan = found.compiled.plan
    if plan["backend"] == "landlock":
        rules = (rule["path"] for rule in plan["landlock"]["rules"] if rule["access"] == "read")
        for path in rules:
            if path.startswith("/") and not any(is_below(path, item) for item in known):
                yield "toolchain", path, "on PATH, or where a known toolchain lies: read-only"
        return
    for row in plan["mounts"]:
        path = row["target"]
        if row["kind"] in ("bind", "overlay") and row.get("source") == path and path.startswith("/") \
                and not any(is_below(path, item) for item in known):
            yield "toolchain", path, "on PATH, or where a known toolchain lies: read-only"


def missing_command(found: Explained) -> str:
    """Return a note when no file of that name could be started."""
    name = found.request.argv[0]
    if found.compiled is None or found.compiled.plan["executable"] is not None or "/" in name:
        return ""
    from shutil import which

    # launcher/src/steps/exec.rs, is_here
    path = f"{found.request.environ().get('PATH', '')}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    where = "not on the PATH of the box" if which(name, path=path) else "not installed on this host"
    return f"{name} is {where}: the launch would end with not_found, status {EXIT_NOT_FOUND}"


def notes(found: Explained) -> list[str]:
    """Return what is worth a word besides the values."""
    missing = missing_command(found)
    return [*(found.compiled.notes if found.compiled else found.resolved.notes), *([missing] if missing else [])]


def promises(found: Explained) -> Iterator[tuple[str, str, str, str]]:
    """Yield id, expected state, reason and statement of every promise of the tier."""
    planned: Mapping[str, Any] = {} if found.compiled is None else {
        row["id"]: row for row in found.compiled.plan["promises"]}
    decision = found.decision
    inside = decision.kind == "passthrough" and decision.effective_tier is not None
    around = {row.id for row in required(parse(str(decision.effective_tier)))} if inside else frozenset()
    for promise in PROMISES:
        if found.resolved.tier not in promise.tiers:
            continue
        row = planned.get(promise.id, {})
        state = row.get("state") or ("kept" if found.compiled else "not_kept")
        reason = row.get("reason") or ""
        if promise.id in around:
            state, reason = "kept", "by the box around"
        lost = decision.backend == "landlock" and promise.needs_namespaces
        if promise.id in decision.missing or lost:
            state, reason = "not_kept", "the box around does not" if inside else "this host cannot"
        yield promise.id, state, reason, promise.statement


def environment(found: Explained) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the names kept, and the names dropped with the rule that drops each."""
    resolved = found.resolved
    extra: dict[str, str] = {}
    if found.compiled is not None:
        extra = dict(found.compiled.plan["env"]["set"])
    policy = compile_env(resolved, tier=found.decision.env_tier, extra_set=extra)
    result = apply(policy, resolved.request.environ(), resolved.set_env)
    return sorted(result.kept), [(name, result.reasons[name]) for name in result.dropped]


def dropped_why(name: str, rule: str) -> str:
    """Return the words for a rule of ``stockade.environment``."""
    if rule == "name":
        return "named like a secret" if name_matches(secret_names(), name) else "makes a program run foreign code"
    shape = rule.removeprefix("value: ")
    return rule if shape == rule else f"its value looks like a secret ({shape})"


def _print(found: Explained) -> None:
    say(_answer(found))
    resolved = found.resolved
    for reason in found.refused.reasons if found.refused else ():
        say(f"  {clean(reason)}")
    _section(f"row {found.decision.row} of docs/decision.md applies (step 6); the better rows do not",
             better_rows(found.decision))
    values = [(name, _show(item.value), item.origin) for name, item in resolved.values.items()]
    _section("values (steps 1 to 3)", values)
    _section("grants", [*grants(resolved), *toolchains(found)])
    _section("limits", [(name, value, "") for name, value in resolved.limits.items()])
    facts = found.host
    _section("place and host (steps 4 and 5)", [
        ("place", found.place.where, ""), ("kernel", facts.release, facts.arch),
        ("landlock", f"ABI {facts.landlock_abi}" if facts.landlock_abi else "none", ""),
        *((backend.name, backend.code or f"keeps {len(backend.keeps)} of {len(PROMISES)}", backend.reason)
          for backend in facts.backends)])
    _section("promises expected (step 6)", [(row[0], row[1], row[2] or row[3]) for row in promises(found)])
    kept, dropped = environment(found)
    say(paint("environment", "bold"))
    say(f"  kept     {clean(' '.join(kept))}")
    table([("dropped", name, dropped_why(name, rule)) for name, rule in dropped], indent="  ")
    if found.compiled:
        say(paint("plan (step 8)", "bold"))
        plan = found.compiled.plan
        parts = f"{len(plan['landlock']['rules'])} Landlock rules" if plan["backend"] == "landlock" else \
            f"{len(plan['mounts'])} mounts, {len(plan['guards'])} guards"
        say(f"  {found.compiled.digest}  {parts}")
    for note in notes(found):
        say(f"note: {clean(note)}")
    for line in _LEGEND:
        say(paint(line, "dim"))


def _answer(found: Explained) -> str:
    if found.refused:
        return f"{paint('refuse', 'red')}: {clean(str(found.refused))}"
    decision = found.decision
    if decision.kind != "wrap":
        return f"{paint(decision.kind, 'yellow')}: {_row(decision)}"
    rows = list(promises(found))
    kept = sum(row[1] == "kept" for row in rows)
    return (f"{paint('run', 'green')} at {paint(str(found.resolved.tier), 'bold')} by {decision.backend}: "
            f"{kept} of {len(rows)} promises of the tier kept; {_row(decision)}")


def _row(decision: Decision) -> str:
    return f"row {decision.row} of the decision table: {'; '.join(map(clean, decision.reasons))}"


def better_rows(decision: Decision) -> list[tuple[str, str, str]]:
    """Return the rows above the one that applied, those that failed for one reason together."""
    found: list[tuple[list[str], str]] = []
    for row, why in decision.passed_over:
        if found and found[-1][1] == why:
            found[-1][0].append(row)
        else:
            found.append(([row], why))
    return [(rows[0] if len(rows) == 1 else f"{rows[0]} to {rows[-1]}", why, "") for rows, why in found]


def _section(title: str, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        say(paint(title, "bold"))
        table(rows, indent="  ")


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)
