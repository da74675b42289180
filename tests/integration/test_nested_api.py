"""The whole of the API inside a box: each call is a box of its own, and ends like one outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from requirements import requirement
from support.actors import PYTHON, WAIT_S, Actor
from support.live import descendants, processes_with, wait_until

# Runs inside a standard box; prints one JSON answer.
HEAD = """
import asyncio, json, os, signal, subprocess, sys, time
sys.path.insert(0, {lib!r})
import stockade
OPTIONS = dict(tier="strict", caller="operator", net="none", cwd={cwd!r})
TRAP = ["/bin/sh", "-c", "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.05; done"]
LIVES = ["/bin/sh", "-c", ": {mark}; echo lives; sh -c ': {mark}; sleep 1000; :' & sleep 1000; :"]
def answer(**said):
    print(json.dumps(said))
"""
POPEN = """
with stockade.Popen(TRAP, stdout=subprocess.PIPE, text=True, **OPTIONS) as child:
    lines = [child.stdout.readline()]
    before = child.poll()
    child.send_signal(signal.SIGUSR1)
    lines.append(child.stdout.readline())
    child.terminate()
    lines.append(child.stdout.readline())
    status = child.wait(30)
answer(lines=lines, before=before, status=status, polled=child.poll(), end=child.receipt.end["exit_code"], tier=child.receipt.effective_tier)
"""
KILL = """
with stockade.Popen(LIVES, stdout=subprocess.PIPE, text=True, **OPTIONS) as child:
    first = child.stdout.readline()
    child.kill()
    rest = child.stdout.read()  # to its end: nobody of the tree holds it any more
    status = child.wait(30)
answer(first=first, rest=rest, status=status, outcome=child.receipt.outcome)
"""
COMMUNICATE = """
with stockade.Popen(["/bin/sh", "-c", "cat; echo err >&2; exit 3"], stdin=-1, stdout=-1, stderr=-1, text=True, **OPTIONS) as child:
    out, err = child.communicate("x" * 300000, timeout=30)
with stockade.Popen(LIVES, stdout=subprocess.PIPE, **OPTIONS) as late:
    try:
        late.communicate(timeout=0.2)
        ran_on = True
    except subprocess.TimeoutExpired:
        ran_on = late.poll() is None
    late.kill()
    late.communicate()
answer(size=len(out), err=err, status=child.returncode, ran_on=ran_on)
"""
TIMEOUT = """
try:
    stockade.run(LIVES, timeout=3, capture_output=True, text=True, **OPTIONS)
except stockade.TimedOut as error:
    answer(expired=isinstance(error, subprocess.TimeoutExpired), out=error.output, outcome=error.receipt.outcome)
"""
STATUS = """
ends = {}
for script in ("exit 7", "exit 125", "exit 126", "kill -TERM $$", "kill -KILL $$"):
    ends[script] = stockade.run(["/bin/sh", "-c", script], **OPTIONS).returncode
codes = {}
for argv in (["/nowhere"], ["/etc/passwd"]):
    try:
        stockade.run(argv, **OPTIONS)
    except stockade.Error as error:
        codes[argv[0]] = error.code
try:
    stockade.run(["false"], check=True, **OPTIONS)
except stockade.CommandFailed as error:
    codes["check"] = error.returncode
answer(ends=ends, codes=codes)
"""
ASYNC = """
async def main():
    done = await stockade.run_async(["/bin/sh", "-c", "read x; echo got $x; exit 4"], input=b"word\\n", capture_output=True, **OPTIONS)
    task = asyncio.ensure_future(stockade.run_async(LIVES, stdout=subprocess.DEVNULL, **OPTIONS))
    async with stockade.spawn(TRAP, stdout=subprocess.PIPE, **OPTIONS) as child:
        lines = [(await child.stdout.readline()).decode()]
        child.terminate()
        lines.append((await child.stdout.readline()).decode())
        status = await child.wait()
    task.cancel()
    try:
        await task
        cancelled = False
    except asyncio.CancelledError:
        cancelled = True
    return done.returncode, done.stdout.decode(), lines, status, cancelled
answer(told=asyncio.run(main()))
"""
SANDBOX = """
box = stockade.Sandbox(**OPTIONS)
open("given", "w").write("given")
first = box.run(["cat", "given"], capture_output=True, text=True)
with box.popen(["/bin/sh", "-c", "echo $0"], stdout=subprocess.PIPE, text=True) as child:
    second = child.stdout.read()
import threading
def one():
    seen.append(box.run(["true"]).returncode)
