"""Answers on disk: each under its own key, a bounded number, and none from a file that is not one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade import paths
from stockade.decision import BackendVerdict
from stockade.host import answers

VERDICT = BackendVerdict(name="namespaces", namespaces=True, keeps=frozenset({"limits", "ipc.isolated"}),
                         open_net=frozenset({"ipc.isolated"}), reason="why", remedy="what helps")


@pytest.fixture
def state(tmp_path: Path) -> paths.StateHome:
    return paths.state_home({**os.environ, "STOCKADE_HOME": str(tmp_path / "state")})


def test_an_answer_comes_back_whole_and_under_its_own_key_alone(state: paths.StateHome) -> None:
    assert answers.find(state, "a") is None
    answers.keep(state, "a", 3, (VERDICT,))
    answers.keep(state, "b", 0, ())
    assert answers.find(state, "a") == (3, (VERDICT,))
    assert answers.find(state, "b") == (0, ())
    assert answers.find(state, "c") is None
    answers.keep(state, "a", 6, ())
    assert answers.find(state, "a") == (6, ())


def test_the_oldest_answer_goes_when_there_are_too_many(state: paths.StateHome) -> None:
    for number in range(answers.MAX_KEPT + 2):
        answers.keep(state, str(number), 6, (VERDICT,))
    kept = [number for number in range(answers.MAX_KEPT + 2) if answers.find(state, str(number)) is not None]
    assert kept == list(range(2, answers.MAX_KEPT + 2))


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '{"schema": "stockade.probe.v1", "key": "a", "backends": []}',
                                  '{"schema": "stockade.probe.v2", "answers": 3}', '{"schema": "stockade.probe.v2", "answers": [3, {"key": "a"}]}',
                                  '{"schema": "stockade.probe.v2", "answers": [{"key": "a", "landlock_abi": 3, "backends": [{"name": "x"}]}]}'])
def test_a_damaged_file_holds_no_answer_and_is_replaced(state: paths.StateHome, text: str) -> None:
    Path(state.path, "host-probe.json").write_text(text, encoding="utf-8")
    assert answers.find(state, "a") is None
    answers.keep(state, "a", 6, (VERDICT,))
    assert answers.find(state, "a") == (6, (VERDICT,))
