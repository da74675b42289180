"""The Python interface on the real launcher: results, typed errors, lifetime, sharing of plans."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stockade
from stockade.process import prepare
from stockade.rules.load import load_list
from support.live import processes_with

PYTHON = "/usr/bin/python3"
SRC = str(Path(stockade.__file__).resolve().parent.parent)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state home for each test, and no remembered plan of another one."""
    state = tmp_path / "state"
    monkeypatch.setenv("STOCKADE_HOME", str(state))
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    prepare.forget()
    yield state
    prepare.forget()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def box(work: Path, **options: Any) -> stockade.Sandbox:
    return stockade.Sandbox(**{"tier": "strict", "caller": "repository", "cwd": work, **options})


def wait_gone(pid: int) -> None:
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} still lives")


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_each_tier_is_kept_as_asked_and_the_receipt_says_so(work: Path, tier: str) -> None:
    done = box(work, tier=tier).run(["sh", "-c", "echo out; echo err >&2; echo made > file; exit 3"],
                                    capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert (work / "file").read_text() == "made\n"
    assert done.receipt.requested_tier == done.receipt.effective_tier == tier
    assert done.receipt.missing == ()
    assert done.receipt.outcome == "exited"
    required = [row for row in done.receipt.promises if row.state == "kept"]
    assert len(required) >= 12 and all(row.mechanism for row in required)


def test_a_signal_of_the_child_is_its_status(work: Path) -> None:
    assert box(work).run(["sh", "-c", "kill -9 $$"]).returncode == -signal.SIGKILL
    assert box(work).run(["sh", "-c", "kill -11 $$"]).returncode == -signal.SIGSEGV


def test_a_childs_own_125_is_not_taken_for_a_refusal(work: Path) -> None:
    forged = 'echo "stockade: refused: mount_denied: x: EACCES" >&2; exit 125'
    done = box(work).run(["sh", "-c", forged], capture_output=True, text=True)
    assert done.returncode == 125
    assert done.receipt.effective_tier == "strict"


def test_a_command_that_is_not_there_is_a_typed_refusal_and_has_no_receipt(work: Path) -> None:
    with pytest.raises(stockade.Refused) as caught:
        box(work).run(["no-such-command"])
    assert caught.value.code == "not_found"
    (work / "data").write_text("x")
    with pytest.raises(stockade.Refused) as caught:
        box(work).run(["./data"])
    assert caught.value.code == "exec_failed"


def test_input_and_output_pass_as_with_subprocess(work: Path) -> None:
    text = "é\n" * 100_000
    done = box(work).run(["cat"], input=text, capture_output=True, text=True)
    assert done.stdout == text
    done = box(work).run(["cat"], input=b"\0\xff", stdout=subprocess.PIPE)
    assert done.stdout == b"\0\xff"


def test_output_beyond_the_limit_is_dropped_and_said(work: Path) -> None:
    done = box(work).run(["sh", "-c", "head -c 3000000 /dev/zero; echo e >&2"], capture_limit_bytes=1000)
    assert len(done.stdout) == 1000
    assert done.truncated == {"stdout"}
    assert done.stderr == b"e\n"


def test_a_time_limit_is_typed_and_leaves_nothing_alive(work: Path) -> None:
    script = "sleep 1000 & echo started; exec sleep 1000"
    started = time.monotonic()
    with pytest.raises(stockade.TimedOut) as caught:
        box(work).run(["sh", "-c", script], timeout=3, capture_output=True, text=True)
    assert time.monotonic() - started < 40
    assert isinstance(caught.value, subprocess.TimeoutExpired)
    assert caught.value.output == "started\n"
    assert caught.value.receipt.outcome == "timed_out"


def test_a_time_limit_shorter_than_the_start_is_the_commands_and_not_the_starts(work: Path) -> None:
    for _ in range(10):
        with pytest.raises(stockade.TimedOut) as caught:
            box(work).run(["sleep", "1000"], timeout=0.001)
        assert caught.value.receipt.outcome == "timed_out"


def test_check_raises_the_typed_error_with_the_receipt(work: Path) -> None:
    with pytest.raises(stockade.CommandFailed) as caught:
        box(work).run(["sh", "-c", "exit 4"], check=True)
    assert caught.value.returncode == 4
    assert isinstance(caught.value, subprocess.CalledProcessError)
    assert caught.value.receipt.effective_tier == "strict"


def test_kill_ends_every_process_of_the_box(work: Path) -> None:
    child = box(work).popen(["sh", "-c", "setsid sleep 1000 & sleep 1000 & echo up; wait"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    launch = child.receipt
    assert launch is not None and launch.end is None
    child.kill()
    assert child.wait(timeout=30) == -signal.SIGKILL
    assert child.receipt is not None
    assert child.receipt.outcome == "killed"
    wait_gone(int(launch.launch["command_pid"]))
    child.stdout.close()


def test_terminate_reaches_the_command(work: Path) -> None:
    with box(work).popen(["sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"],
                         stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        assert child.poll() is None
        child.terminate()
        assert child.wait(timeout=30) == 7


def test_the_box_ends_with_the_process_that_started_it(work: Path, own_state: Path) -> None:
    code = textwrap.dedent("""
        import stockade, sys
        child = stockade.Popen(["sleep", "1000"], tier="strict", caller="repository", cwd=sys.argv[1])
        print(child.receipt.launch["command_pid"], flush=True)
        import os; os._exit(0)
    """)
    out = subprocess.run([sys.executable, "-c", code, str(work)], capture_output=True, text=True, check=True,
                         env={**os.environ, "PYTHONPATH": SRC}, timeout=60)
    wait_gone(int(out.stdout))


def test_status_is_known_although_the_caller_ignores_sigchld(work: Path) -> None:
    code = textwrap.dedent("""
        import signal, stockade, sys
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        run = lambda line: stockade.run(["sh", "-c", line], tier="strict", caller="repository", cwd=sys.argv[1])
        print(run("exit 3").returncode, run("kill -9 $$").returncode, run("exit 0").returncode)
    """)
    out = subprocess.run([sys.executable, "-c", code, str(work)], capture_output=True, text=True, check=True,
                         env={**os.environ, "PYTHONPATH": SRC}, timeout=60)
    assert out.stdout.split() == ["3", "-9", "0"]


def test_values_of_set_env_reach_the_command_and_neither_plan_nor_argv(work: Path, own_state: Path) -> None:
    secret = "value-7f31-of-a-secret"
    done = box(work).run(["sh", "-c", "echo $MY_TOKEN"], set_env={"MY_TOKEN": secret}, capture_output=True, text=True)
    assert done.stdout == secret + "\n"
    wrapped = box(work, set_env={"MY_TOKEN": secret}).wrap(["sh", "-c", "echo $MY_TOKEN"])
    assert secret not in " ".join(wrapped.argv)
    assert secret not in (own_state / "plans" / f"{wrapped.plan}.json").read_text()
    assert secret not in repr(wrapped)
    out = subprocess.run(wrapped.argv, env=dict(wrapped.env), capture_output=True, text=True, check=True)
    assert out.stdout == secret + "\n"
    assert wrapped.mcp() == {"command": wrapped.argv[0], "args": list(wrapped.argv[1:]), "env": {"MY_TOKEN": secret}}


def test_secret_variables_of_the_source_are_not_passed(work: Path) -> None:
    env = {**os.environ, "AWS_SECRET_ACCESS_KEY": "s", "LD_PRELOAD": "/x.so", "HARMLESS": "h"}
    done = box(work, tier="guarded", env=env).run(["env"], capture_output=True, text=True)
    names = {line.split("=")[0] for line in done.stdout.splitlines()}
    assert "HARMLESS" in names
    assert not names & {"AWS_SECRET_ACCESS_KEY", "LD_PRELOAD"}
    assert {"AWS_SECRET_ACCESS_KEY", "LD_PRELOAD"} <= set(done.receipt.launch["env_dropped"])


def test_a_launch_line_starts_any_number_of_times_and_leaves_nothing(work: Path, own_state: Path) -> None:
    wrapped = box(work).wrap(["sh", "-c", "echo again"])
    before = sorted(str(path) for path in own_state.rglob("*") if "/audit/" not in str(path))
    for _ in range(3):
        out = subprocess.run(wrapped.argv, env=dict(wrapped.env), capture_output=True, text=True, check=True)
        assert out.stdout == "again\n"
    assert sorted(str(path) for path in own_state.rglob("*") if "/audit/" not in str(path)) == before
    # Besides the log: the journals of live boxes, of which none is left, and their lock.
    assert sorted(str(path.relative_to(own_state / "audit")) for path in (own_state / "audit").rglob("*")) == [
        "open", "open/.lock", "spool.jsonl"]


def test_two_workspaces_of_one_shape_share_one_plan(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    (first / "sub").mkdir()
    (second / "sub").mkdir()
    plans = {box(path).wrap(["true"]).plan for path in (first, second)}
    assert len(plans) == 1
    assert box(first).wrap(["true"]).plan in plans


def test_a_per_call_directory_moves_the_start_and_nothing_else(work: Path, tmp_path: Path) -> None:
    (work / "sub").mkdir()
    done = box(work).run(["pwd"], cwd="sub", capture_output=True, text=True)
    assert done.stdout == f"{work}/sub\n"
    (tmp_path / "outside").mkdir()
    with pytest.raises(stockade.Refused) as caught:
        box(work).run(["pwd"], cwd=tmp_path / "outside")
    assert caught.value.code == "chdir_denied"


def test_off_runs_unconfined_with_the_environment_of_standard_and_says_so(work: Path) -> None:
    env = {**os.environ, "AWS_SECRET_ACCESS_KEY": "s", "HARMLESS": "h"}
    done = stockade.run(["env"], tier="off", cwd=work, env=env, capture_output=True, text=True)
    assert "AWS_SECRET_ACCESS_KEY" not in done.stdout
    assert "HARMLESS=h" in done.stdout
    assert done.receipt.effective_tier == "off"
    assert done.receipt.backend == "none"
    assert {row.id for row in done.receipt.promises if row.state == "kept"} == {"env.secrets", "env.injection"}


def test_decide_starts_nothing_and_tells_why(work: Path) -> None:
    decision = stockade.decide(["true"], tier="strict", cwd=work)
    assert (decision.kind, decision.row, decision.backend) == ("wrap", "D2", "namespaces")
    assert decision.reasons


def test_only_named_descriptors_are_passed(work: Path) -> None:
    read, write = os.pipe()
    other, unused = os.pipe()
    os.set_inheritable(other, True)
    try:
        script = f"import os; os.write({write}, b'hi'); print(*os.listdir('/proc/self/fd'))"
        done = box(work, pass_fds=[write]).run([PYTHON, "-c", script], capture_output=True, text=True, check=True)
        assert os.read(read, 10) == b"hi"
        assert str(other) not in done.stdout.split() or other in (0, 1, 2, 3)
    finally:
        for fd in (read, write, other, unused):
            os.close(fd)


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
@pytest.mark.parametrize("how", ["set_env", "pass_env"])
@pytest.mark.parametrize("name", [p.replace("*", "X") for e in load_list("voiding") if e.klass == "env" for p in e.match])
def test_a_loader_variable_is_a_grant_that_voids_however_it_is_given(work: Path, tier: str, how: str, name: str) -> None:
    given: dict[str, Any] = {"set_env": {name: "value"}} if how == "set_env" else {"pass_env": [name]}
    with pytest.raises(stockade.Refused) as caught:
        stockade.wrap(["true"], tier=tier, caller="repository", cwd=work, **given)
    assert (caught.value.code, caught.value.missing) == ("grant_voids_tier", ("env.injection",))


def test_a_loader_variable_that_is_accepted_is_waived_in_the_receipt(work: Path) -> None:
    with pytest.warns(stockade.DowngradeWarning, match=r"env.injection.*accept 'env.injection' \(argument\)"):
        done = box(work, accept=["env.injection"], set_env={"LD_AUDIT": "/nowhere"}).run(
            ["sh", "-c", "echo $LD_AUDIT"], capture_output=True, text=True)
    states = {row.id: row.state for row in done.receipt.promises}
    assert (done.stdout, states["env.injection"], states["env.secrets"]) == ("/nowhere\n", "waived", "kept")
    assert done.receipt.effective_tier == "off" and done.receipt.missing == ("env.injection",)


def test_a_value_for_another_variable_costs_nothing(work: Path) -> None:
    done = box(work, set_env={"API_TOKEN": "t", "COLOR": "1"}).run(["sh", "-c", "echo $API_TOKEN"],
                                                                   capture_output=True, text=True)
    assert (done.stdout, done.receipt.effective_tier) == ("t\n", "strict")


@pytest.mark.parametrize("tier", ["off", "strict"])
def test_a_number_that_is_not_open_is_refused_and_not_filled_with_a_pipe_of_ours(work: Path, tier: str) -> None:
    lowest = os.dup(0)
    os.close(lowest)
    for number in range(lowest, lowest + 8):
        try:
            os.fstat(number)
        except OSError:
            with pytest.raises(stockade.Refused) as caught:
                stockade.run([PYTHON, "-c", f"import os; os.write({number}, b'forged')"], tier=tier,
                             caller="repository", cwd=work, pass_fds=(number,), capture_output=True)
            assert caught.value.code == "fds_denied"


def test_umask_and_the_working_directory_are_the_callers(work: Path) -> None:
    box(work).run(["sh", "-c", "umask > mask; pwd > where"], umask=0o027)
    assert (work / "mask").read_text() == "0027\n"
    assert (work / "where").read_text() == f"{work}\n"


@pytest.mark.parametrize(("options", "code"), [
    ({"tire": "strict"}, "unknown_option"), ({"shell": True}, "option_refused"),
    ({"timeout": -1}, "value_invalid"), ({"input": "x", "stdin": 0}, "value_invalid"),
])
def test_options_that_make_no_sense_are_typed_errors(work: Path, options: dict[str, Any], code: str) -> None:
    with pytest.raises(stockade.ConfigError) as caught:
        stockade.run(["true"], cwd=work, **options)
    assert caught.value.code == code


def test_a_sandbox_is_frozen_hashable_and_picklable(work: Path) -> None:
    one, two = box(work, limits={"processes": 50}), box(work, limits={"processes": 50})
    assert one == two and hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    with pytest.raises(AttributeError):
        one.tier = "off"  # type: ignore[attr-defined]
    with pytest.raises(stockade.ConfigError):
        one.run(["true"], write=["/"])


def test_narrow_takes_only_what_narrows(work: Path) -> None:
    (work / "secret").write_text("s")
    wide = box(work, tier="guarded", net="host", write=[work])
    narrow = wide.narrow(tier="strict", net="none", hide=[work / "secret"])
    assert wide.run(["cat", "secret"], capture_output=True).stdout == b"s"
    assert narrow.run(["cat", "secret"], capture_output=True).returncode == 1
    for wider in ({"tier": "standard"}, {"net": "host"}, {"write": ["/etc"]}):
        with pytest.raises(stockade.ConfigError):
            wide.narrow(**wider)


def test_many_threads_start_boxes_at_once(work: Path) -> None:
    sandbox = box(work)
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(sandbox.run(["sh", "-c", f"exit {n}"]).returncode))
               for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == list(range(24))


def test_the_spool_has_a_decision_a_launch_and_an_end_for_each_run(work: Path, own_state: Path) -> None:
    done = box(work).run(["true"])
    records = [json.loads(line) for line in (own_state / "audit" / "spool.jsonl").read_text().splitlines() if line]
    mine = [record["record"] for record in records if record.get("run_id") == done.receipt.run_id]
    assert mine == ["decided", "launch", "end"]


def test_no_descriptor_of_the_caller_is_lost(work: Path) -> None:
    sandbox = box(work)
    sandbox.run(["true"])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        sandbox.run(["true"], capture_output=True)
        with pytest.raises(stockade.Refused):
            sandbox.run(["no-such-command"], capture_output=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_temporary_directory_on_disk_is_removed_at_the_end(work: Path, own_state: Path) -> None:
    done = box(work, tmp="disk").run(["sh", "-c", "echo x > /tmp/f; df /tmp | tail -1; ls /tmp"],
                                     capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tmpfs" not in done.stdout
    assert [path.name for path in (own_state / "run").iterdir() if path.name.startswith("tmp-")] == []


# -- asyncio ------------------------------------------------------------------------------------


def test_run_async_gives_what_run_gives(work: Path) -> None:
    async def main() -> stockade.Completed:
        return await box(work).run_async(["sh", "-c", "cat; exit 5"], input="in", capture_output=True, text=True)

    done = asyncio.run(main())
    assert (done.returncode, done.stdout, done.receipt.outcome) == (5, "in", "exited")


def test_cancelling_ends_the_whole_box_before_the_error_leaves(work: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(box(work).run_async(
            ["sh", "-c", "sleep 1000 & touch up; sleep 1000"], capture_output=True))
        while not (work / "up").exists():
            await asyncio.sleep(0.01)
        assert set(processes_with(str(work))) - {os.getpid()}, "the line of the launcher names the workspace"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(processes_with(str(work))) <= {os.getpid()}

    asyncio.run(main())


def test_spawn_talks_in_both_directions_and_ends_with_its_block(work: Path) -> None:
    async def main() -> int:
        async with box(work).spawn(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proc:
            assert proc.stdin is not None and proc.stdout is not None
            proc.stdin.write(b"ping\n")
            await proc.stdin.drain()
            assert await proc.stdout.readline() == b"ping\n"
            pid = proc.pid
        wait_gone(pid)
        proc = await stockade.spawn(["sh", "-c", "exit 6"], tier="strict", caller="repository", cwd=work)
        return await proc.wait()

    assert asyncio.run(main()) == 6


def test_a_refused_launch_is_raised_by_spawn(work: Path) -> None:
    async def main() -> None:
        with pytest.raises(stockade.Refused):
            await stockade.spawn(["no-such-command"], tier="strict", caller="repository", cwd=work)

    asyncio.run(main())


def test_an_async_time_limit_is_typed(work: Path) -> None:
    async def main() -> None:
        with pytest.raises(stockade.TimedOut):
            await box(work).run_async(["sleep", "1000"], timeout=0.3)

    asyncio.run(main())
