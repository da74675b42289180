"""A warm start looks at what its plan rests on while the launcher reads it: nothing runs before that look is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stockade
from stockade.plan import compile as compiler
from stockade.plan.witness import Witness
from stockade.process import _box, prepare
from support.live import processes_with, wait_until

SRC = str(Path(stockade.__file__).resolve().parent.parent)


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
    assert records(own_state)[before:] == ["decided", "launch", "end"]
    assert not processes_with(str(work))


def at_the_gate(work: Path) -> bool:
    """Tell whether a launcher of that workspace sleeps until it may go on."""
    def waits(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/wchan").read_text()
        except OSError:
            return ""

    return any("poll" in waits(pid) for pid in processes_with(f"ws={work}"))


def test_nothing_runs_before_the_look_is_done(box: stockade.Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, seen = tmp_path / "work", []

    def slow(_self: Witness, _env: Any) -> bool:
        wait_until(lambda: at_the_gate(work), "the launcher waits")
        seen.append((work / "ran").exists())
        return True

    monkeypatch.setattr(Witness, "still_true", slow)
    assert appended(box).receipt.outcome == "exited"
    assert seen == [False] and (work / "ran").exists()


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


CALLER = """
import os, signal, stockade, sys
from stockade.plan.witness import Witness
box = stockade.Sandbox(tier="strict", caller="repository", cwd=sys.argv[1])
box.run(["sh", "-c", "true"], check=True)
Witness.still_true = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
box.run(["sh", "-c", "echo x >> ran"])
"""


def test_a_caller_that_dies_during_the_look_leaves_nothing_running(own_state: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    died = subprocess.run([sys.executable, "-c", CALLER, str(work)], check=False, stderr=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": SRC})
    assert died.returncode == -signal.SIGKILL
    wait_until(lambda: not processes_with(f"ws={work}"), "the launcher is gone")
    assert not (work / "ran").exists()
    assert records(own_state)[:3] == ["decided", "launch", "end"] and set(records(own_state)[3:]) <= {"refused"}


def test_a_fork_during_the_look_holds_up_neither_start_nor_end(box: stockade.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that only forks has a copy of each pipe of its parent until it ends."""
    children, kept = [], []

    def fork(_self: Witness, _env: Any) -> bool:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
        return True

    def doubled() -> tuple[int, int]:
        ends = pipe()
        kept.append(os.dup(ends[1]))
        return ends

    pipe = _box._pipe
    monkeypatch.setattr(_box, "_pipe", doubled)
    monkeypatch.setattr(Witness, "still_true", fork)
    started = time.monotonic()
    try:
        assert box.run(["sh", "-c", "exit 3"]).returncode == 3
        assert time.monotonic() - started < 30
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for fd in kept:
            os.close(fd)
