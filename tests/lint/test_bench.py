"""The benchmark's own promises: a peer that hangs is a row, nothing of the peers runs while root fetches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLEEPS = "echo begun; sleep 600 & echo $! >{pid}; wait"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A place for sockets: the names of tmp_path are too long for one (unix(7): 108 bytes)."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "worlds").mkdir()
        yield Path(name)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of bench/, which lie on no path of the tests."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import compare
    import others
    import rows
    import spawn

    yield {"compare": compare, "others": others, "rows": rows, "spawn": spawn}
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", "").startswith(str(ROOT / "bench")):
            del sys.modules[name]


def is_over(pid: int) -> bool:
    """Tell whether a process runs no more; one that nobody reaps is over as well."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_peer_that_gives_no_answer_is_ended_with_its_children(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    others = bench["others"]
    pid = tmp_path / "pid"
    done = others.answer(["sh", "-c", SLEEPS.format(pid=pid)], 2)
    assert (done.returncode, done.stdout) == (others.NO_ANSWER, "begun\n") and "no answer within 2 s" in done.stderr
    child, until = int(pid.read_text()), time.monotonic() + 20
    while not is_over(child):
        assert time.monotonic() < until
        time.sleep(0.05)
    quick = others.answer(["sh", "-c", "echo out; echo err >&2; exit 3"], 20)
    assert (quick.returncode, quick.stdout, quick.stderr) == (3, "out\n", "err\n"), "the twin"


def test_a_hanging_peer_is_a_row_that_says_so(bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = bench["others"]
    for name in ("tools", "worlds", "bench/build"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("noop", "pause"):
        (tmp_path / "bench/build" / name).touch()
    world = bench["rows"].World.make(tmp_path / "worlds", tmp_path)
    monkeypatch.setattr(others, "NOOP_WAIT_S", 1)
    assert others.unusable(world, "slow", ["/bin/sleep", "60"]) == "does not run here: status 124: no answer within 1 s"
    assert others.unusable(world, "quick", ["/bin/true"]) == ""


def test_an_attack_on_a_peer_that_gives_no_answer_is_not_called_stopped(
        bench: dict[str, ModuleType], short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = bench["compare"]
    monkeypatch.setattr(compare, "WAIT_S", 1)
    slow = "read a secret variable"
    with compare.made(short_path) as place:
        lines = {name: row for name, row in compare.attacks(place).items() if name in (slow, "append to ~/.bashrc", "make a user namespace")}
        monkeypatch.setattr(compare, "attacks", lambda place: lines)
        answers = compare.column(place, lambda line: ["sh", "-c", f"{line}; sleep 60" if "bashrc" in line else "sleep 60" if "SECRET" in line
                                                      else "false" if "unshare" in line else line])
        assert answers == {slow: "no answer", "append to ~/.bashrc": "**worked**", "make a user namespace": "stopped"}
        assert compare.column(place, lambda line: ["sleep", "60"]) == {"": "does not run here: no answer within 1 s"}


def test_fetching_the_peers_runs_none_of_their_scripts(bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = bench["others"]
    asked: list[list[str]] = []

    def answer(argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(others, "answer", answer)
    monkeypatch.setattr(others, "SYSTEM_PROGRAMS", {})  # those are the distribution's, reviewed
    others.fetch(tmp_path)
    assert len(asked) == len(others.PYTHON_PEERS) + len(others.NODE_PEERS)
    for argv in asked:
        assert "--ignore-scripts" in argv if argv[0] == "npm" else argv[argv.index("--only-binary") + 1] == ":all:", argv


def test_the_figures_keep_under_which_priority_they_were_taken(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    spawn, rows = bench["spawn"], bench["rows"]
    row = rows.judged("what", 2.0, rows.Budget(most=1.5, unit="×"), {"a": 1.0})
    spawn.write_json(tmp_path / "out.json", {"user": [row]}, runs=7, priority=spawn.NORMAL)
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["priority"].startswith("normal priority") and document["results"]["user"][0]["verdict"] == "FAIL"
    if os.geteuid() == 0:
        was = os.sched_getscheduler(0)
        try:
            assert spawn.undisturbed().startswith(("real-time", "normal"))
        finally:
            os.sched_setscheduler(0, was, os.sched_param(0))


@pytest.mark.parametrize(("value", "bounds", "verdict", "text"), [
    (1.0, {"most": 1.0, "unit": "×"}, "ok", "≤ 1 ×"), (1.1, {"most": 1.0}, "FAIL", "≤ 1"), (0.0, {"most": 0}, "ok", "≤ 0"), (1.0, {"most": 0}, "FAIL", "≤ 0"),
    (2.0, {"least": 2.0, "unit": "×"}, "ok", "≥ 2 ×"), (1.9, {"least": 2.0}, "FAIL", "≥ 2"), (9.0, {"unit": "×"}, "", ""),
    (2.0, {"most": 0.5, "floor": 1.2}, "limit", "≤ 0.5"), (2.0, {"most": 0.5, "floor": 0.5}, "FAIL", "≤ 0.5"), (0.4, {"most": 0.5, "floor": 1.2}, "ok", "≤ 0.5"), (2.5, {"most": 0.5, "floor": 1.2}, "FAIL", "≤ 0.5"),
    (1.05, {"most": 1.03, "floor": 1.04, "share": 0.02}, "limit", "≤ 1.03"), (1.07, {"most": 1.03, "floor": 1.04, "share": 0.02}, "FAIL", "≤ 1.03"), (1.02, {"most": 1.03, "floor": 1.0, "share": 0.02}, "ok", "≤ 1.03"),
    (1.04, {"most": 1.03, "floor": 1.01, "share": 0.03}, "FAIL", "≤ 1.03"), (1.035, {"most": 1.03, "floor": 1.0, "share": 0.05}, "FAIL", "≤ 1.03"),
])
def test_a_figure_is_held_against_its_budget(bench: dict[str, ModuleType], value: float, bounds: dict[str, float], verdict: str, text: str) -> None:
    row = bench["rows"].judged("what", value, bench["rows"].Budget(**bounds), {})
    assert (row.verdict, row.budget) == (verdict, text)
