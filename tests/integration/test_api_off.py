"""Tier off, downgrades and the record: nothing weaker happens without a word, a record and a warning."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import stockade
from stockade.process import prepare, record, spool

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas/receipt.v1.json").read_text())


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("STOCKADE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setenv("LD_AUDIT", "/nowhere")
    prepare.forget()
    yield tmp_path / "state"
    prepare.forget()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def policy(tmp_path: Path, text: str) -> None:
    (tmp_path / "config/stockade").mkdir(parents=True, exist_ok=True)
    (tmp_path / "config/stockade/policy.toml").write_text(text)


def by_run(args: list[str], **options: Any) -> tuple[int, bytes, stockade.Receipt]:
    done = stockade.run(args, stdout=subprocess.PIPE, **options)
    return done.returncode, done.stdout, done.receipt


def by_popen(args: list[str], **options: Any) -> tuple[int, bytes, stockade.Receipt]:
    with stockade.Popen(args, stdout=subprocess.PIPE, **options) as child:
        out, _ = child.communicate()
    assert child.receipt is not None
    return child.returncode, out, child.receipt


def by_run_async(args: list[str], **options: Any) -> tuple[int, bytes, stockade.Receipt]:
    done = asyncio.run(stockade.run_async(args, stdout=subprocess.PIPE, **options))
    return done.returncode, done.stdout, done.receipt


def by_spawn(args: list[str], **options: Any) -> tuple[int, bytes, stockade.Receipt]:
    async def main() -> tuple[int, bytes, stockade.Receipt]:
        async with stockade.spawn(args, stdout=subprocess.PIPE, **options) as process:
            out, _ = await process.communicate()
        assert process.receipt is not None and process.returncode is not None
        return process.returncode, out or b"", process.receipt

    return asyncio.run(main())


Way = Callable[..., tuple[int, bytes, stockade.Receipt]]
WAYS = pytest.mark.parametrize("way", [by_run, by_popen, by_run_async, by_spawn])


@WAYS
def test_off_runs_the_same_in_every_way_and_is_on_record(work: Path, state: Path, way: Way) -> None:
    status, out, receipt = way(["sh", "-c", "echo $LD_AUDIT-$GIVEN; pwd; exit 3"], tier="off", cwd=work,
                               set_env={"GIVEN": "g"})
    assert (status, out) == (3, f"-g\n{work}\n".encode())
    assert (receipt.effective_tier, receipt.backend, receipt.outcome) == ("off", "none", "exited")
    assert {row.id for row in receipt.promises if row.state == "kept"} == {"env.secrets", "env.injection"}
    kept = spool.runs(state / "audit")[receipt.run_id]
    assert kept.launch == receipt.launch and kept.end == receipt.end
    for row in (kept.launch, kept.end):
        jsonschema.validate(row, SCHEMA)


@WAYS
def test_a_command_that_does_not_start_at_off_is_typed_and_on_record(state: Path, way: Way) -> None:
    with pytest.raises(stockade.Refused) as caught:
        way(["no-such-command"], tier="off")
    assert caught.value.code == "not_found"
    (run,) = spool.runs(state / "audit").values()
    assert run.end is None and run.refused is not None and run.refused["code"] == "not_found"
    jsonschema.validate(dict(run.refused), SCHEMA)


@WAYS
def test_a_record_that_policy_requires_comes_before_the_command(work: Path, state: Path, tmp_path: Path,
                                                                way: Way) -> None:
    policy(tmp_path, "require_audit = true\n")
    way(["true"], tier="off")  # the twin: it can be written
    (state / "audit/spool.jsonl").unlink()
    (state / "audit/spool.jsonl").symlink_to("/nowhere")
    with pytest.raises(stockade.AuditUnavailable) as caught:
        way(["touch", str(work / "ran")], tier="off")
    assert caught.value.code == "audit_unavailable" and "policy.toml" in caught.value.message
    assert not (work / "ran").exists()


@WAYS
def test_without_that_policy_what_runs_without_a_box_is_on_record_too_or_does_not_run(work: Path, state: Path, way: Way) -> None:
    way(["true"], tier="off")  # the twin: it can be written
    (state / "audit/spool.jsonl").unlink()
    (state / "audit/spool.jsonl").symlink_to("/nowhere")
    with pytest.raises(stockade.AuditUnavailable, match="D1"):
        way(["touch", str(work / "ran")], tier="off")
    assert not (work / "ran").exists()


def test_the_record_of_a_command_that_replaces_the_command_line_names_its_process(work: Path, state: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(stockade.__file__).parents[1])}
    child = subprocess.Popen([sys.executable, "-m", "stockade", "run", "--tier", "off", "--quiet", "--", "sleep", "60"],
                             env=environ, cwd=work, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not (found := spool.runs(state / "audit")) and time.monotonic() < deadline:
            time.sleep(0.02)
        (run,) = found.values()
        assert run.supervisor == child.pid
    finally:
        child.kill()
        child.wait()
    assert run.supervisor is None


@pytest.mark.parametrize("way", [by_run, by_run_async])
@pytest.mark.parametrize("limit", [{"timeout": 0.3}, {"limits": {"wall": "300ms"}}])
def test_a_time_limit_holds_at_off(way: Way, limit: dict[str, Any]) -> None:
    with pytest.raises(stockade.TimedOut) as caught:
        way(["sleep", "60"], tier="off", **limit)
    assert caught.value.receipt.outcome == "timed_out"


def test_cancelling_at_off_ends_the_command_before_the_error_leaves(work: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(stockade.run_async(["sh", "-c", "echo $$ > pid; exec sleep 60"], tier="off",
                                                      cwd=work))
        while not (work / "pid").exists() or not (work / "pid").read_text():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(int((work / "pid").read_text()), 0)


def test_kill_at_off_is_a_plain_kill() -> None:
    child = stockade.Popen(["sleep", "60"], tier="off")
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert child.receipt is not None and child.receipt.outcome == "signalled"


def test_a_loader_variable_is_waived_in_the_receipt_of_off() -> None:
    done = stockade.run(["sh", "-c", "echo $LD_AUDIT"], tier="off", pass_env=["LD_AUDIT"], capture_output=True)
    states = {row.id: row.state for row in done.receipt.promises}
    assert (states["env.injection"], states["env.secrets"]) == ("waived", "kept")


@WAYS
def test_every_accepted_downgrade_warns_and_is_logged(work: Path, caplog: pytest.LogCaptureFixture, way: Way) -> None:
    given: dict[str, Any] = {"tier": "strict", "caller": "repository", "cwd": work, "pass_env": ["LD_AUDIT"]}
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "stockade"), \
                pytest.warns(stockade.DowngradeWarning, match="env.injection"):
            way(["true"], accept=["env.injection"], **given)
        assert [entry.name for entry in caplog.records] == ["stockade"]


def test_a_launch_line_warns_too_and_the_warning_names_the_callers_line(work: Path) -> None:
    with pytest.warns(stockade.DowngradeWarning) as told:
        stockade.wrap(["true"], tier="strict", cwd=work, pass_env=["LD_AUDIT"], accept=["env.injection"])
        stockade.run(["true"], tier="strict", cwd=work, pass_env=["LD_AUDIT"], accept=["env.injection"])
        stockade.Sandbox(tier="strict", cwd=work, pass_env=["LD_AUDIT"], accept=["env.injection"]).run(["true"])
        stockade.Popen(["true"], tier="strict", cwd=work, pass_env=["LD_AUDIT"], accept=["env.injection"]).wait()
    assert [Path(item.filename).name for item in told] == [Path(__file__).name] * 4


def test_an_accept_that_costs_nothing_says_nothing(work: Path) -> None:
    stockade.run(["true"], tier="strict", cwd=work, accept=["env.injection"])


def test_a_state_home_that_cannot_be_written_is_said(work: Path, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STOCKADE_HOME", str(tmp_path / "file/home"))
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "service"))
    for tier in ("strict", "off"):
        done = stockade.run(["true"], tier=tier, cwd=work)
        assert done.receipt.end is not None
        assert f"audit: ephemeral, in {tmp_path}/service" in done.receipt.end["degraded"]
    environ = {**os.environ, "PYTHONPATH": str(Path(stockade.__file__).parents[1])}
    said = subprocess.run([sys.executable, "-m", "stockade", "run", "--cwd", str(work), "--", "true"], env=environ,
                          stderr=subprocess.PIPE, text=True, check=False)
    assert f"'{tmp_path}/file/home' cannot be written" in said.stderr


def test_no_start_removes_a_record_that_the_log_has_not(state: Path, tmp_path: Path) -> None:
    stockade.run(["true"], tier="off")
    old = state / "audit/spool.jsonl.00000000000000000000000000"
    old.write_bytes(record.frame({"a": 1}))
    os.utime(old, (1, 1))
    policy(tmp_path, 'retention = "30d"\n')
    stockade.run(["true"], tier="off")
    assert old.exists()
