"""Every place that makes an event, and the words of the schema: the same list, both ways."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from stockade.audit.events import CARRIED_OUT
from stockade.rules.answer import KINDS

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "schemas/audit-event.v1.json").read_text(encoding="utf-8"))["properties"]
# Module and type of each; a new one is added here with its line in docs/audit.md.
EMITTERS = {
    ("audit/events.py", "spawn.decided"), ("audit/events.py", "spawn.started"), ("audit/events.py", "spawn.finished"),
    ("audit/events.py", "inside.record"), ("audit/events.py", "audit.unknown"), ("audit/ingest.py", "audit.damaged"),
    ("audit/log.py", "audit.segment"), ("audit/log.py", "audit.torn"), ("audit/retention.py", "audit.pruned"),
    ("audit/writer.py", "audit.gap"), ("cli/trust.py", "trust.granted"), ("cli/trust.py", "trust.revoked"),
}
# A type that a caller gives: cli/journal.py passes on what its own callers are listed with.
PASSED_ON = {("cli/journal.py", "kind")}


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "src/stockade").rglob("*.py")):
        name = path.relative_to(ROOT / "src/stockade").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield name, node


def made() -> Iterator[tuple[str, ast.expr, list[ast.expr]]]:
    """Module, type and outcomes of each event that is made."""
    for name, call in calls():
        if isinstance(call.func, ast.Name) and call.func.id == "made":
            yield name, call.args[0], [call.args[1]]
        elif isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "journal.record":
            yield name, call.args[1], []


def literals(node: ast.expr) -> set[str]:
    return {child.value for child in ast.walk(node) if isinstance(child, ast.Constant) and isinstance(child.value, str)}


def test_every_emitter_is_listed_and_every_type_has_one() -> None:
    found = {(name, next(iter(literals(kind)), ast.unparse(kind))) for name, kind, _ in made()}
    assert found == EMITTERS | PASSED_ON
    assert {kind for _, kind in EMITTERS} == set(SCHEMA["type"]["enum"])


def test_the_words_of_an_outcome_are_those_of_the_decision_table() -> None:
    assert set(CARRIED_OUT) == set(KINDS) - {"refuse"} | {"downgrade"}
    said = {word for _, _, outcomes in made() for node in outcomes for word in literals(node)} - set(CARRIED_OUT) - {"decision"}
    assert said | set(CARRIED_OUT.values()) <= set(SCHEMA["outcome"]["enum"])
    # `denied` is an access that a box was refused; nothing reports one yet.
    assert set(SCHEMA["outcome"]["enum"]) - said - set(CARRIED_OUT.values()) == {"denied"}


def test_every_type_is_described() -> None:
    text = (ROOT / "docs/audit.md").read_text(encoding="utf-8")
    assert [kind for kind in SCHEMA["type"]["enum"] if f"`{kind}`" not in text] == []
