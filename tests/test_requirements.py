"""The manifest and the tests agree, both ways."""

from __future__ import annotations

import ast
from pathlib import Path

from requirements import BY_ID, DEFERRED, NOW, PROMISES

TESTS = Path(__file__).parent
EVIDENCE_DIRS = ("attacks", "integration", "tools")


def _cited_in(path: Path) -> set[str]:
    cited: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "requirement":
            cited.update(arg.value for arg in node.args if isinstance(arg, ast.Constant))
    return cited


def _all_cited() -> set[str]:
    files = [path for name in EVIDENCE_DIRS for path in sorted((TESTS / name).glob("test_*.py"))]
    return set().union(*(_cited_in(path) for path in files))


def test_every_requirement_of_now_has_a_test() -> None:
    missing = sorted({entry.id for entry in NOW} - _all_cited())
    assert missing == []


def test_every_cited_id_is_in_the_manifest_and_not_deferred() -> None:
    cited = _all_cited()
    assert sorted(cited - set(BY_ID)) == []
    assert sorted(cited & {entry.id for entry in DEFERRED}) == []


def test_ids_are_unique() -> None:
    assert len(BY_ID) == len(NOW) + len(DEFERRED)


def test_every_promise_has_its_own_attack_file() -> None:
    for entry in PROMISES:
        path = TESTS / "attacks" / f"test_{entry.id.replace('.', '_')}.py"
        assert path.is_file(), f"{entry.id}: no attack file {path.name}"
        assert entry.id in _cited_in(path), f"{path.name}: does not cite {entry.id}"


def test_the_promise_table_and_the_manifest_name_the_same_promises() -> None:
    from stockade.rules.promises import PROMISES as TABLE

    table = {row.id: sorted(str(getattr(tier, "name", tier)) for tier in row.tiers) for row in TABLE}
    assert table == {entry.id: sorted(entry.tiers) for entry in PROMISES}


def test_every_attack_test_cites_a_requirement() -> None:
    for path in sorted((TESTS / "attacks").glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names = [d.func.id for d in node.decorator_list if isinstance(d, ast.Call) and isinstance(d.func, ast.Name)]
                assert "requirement" in names, f"{path.name}:{node.lineno} {node.name} cites nothing"
