"""``stockade prove``: the printing of ``stockade.prove``.

Status 0: nothing that a receipt calls kept was broken. 1: something was. 2: cannot tell.
"""

from __future__ import annotations

from typing import Any

from stockade.cli.grammar import Parsed
from stockade.cli.output import Progress, clean, emit, paint, say, table
from stockade.errors import ConfigError
from stockade.light import Iterator
from stockade.prove.model import Finding, Outcome
from stockade.prove.run import Proof, Trial
from stockade.prove.run import prove as attack
from stockade.rules.promises import PROMISES
from stockade.rules.tiers import ALL_TIERS, AUTO, Tier, parse

SCHEMA = "stockade.prove.v1"
_SHOWN = 12


def prove(parsed: Parsed) -> int:
    """Attack what the tiers promise and say what held."""
    tiers = _tiers(parsed.text("tier"))
    with Progress("attacking", 1.0) as bar:
        proof = attack(tiers, against=parsed.text("against"), nested=parsed.flag("nested"), progress=bar.step)
    if parsed.flag("json"):
        emit(SCHEMA, document(proof))
    else:
        _print(proof)
    return proof.status


def _tiers(text: str | None) -> tuple[Tier, ...]:
    if text is None:
        return ALL_TIERS
    tier = Tier.off if text == AUTO else parse(text)
    if tier == Tier.off:
        raise ConfigError("value_invalid", f"--tier {text!r}: expected standard, guarded or strict")
    return (tier,)


# -- for people ------------------------------------------------------------------------------------


def _print(proof: Proof) -> None:
    say(_answer(proof))
    columns = [trial for trial in (*proof.trials, *([proof.peer] if proof.peer else [])) if trial.findings]
    rows = [[promise.id, *(_cell(trial, promise.id) for trial in columns)] for promise in PROMISES]
    rows = [row for row in rows if any(cell != "-" for cell in row[1:])]
    if rows:
        table(rows, head=("PROMISE", *(trial.name.upper() for trial in columns)), indent="  ")
    for line in _notes(proof):
        say(clean(line))


def _answer(proof: Proof) -> str:
    if proof.broken:
        names = " ".join(f"{tier}:{item.promise}" for tier, item in proof.broken)
        return f"{paint('BROKEN', 'red')}: the receipt says kept and an attack worked: {clean(names)}"
    if proof.unanswered:
        trial = proof.unanswered[0]
        return f"{paint('cannot tell', 'red')}: {clean(f'{trial.name}: {trial.code}: {trial.reason}')}"
    worked = sum(outcome.state == "worked" for outcome in proof.bare)
    names = ", ".join(trial.name for trial in proof.trials) + (" inside standard" if proof.nested else "")
    states = {item.state for trial in proof.trials for item in trial.findings}
    if states == {"kept"}:
        return f"{paint('kept', 'green')}: {names}: {worked} attacks work without a box, none in one"
    return f"{paint('nothing broken', 'yellow')}: {names}: {worked} attacks work without a box, none where the " \
           "receipt says kept; see below for what is not kept or could not be tried"


def _cell(trial: Trial, promise: str) -> str:
    item = trial.of(promise)
    if item is None:
        return "-"
    if item.state in ("open", "stopped"):
        return f"{item.count('worked')} of {item.tried} worked"
    stopped = f" {item.count('stopped')}/{item.tried}" if item.tried else ""
    return f"{item.state.upper() if item.state == 'broken' else item.state.replace('_', ' ')}{stopped}"


def _notes(proof: Proof) -> Iterator[str]:
    for trial in proof.trials:
        for name in trial.raised:
            yield f"{name}: raised by {trial.raised_by}: what was tried is {trial.name}"
        if trial.backend == "landlock":
            yield f"{trial.name}: made without namespaces, which this host refuses: backend landlock"
        for item in trial.findings:
            if item.state != "kept":
                yield f"{trial.name} {item.promise}: {item.state.replace('_', ' ')}{item.reason and f': {item.reason}'}"
                yield from (f"  {outcome.attack.name}: worked: {outcome.detail}" for outcome in _worked(item)[:_SHOWN])
    for trial in proof.unanswered if proof.broken else proof.unanswered[1:]:  # the answer says the first
        yield f"{trial.name}: {trial.code}: {trial.reason}"
    idle = [outcome for outcome in proof.bare if outcome.state == "not_tried"]
    if idle:
        names = ", ".join(outcome.attack.name for outcome in idle[:_SHOWN])
        yield f"not tried, for they do not work here without a box either: {names}{' ...' if idle[_SHOWN:] else ''}"


def _worked(item: Finding) -> list[Outcome]:
    return [outcome for outcome in item.outcomes if outcome.state == "worked"]


# -- for programs ----------------------------------------------------------------------------------


def document(proof: Proof) -> dict[str, Any]:
    """Return everything that was shown as plain data."""
    return {
        "answer": "broken" if proof.broken else "cannot_tell" if proof.unanswered else "nothing_broken",
        "nested": proof.nested,
        "without_a_box": [_row(outcome) for outcome in proof.bare],
        "tiers": [_trial(trial) for trial in proof.trials],
        "against": _trial(proof.peer) if proof.peer else None,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {"name": trial.name, "raised": list(trial.raised), "raised_by": trial.raised_by or None,
            "seconds": trial.seconds, "backend": trial.backend or None, "effective_tier": trial.effective_tier or None,
            "code": trial.code or None, "reason": trial.reason or None,
            "promises": [{"id": item.promise, "state": item.state, "reason": item.reason or None,
                          "attacks": [_row(outcome) for outcome in item.outcomes]} for item in trial.findings]}


def _row(outcome: Outcome) -> dict[str, str]:
    return {"promise": outcome.attack.promise, "name": outcome.attack.name, "state": outcome.state,
            "evidence": outcome.detail}
