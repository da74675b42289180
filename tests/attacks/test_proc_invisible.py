"""proc.invisible: host processes are not listed, named or re-prioritised."""

from __future__ import annotations

import os

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import failed_with, kept, op, worked
from support.live import LiveBox


@requirement("proc.invisible")
@at_tiers("proc.invisible")
def test_host_processes_are_not_listed(actor: Actor, tier: str) -> None:
    victim = actor.agent.pid
    look = [op("pids", "pids"), op("all_cmdlines", "names")]
    bare = actor.bare(look)
    assert victim in bare["pids"]["value"] and "host_agent.py" in repr(bare["names"]["value"])
    run = actor.box(look, tier=tier)
    assert len(run.value("pids")) <= 4 and 1 in run.value("pids")
    assert "host_agent.py" not in repr(run.value("names"))
    kept(run, "proc.invisible", tier)


@requirement("proc.invisible")
@at_tiers("proc.invisible")
def test_host_processes_cannot_be_asked_about_or_reprioritised(actor: Actor, tier: str) -> None:
    victim = actor.agent.pid
    ops = [op(kind, pid=victim) for kind in ("setpriority", "sched_setaffinity", "getpgid")]
    ops += [op("stat", path=f"/proc/{victim}"), op("read", path=f"/proc/{victim}/stat"), op("read", path=f"/proc/{victim}/task/{victim}/comm")]
    worked(actor.bare(ops))
    failed_with(actor.box(ops, tier=tier).answers, {"ESRCH", "ENOENT"})
    own = actor.box([op("setpriority", pid=0), op("sched_setaffinity", pid=0)], tier=tier)
    worked(own.answers)


@requirement("proc.invisible")
@at_tiers("proc.invisible")
def test_the_launcher_line_and_the_caller_do_not_show(actor: Actor, tier: str) -> None:
    with LiveBox(actor, tier=tier) as box:
        names = box.ask([op("all_cmdlines", "names"), op("who", "who")])
        text = repr(names["names"]["value"])
        assert "--plan" not in text and "driver.py" not in text
        assert str(os.getpid()) not in names["names"]["value"]


@requirement("proc.invisible")
@at_tiers("proc.invisible")
def test_kernel_wide_views_are_covered(actor: Actor, tier: str) -> None:
    ops = [op("list", path="/proc/sys/kernel"), op("list", path="/proc/fs"), op("list", path="/proc/irq"), op("list", path="/proc/bus"), op("write_open", path="/proc/sysrq-trigger")]
    run = actor.box([*ops, op("read", "cpu", path="/proc/cpuinfo"), op("read", "mem", path="/proc/meminfo")], tier=tier)
    worked({name: run.answers[name] for name in ("cpu", "mem")})
    shown = {name: got["value"] for name, got in run.answers.items() if name.startswith("list") and got["value"] and "sys" not in name}
    assert shown == {}
    assert run.answers["write_open /proc/sysrq-trigger"]["errno"] in {"EROFS", "EACCES", "ENOENT", "EPERM"}
