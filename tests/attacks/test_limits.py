"""limits: core dumps are off; each requested limit holds and its end is typed."""

from __future__ import annotations

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import failed_with, kept, op, worked


@requirement("limits")
@at_tiers("limits")
def test_no_core_dump_is_made_and_the_limit_cannot_be_raised(actor: Actor, fresh_repo: str, tier: str) -> None:
    crash = ["/bin/sh", "-c", "ulimit -c unlimited 2>/dev/null; kill -SEGV $$"]
    bare = actor.call(["/bin/sh", "-c", "ulimit -c unlimited && kill -SEGV $$"], cwd=fresh_repo)
    assert bare.returncode == -11
    actor.sh("rm -f core*", cwd=fresh_repo)
    run = actor.run(crash, tier=tier, cwd=fresh_repo)
    assert run.returncode == -11
    assert [path.name for path in actor.host(fresh_repo).iterdir() if path.name.startswith("core")] == []
    limits = actor.box([op("rlimit", "core", name="RLIMIT_CORE"), op("set_rlimit", "raise", name="RLIMIT_CORE", value=[-1, -1]),
                        op("set_rlimit", "zero", name="RLIMIT_CORE", value=[0, 0]), op("rlimit", "after", name="RLIMIT_CORE")], tier=tier)
    # 1 and not 0: a limit of 0 still starts a core handler behind a pipe. Asking for another
    # value may be answered with yes (gpg and ssh-agent stop otherwise); nothing may change.
    assert limits.value("core") == [1, 1] and limits.value("after") == [1, 1]
    kept(run, "limits", tier)


@requirement("limits")
@at_tiers("limits")
def test_descriptor_and_process_limits_hold(actor: Actor, tier: str) -> None:
    ops = [op("open_many", "files", count=200), op("fork_many", "processes", count=60)]
    worked(actor.bare(ops))
    run = actor.box(ops, tier=tier, limits={"files": 64, "processes": 20})
    failed_with({"files": run.answers["files"]}, {"EMFILE"})
    failed_with({"processes": run.answers["processes"]}, {"EAGAIN", "ENOMEM"})
    worked(actor.box([op("open_many", "files", count=40), op("fork_many", "processes", count=8)], tier=tier, limits={"files": 64, "processes": 20}).answers)
    named = {row["name"]: row["mechanism"] for row in run.receipt["limits"]}
    assert {"files", "processes"} <= set(named) and all(named.values()), named


@requirement("limits")
@at_tiers("limits")
def test_a_raised_soft_limit_stays_below_the_requested_one(actor: Actor, tier: str) -> None:
    run = actor.box([op("set_rlimit", "raise", name="RLIMIT_NOFILE", value=[4096, 4096]), op("rlimit", "now", name="RLIMIT_NOFILE")], tier=tier, limits={"files": 64})
    failed_with({"raise": run.answers["raise"]}, {"EPERM"})
    assert run.value("now")[1] == 64


@requirement("limits")
@at_tiers("limits")
def test_the_wall_clock_ends_the_box_with_a_typed_outcome(actor: Actor, tier: str) -> None:
    run = actor.run(["/bin/sh", "-c", "trap '' TERM INT; echo started; while :; do sleep 1; done"], tier=tier, limits={"wall": "3s"})
    assert run.raw.get("timed_out") or run.receipt["end"]["outcome"] == "timed_out"
    assert (run.raw.get("stdout") or run.stdout) == "started\n"
    twin = actor.run(["/bin/sh", "-c", "sleep 0.2; echo ended"], tier=tier, limits={"wall": "10s"})
    assert twin.stdout == "ended\n" and twin.receipt["end"]["outcome"] == "exited"


@requirement("limits")
@at_tiers("limits")
def test_cpu_time_ends_a_busy_program(actor: Actor, tier: str) -> None:
    """The twin uses most of a second and ends by itself."""
    busy = "import time\nwhile time.process_time() < float({}): pass\nprint('done')"
    run = actor.run(["/usr/bin/python3", "-c", busy.format(6)], tier=tier, limits={"cpu_time_s": 1, "wall": "30s"})
    assert (run.returncode in (-24, -9), run.stdout) == (True, "")
    # The kernel counts this limit in whole ticks of whoever runs then (setrlimit(2), RLIMIT_CPU); the receipt does not.
    assert run.receipt["end"]["limit_hit"] == "cpu_time" and 600 <= run.receipt["end"]["cpu_ms"] < 4000
    twin = actor.run(["/usr/bin/python3", "-c", busy.format(0.5)], tier=tier, limits={"cpu_time_s": 1, "wall": "30s"})
    assert (twin.returncode, twin.stdout) == (0, "done\n") and twin.receipt["end"]["limit_hit"] is None


