"""Answers on disk: each under its own key, a bounded number, and none from a file that is not one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stockade import paths
from stockade.decision import BackendVerdict
from stockade.frozen import replace
from stockade.host import answers

VERDICT = BackendVerdict(name="namespaces", namespaces=True, keeps=frozenset({"limits", "ipc.isolated"}),
                         open_net=frozenset({"ipc.isolated"}), reason="why", remedy="what helps")


@pytest.fixture
def state(tmp_path: Path) -> paths.StateHome:
    return paths.state_home({**os.environ, "STOCKADE_HOME": str(tmp_path / "state")})


def found(state: paths.StateHome, key: str) -> tuple[int, tuple[BackendVerdict, ...]] | None:
    """ABI and verdicts of the answer that is kept under a key."""
    kept = answers.find(state, key)
    return None if kept is None else (kept.landlock_abi, kept.backends)


def test_an_answer_comes_back_whole_and_under_its_own_key_alone(state: paths.StateHome) -> None:
    assert answers.find(state, "a") is None
    answers.keep(state, "a", 3, (VERDICT,))
    answers.keep(state, "b", 0, ())
    assert found(state, "a") == (3, (VERDICT,))
    assert found(state, "b") == (0, ())
    assert answers.find(state, "c") is None
    answers.keep(state, "a", 6, ())
    assert found(state, "a") == (6, ())


def test_the_oldest_answer_goes_when_there_are_too_many(state: paths.StateHome) -> None:
    for number in range(answers.MAX_KEPT + 2):
        answers.keep(state, str(number), 6, (VERDICT,))
    kept = [number for number in range(answers.MAX_KEPT + 2) if answers.find(state, str(number)) is not None]
    assert kept == list(range(2, answers.MAX_KEPT + 2))


REFUSED = BackendVerdict(name="namespaces", namespaces=True, code="userns_denied", reason="why", remedy="what helps", obstacle="namespaces_off", step=1,
                         object="clone", errno="EPERM", commands=("sysctl -w a=1", "# words"), sysctl=("a", "1"))


def test_an_answer_with_a_refusal_comes_back_whole_and_holds_for_a_while(state: paths.StateHome, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000
    monkeypatch.setattr(answers, "time", lambda: now)
    second = replace(VERDICT, name="landlock", namespaces=False)
    answers.keep(state, "weak", 6, (REFUSED, second))
    answers.keep(state, "strong", 6, (VERDICT, REFUSED))
    assert found(state, "weak") == (6, (REFUSED, second))
    for other in (now + answers.HOLD_S, now - 1):
        monkeypatch.setattr(answers, "time", lambda other=other: other)
        assert answers.find(state, "weak") is None and found(state, "strong") == (6, (VERDICT, REFUSED))


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '{"schema": "stockade.probe.v1", "key": "a", "backends": []}',
                                  '{"schema": "stockade.probe.v2", "answers": 3}', '{"schema": "stockade.probe.v2", "answers": [3, {"key": "a"}]}',
                                  '{"schema": "stockade.probe.v2", "answers": [{"key": "a", "landlock_abi": Infinity, "backends": []}]}',
                                  "[" * 100_000, " " * (2 << 20) + "{}",
                                  '{"schema": "stockade.probe.v2", "answers": [{"key": "a", "landlock_abi": 3, "backends": [{"name": "x"}]}]}',
                                  '{"schema": "stockade.probe.v2", "answers": [{"key": "a", "landlock_abi": 3, "asked_s": "now", "backends": [{"name": "x", "code": "y", '
                                  '"keeps": [], "open_net": [], "namespaces": true, "reason": "", "remedy": ""}]}]}'])
def test_a_damaged_file_holds_no_answer_and_is_replaced(state: paths.StateHome, text: str) -> None:
    Path(state.path, "host-probe.json").write_text(text, encoding="utf-8")
    assert answers.find(state, "a") is None
    answers.keep(state, "a", 6, (VERDICT,))
    assert found(state, "a") == (6, (VERDICT,))


@pytest.mark.parametrize("kind", ["fifo", "endless", "directory"])
def test_what_is_no_file_of_ours_holds_no_answer_and_holds_nobody_up(state: paths.StateHome, kind: str) -> None:
    path = Path(state.path, "host-probe.json")
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    # In a process of its own: unbounded, it would never end or take all memory.
    script = ("import resource\nfrom stockade.host import answers\nfrom stockade.paths import StateHome\n"
              "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
              f"state = StateHome(path={state.path!r})\nprint(answers.find(state, 'a'))\nanswers.keep(state, 'a', 6, ())\n"
              "print((answers.find(state, 'a') or [None])[0])\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.split("\n")[:2] == ["None", "None" if kind == "directory" else "6"]
