"""A warm start looks at what its plan rests on while the launcher reads it: nothing runs before that look is done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stockade
from stockade.plan import compile as compiler
from stockade.plan.witness import Witness
from stockade.process import prepare
from support.live import processes_with


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    state = tmp_path / "state"
    monkeypatch.setenv("STOCKADE_HOME", str(state))
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    prepare.forget()
    yield state
    prepare.forget()


@pytest.fixture
def box(tmp_path: Path) -> stockade.Sandbox:
    work = tmp_path / "work"
    work.mkdir()
    made = stockade.Sandbox(tier="strict", caller="repository", cwd=work)
    made.run(["sh", "-c", "true"], check=True)
    return made


def appended(box: stockade.Sandbox) -> stockade.Completed[Any]:
    return box.run(["sh", "-c", "echo x >> ran; touch .git/hooks/pre-commit 2>/dev/null && echo hooked"], capture_output=True, text=True)


def records(state: Path) -> list[str]:
    return [json.loads(line)["record"] for line in (state / "audit/spool.jsonl").read_text().splitlines() if line]


def test_what_did_not_change_is_not_compiled_again(box: stockade.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile_plan", lambda *_, **__: pytest.fail("compiled again"))
    done = box.run(["sh", "-c", "echo $0 warm"], capture_output=True, text=True, input="")
    assert done.stdout == "sh warm\n" and done.receipt.effective_tier == "strict"


def test_what_changed_is_compiled_again_and_the_command_runs_once(box: stockade.Sandbox, own_state: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert appended(box).stdout == ""
    (work / ".git/hooks").mkdir(parents=True)
    for part in ("objects", "refs"):
        (work / ".git" / part).mkdir()
    (work / ".git/HEAD").write_text("ref: refs/heads/main\n")
    before = len(records(own_state))
    assert appended(box).stdout == "", "a hook was written: the plan of before was used"
    assert (work / "ran").read_text() == "x\nx\n"
    assert records(own_state)[before:] == ["launch", "end"]
    assert not processes_with(str(work))


def test_nothing_runs_before_the_look_is_done(box: stockade.Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def slow(_self: Witness, _env: Any) -> bool:
        time.sleep(0.5)  # a start takes 10 ms
        seen.append((tmp_path / "work/ran").exists())
        return True

    monkeypatch.setattr(Witness, "still_true", slow)
    assert appended(box).returncode in (0, 1)
    assert seen == [False] and (tmp_path / "work/ran").exists()


def test_a_look_that_fails_ends_the_launcher_that_waited(box: stockade.Sandbox, own_state: Path, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: Witness, _env: Any) -> bool:
        raise KeyboardInterrupt

    before = records(own_state)
    monkeypatch.setattr(Witness, "still_true", broken)
    with pytest.raises(KeyboardInterrupt):
        appended(box)
    assert not (tmp_path / "work/ran").exists()
    assert records(own_state) == before
    assert not processes_with(str(tmp_path / "work"))