@requirement("limits")
@at_tiers("limits")
def test_cpu_time_of_many_processes_counts_together(actor: Actor, tier: str) -> None:
    """Each child stays below the limit, also one that has ended and was waited for."""
    busy = ("import os, time\nfor n in range(4):\n    if os.fork() == 0:\n        while time.process_time() < 0.8: pass\n        os._exit(0)\n    os.wait()\nprint('done')")
    run = actor.run(["/usr/bin/python3", "-c", busy], tier=tier, limits={"cpu_time_s": 1, "wall": "30s"})
    assert run.receipt["end"]["limit_hit"] == "cpu_time" and run.stdout == "", run.receipt["end"]
    twin = actor.run(["/usr/bin/python3", "-c", busy], tier=tier, limits={"cpu_time_s": 20, "wall": "30s"})
    assert (twin.stdout, twin.receipt["end"]["limit_hit"]) == ("done\n", None)


@requirement("limits")
@at_tiers("limits")
@pytest.mark.parametrize("name", ["memory_bytes"])
def test_memory_beyond_the_limit_is_not_given(actor: Actor, tier: str, name: str) -> None:
    grab = [op("memory", "grab", bytes=400 << 20)]
    worked(actor.bare(grab))
    run = actor.run(["/usr/bin/python3", "-c", "b = bytearray(400 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('got it')"],
                    tier=tier, limits={name: "150M"})
    # The program started and was refused the memory, or was ended for having it.
    assert run.returncode != 0 and "got it" not in run.stdout
    refused = "MemoryError" in run.stderr
    assert refused or run.receipt["end"]["limit_hit"] == "memory", (run.stderr, run.receipt["end"])
    # What the kernel refuses to a process it tells nobody else, and the receipt says so beforehand.
    assert not refused or (run.receipt["end"]["limit_hit"], run.receipt["end"]["outcome"]) == (None, "exited")
    assert {row["name"]: "(ENOMEM, not recorded)" in row["mechanism"] for row in run.receipt["limits"]}[name]
    small = actor.run(["/usr/bin/python3", "-c", "b = bytearray(20 << 20); print('got it')"], tier=tier, limits={name: "150M"})
    assert small.stdout == "got it\n"
    assert any(row["name"].startswith("memory") and row["mechanism"] for row in small.receipt["limits"])


@requirement("limits")
@at_tiers("limits")
def test_memory_of_processes_that_left_the_session_counts_together(actor: Actor, tier: str) -> None:
    """Each child of a double fork stays below the limit of one process; together they are above it."""
    script = ("import os, sys, time\nsize = int(sys.argv[1]) << 20\nfor n in range(int(sys.argv[3])):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork():\n            os._exit(0)\n"
              "        held = bytearray(size)\n        held[::4096] = b'x' * len(held[::4096])\n        os.write(1, b'held\\n')\n        time.sleep(30)\n        os._exit(0)\n"
              "    os.wait()\ntime.sleep(float(sys.argv[2]))\nprint('parent ended')\n")
    run = actor.run(["/usr/bin/python3", "-c", script, "90", "25", "4"], tier=tier, limits={"memory_bytes": "200M", "wall": "40s"})
    end = run.receipt["end"]
    assert (end["outcome"], end["limit_hit"]) == ("limit", "memory") and end["wall_ms"] < 20_000, end
    assert "parent ended" not in run.stdout
    twin = actor.run(["/usr/bin/python3", "-c", script, "90", "2", "1"], tier=tier, limits={"memory_bytes": "200M", "wall": "40s"})
    assert twin.stdout == "held\nparent ended\n" and twin.receipt["end"]["limit_hit"] is None, twin.receipt["end"]


@requirement("limits")
@at_tiers("limits")
def test_the_receipt_names_the_limits_that_are_in_force(actor: Actor, tier: str) -> None:
    """The caller's own hard limit is lower than what is asked for."""
    lowered = ["/bin/sh", "-c", 'ulimit -n 100; exec "$@"', "sh"]
    run = actor.run(["/bin/sh", "-c", "ulimit -n"], tier=tier, before=lowered, limits={"files": 4096})
    rows = {row["name"]: row["value"] for row in run.receipt["limits"]}
    assert (rows["files"], run.stdout) == (100, "100\n"), rows
    twin = actor.run(["/bin/sh", "-c", "ulimit -n"], tier=tier, limits={"files": 64})
    assert ({row["name"]: row["value"] for row in twin.receipt["limits"]}["files"], twin.stdout) == (64, "64\n")


@requirement("limits")
@at_tiers("limits")
def test_private_memory_file_systems_are_bounded(actor: Actor, tier: str) -> None:
    run = actor.run(["/bin/sh", "-c", "dd if=/dev/zero of=/tmp/fill bs=1M count=400 2>&1; rm -f /tmp/fill"], tier=tier, tmp="memory:64M")
    assert "No space left" in run.stdout


@requirement("limits")
@at_tiers("limits")
def test_an_unknown_limit_is_refused_by_name(actor: Actor, tier: str) -> None:
    run = actor.run(["true"], tier=tier, limits={"memory": "1G", "filez": 3})
    assert run.code == "unknown_list_key"
