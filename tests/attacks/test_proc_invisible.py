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
    assert "probe.py" in repr(run.value("names")), "the box reads its own command lines"
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
        assert "probe.py" in text, "the box reads its own command lines"
        assert "--plan" not in text and "driver.py" not in text
        assert str(os.getpid()) not in names["names"]["value"]


@requirement("proc.invisible")
@at_tiers("proc.invisible")
def test_kernel_wide_switches_are_covered(root: Actor, tier: str) -> None:
    """For root the files of /proc that steer the machine open without the box."""
    switches = [path for path in ("/proc/irq/default_smp_affinity", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/pressure/cpu")
                if os.path.exists(path)]
    ops = [op("write_open", path=path) for path in switches]
    worked(root.bare(ops))
    run = root.box([*ops, op("read", "cpu", path="/proc/cpuinfo"), op("read", "mem", path="/proc/meminfo")], tier=tier)
    failed_with({item["id"]: run.answers[item["id"]] for item in ops}, {"EROFS", "EACCES", "ENOENT", "EPERM"})
    worked({name: run.answers[name] for name in ("cpu", "mem")})
