"""The table that the tools' tests print: a failure is a row, a gap is named with its reason, bare is the measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import table


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and gaps of this test alone."""
    monkeypatch.setattr(table, "ROWS", [])
    monkeypatch.setattr(table, "GAPS", {"known": table.Gap(tool="cc", caller="root", tiers=("strict",), reason="told why")})


def test_work_that_fails_is_in_the_table_and_still_fails() -> None:
    with table.measured("cc", "user", table.BARE):
        pass
    with pytest.raises(AssertionError), table.measured("cc", "user", "strict"):
        raise AssertionError("the first line\nanother")
    assert [row.result for row in table.ROWS] == ["ok", "FAILED the first line"]
    assert table.ROWS[1].over_bare_s is None, "what did not end took no time"
    assert "FAILED the first line" in table.lines()[-1]


def test_time_over_bare_is_that_of_the_same_tool_and_caller() -> None:
    for tool, caller, tier in (("cc", "user", table.BARE), ("ld", "user", "strict"), ("cc", "root", "strict"), ("cc", "user", "strict")):
        with table.measured(tool, caller, tier):
            pass
    assert [row.over_bare_s is None for row in table.ROWS] == [True, True, True, False]


def test_a_gap_is_named_with_its_reason_and_belongs_to_one_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with table.measured("cc", "root", "strict", "known"):
        pass
    assert table.lines()[-2:] == ["known gaps:", "  known: told why"]
    with pytest.raises(AssertionError), table.measured("cc", "user", "strict", "known"):
        pass
    monkeypatch.setenv(table.PATH_VARIABLE, str(tmp_path / "table.json"))
    table.write()
    written = json.loads((tmp_path / "table.json").read_text())
    assert written["rows"][0]["result"] == "gap known" and written["gaps"]["known"]["reason"] == "told why"