seen, threads = [], [threading.Thread(target=one) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
answer(first=first.stdout, second=second, seen=seen)
"""


def program(actor: Actor, script: str, mark: str = "-") -> list[str]:
    """A Python program that uses the package in a box."""
    return [PYTHON, "-I", "-B", "-c", HEAD.format(lib=str(actor.stage.lib), cwd=actor.workspace, mark=mark) + script]


def inside(actor: Actor, script: str, mark: str = "-") -> dict[str, Any]:
    """Run it in a standard box; what it answered."""
    run = actor.run(program(actor, script, mark), tier="standard")
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


@pytest.fixture
def mark() -> str:
    """A word in a command line that no other process has."""
    return f"nested-{os.urandom(4).hex()}"


@requirement("nest.signals")
def test_popen_inside_polls_signals_and_waits(actor: Actor) -> None:
    assert inside(actor, POPEN) == {"lines": ["ready\n", "usr1\n", "term\n"], "before": None, "status": 9, "polled": 9, "end": 9, "tier": "strict"}


@requirement("nest.signals")
def test_kill_inside_ends_every_process_of_that_box(actor: Actor, mark: str) -> None:
    got = inside(actor, KILL, mark)
    assert (got["first"], got["rest"], got["status"], got["outcome"]) == ("lives\n", "", -signal.SIGKILL, "killed")
    assert processes_with(mark) == []


@requirement("nest.signals")
def test_communicate_inside_moves_all_and_keeps_its_deadline(actor: Actor, mark: str) -> None:
    assert inside(actor, COMMUNICATE, mark) == {"size": 300000, "err": "err\n", "status": 3, "ran_on": True}
    assert processes_with(mark) == []


@requirement("nest.signals")
def test_a_timeout_inside_ends_the_tree_and_is_typed(actor: Actor, mark: str) -> None:
    assert inside(actor, TIMEOUT, mark) == {"expired": True, "out": "lives\n", "outcome": "timed_out"}
    assert processes_with(mark) == []


@requirement("nest.signals")
def test_each_end_inside_is_told_as_it_was(actor: Actor) -> None:
    got = inside(actor, STATUS)
    assert got["ends"] == {"exit 7": 7, "exit 125": 125, "exit 126": 126, "kill -TERM $$": -signal.SIGTERM, "kill -KILL $$": -signal.SIGKILL}
    assert got["codes"] == {"/nowhere": "not_found", "/etc/passwd": "exec_failed", "check": 1}


@requirement("nest.signals")
def test_asynchronous_calls_inside_run_and_cancel(actor: Actor, mark: str) -> None:
    assert inside(actor, ASYNC, mark) == {"told": [4, "got word\n", ["ready\n", "term\n"], 9, True]}
    assert processes_with(mark) == []


@requirement("nest.signals")
def test_a_sandbox_object_inside_is_used_by_threads(actor: Actor) -> None:
    assert inside(actor, SANDBOX) == {"first": "given", "second": "/bin/sh\n", "seen": [0] * 8}


STAYS = """
child = stockade.Popen(LIVES, stdout=sys.stderr, **OPTIONS)
print("started", flush=True)
child.wait()
"""


@requirement("nest.ends_with")
@pytest.mark.parametrize("victim", ["client", "inner supervisor", "outer supervisor", "program"])
def test_whoever_is_killed_the_inner_tree_is_dead(actor: Actor, mark: str, victim: str) -> None:
    argv = program(actor, STAYS, mark)
    with actor.live(argv, tier="standard", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None and child.stdout.readline() == b"started\n"
        wait_until(lambda: len(_tree(mark)) == 2, "the tree inside lives")
        os.kill(_find(child.pid, mark, victim), signal.SIGKILL)
        wait_until(lambda: _tree(mark) == [], f"nothing is left of it without its {victim}")
        child.kill()
        child.wait(WAIT_S)


def _tree(mark: str) -> list[int]:
    """Processes of the tree inside; the program that asked and the outer supervisor name the mark in a longer text."""
    return [pid for pid in processes_with(mark) if _words(pid)[0] in (b"sh", b"/bin/sh")]


def _words(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return stream.read().split(b"\0")
    except OSError:
        return [b""]


def _find(top: int, mark: str, who: str) -> int:
    """By its place: what is inside hangs below a supervisor that is a child of the outer one."""
    below = descendants(top)
    (asks,) = [pid for pid in below if _words(pid)[:2] == [PYTHON.encode(), b"-I"]]
    (client,) = [pid for pid in below if b"--nest" in _words(pid)]
    (command,) = [pid for pid in _tree(mark) if _words(pid)[0] == b"/bin/sh"]
    supervisor = _parent(_parent(command))
    assert _parent(supervisor) == top
    return {"client": client, "inner supervisor": supervisor, "outer supervisor": top, "program": asks}[who]


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
        return int(stream.read().rsplit(")", 1)[1].split()[1])
