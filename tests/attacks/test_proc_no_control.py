"""proc.no_control: no signal, trace or look reaches a host process or the box's own init."""

from __future__ import annotations

import signal

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import Op, failed_with, kept, op, worked
from support.live import LiveBox, state_of, wait_until

INIT = ("environ", "mem", "maps", "exe", "root", "cwd", "fd", "fdinfo", "auxv", "stack", "syscall")


def _on_host(pid: int) -> list[Op]:
    ops = [op("kill", f"kill {number}", pid=pid, signal=number) for number in (0, signal.SIGCONT)]
    ops += [op("ptrace_seize", pid=pid), op("pidfd_open", pid=pid), op("prlimit", pid=pid)]
    ops += [op("proc_environ", path=f"/proc/{pid}/environ"), op("readlink", path=f"/proc/{pid}/exe"), op("list", path=f"/proc/{pid}/fd"),
            op("read", path=f"/proc/{pid}/maps"), op("read", path=f"/proc/{pid}/cmdline"), op("list", path=f"/proc/{pid}/root/")]
    return ops


@requirement("proc.no_control")
@at_tiers("proc.no_control")
def test_a_host_process_of_the_same_user_is_out_of_reach(actor: Actor, tier: str) -> None:
    victim = actor.agent.pid
    ops = [*_on_host(victim), op("vm_read", pid=victim)]
    worked(actor.bare(ops), but={f"vm_read {victim}"})
    run = actor.box([*ops, op("all_environ", "environs")], tier=tier)
    failed_with(run.answers, {"ESRCH", "ENOENT"}, but={"environs"})
    assert "host-environment-secret" not in repr(run.value("environs"))
    assert actor.agent.alive()
    kept(run, "proc.no_control", tier)


@requirement("proc.no_control")
@at_tiers("proc.no_control")
def test_signals_to_everybody_reach_nobody_outside(actor: Actor, tier: str) -> None:
    victim = actor.agent
    # With nobody else in the box the kernel answers that nobody could be signalled.
    script = "import os, signal\nfor number in (1, 15, 9, 19):\n    try:\n        os.kill(-1, number)\n    except OSError: pass\nprint('alive')"
    run = actor.run(["/usr/bin/python3", "-c", script], tier=tier)
    assert run.returncode == 0 and run.stdout == "alive\n"
    assert victim.alive() and state_of(victim.pid) is not None


@requirement("proc.no_control", "C.init_is_out_of_reach")
@at_tiers("proc.no_control")
def test_the_init_of_the_box_cannot_be_read_traced_or_written(actor: Actor, tier: str) -> None:
    ops = [op("list" if name in ("fd", "fdinfo") else "readlink" if name in ("exe", "root", "cwd") else "read", path=f"/proc/1/{name}") for name in INIT]
    ops += [op("list", "through root", path="/proc/1/root/"), op("write_open", path="/proc/1/mem"), op("ptrace_seize", pid=1), op("vm_read", pid=1),
            op("write_open", path="/proc/1/oom_score_adj"), op("write_open", "clear refs", path="/proc/1/clear_refs")]
    run = actor.box(ops, tier=tier)
    # Opening is enough for environ and mem; an empty content would be no proof.
    failed_with(run.answers, {"EACCES", "EPERM", "ENOENT"}, but={"read /proc/1/environ"})
    environ = run.answers["read /proc/1/environ"]
    assert environ["errno"] in {"EACCES", "EPERM"} or environ["value"].strip("\0") == ""
    # The twin: the same looks at a process of the box's own work.
    own = actor.box([op("read", path="/proc/self/maps"), op("proc_environ", path="/proc/self/environ"), op("readlink", path="/proc/self/exe")], tier=tier)
    worked(own.answers)


@requirement("proc.no_control")
@at_tiers("proc.no_control")
def test_the_init_of_the_box_cannot_be_reprioritised_or_limited(actor: Actor, tier: str) -> None:
    """Init watches the guards: a box that makes it idle, or limits it, wins time against it."""
    ops = [op(kind, f"{kind} {pid}", pid=pid) for pid in (1, 0) for kind in ("prlimit", "setpriority", "sched_setaffinity", "sched_idle")]
    ops += [op("nice_all", "by user", which=2), op("nice_all", "by group", which=1, who=1)]
    run = actor.box(ops, tier=tier)
    own = {name for name in run.answers if name.endswith(" 0")}
    failed_with(run.answers, {"EPERM", "EACCES", "ESRCH"}, but=own)
    worked({name: run.answers[name] for name in own})


@requirement("proc.no_control", "C.init_is_out_of_reach")
@at_tiers("proc.no_control")
def test_signals_to_init_change_nothing(actor: Actor, tier: str) -> None:
    with LiveBox(actor, tier=tier) as box:
        box.ask([op("kill", f"kill {number}", pid=1, signal=number) for number in (1, 2, 3, 9, 10, 12, 15, 17, 19, 20, 31, 34, 63)])
        answers = box.ask([op("run", "run", argv=["/bin/sh", "-c", "exit 7"])])
        assert answers["run"]["value"]["status"] == 7, "init still reaps"
        supervisor = box.process.pid
        assert all(state_of(pid) not in (None, "T", "t") for pid in box.tree())
        assert box.finish() == 0 and state_of(supervisor) is None
        assert box.records(until="end")["end"]["outcome"] == "exited"


@requirement("proc.no_control", "C.init_is_out_of_reach")
@at_tiers("proc.no_control")
def test_stopping_the_own_group_leaves_the_callers_pipeline_running(actor: Actor, tier: str) -> None:
    """kill(0, …) from inside; without a group of its own it would stop the caller's pipeline."""
    script = "import os, time, sys\npid = os.fork()\nif pid == 0:\n    os.kill(0, 19)\n    os._exit(0)\nos.waitpid(pid, 0)\n"
    child = actor.live(["/usr/bin/python3", "-c", script], tier=tier, stdin=-3, stdout=-3, stderr=-3, process_group=0)
    try:
        sibling = actor.spawn(["sleep", "60"], process_group=child.pid)
        try:
            wait_until(lambda: child.poll() is not None or any(state_of(pid) == "T" for pid in _below(child.pid)), "the box stopped itself")
            assert state_of(sibling.pid) not in ("T", None), "the caller's pipeline goes on"
            assert state_of(child.pid) not in ("T", None), "the supervisor goes on"
            child.send_signal(63)
            child.wait(20)
            assert child.returncode == -9
        finally:
            sibling.kill()
            sibling.wait()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _below(pid: int) -> list[int]:
    from support.live import descendants

    return descendants(pid)


@requirement("proc.no_control")
@at_tiers("proc.no_control")
def test_processes_of_the_box_can_signal_and_trace_each_other(actor: Actor, tier: str) -> None:
    script = ("import os, signal, time\npid = os.fork()\nif pid == 0:\n    time.sleep(30)\nos.kill(pid, 9)\n"
              "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")
    assert actor.run(["/usr/bin/python3", "-c", script], tier=tier).stdout == "-9\n"
