"""proc.reaped: no process of a box outlives its command, its supervisor or its caller."""

from __future__ import annotations

import os
import signal
import time

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import kept, op
from support.live import LiveBox, descendants, parent_of, processes_with, wait_until


def _marker(actor: Actor, name: str) -> str:
    actor.remove(f"{actor.workspace}/{name}")
    return f"{actor.workspace}/{name}"


def _daemon(actor: Actor, marker: str, *more: str) -> list[str]:
    return [str(actor.stage.bin / "daemon"), "5", marker, *more]


def _clear(marker: str) -> None:
    for pid in processes_with(marker):
        os.kill(pid, signal.SIGKILL)


def _sockets(pid: int) -> set[str]:
    names = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    return {name for name in names if name.startswith("socket:")}


@requirement("proc.reaped")
@pytest.mark.known_gap("no_root_caller")
@at_tiers("proc.reaped")
def test_init_holds_no_end_that_is_the_supervisors(user: Actor, tier: str) -> None:
    """With the supervisor's end of its own socket in hand, init would never see the supervisor die."""
    with LiveBox(user, tier=tier) as box:
        box.ask([op("environ")])
        init = next(pid for pid in descendants(box.process.pid) if parent_of(pid) == box.process.pid)
        assert _sockets(box.process.pid) and _sockets(init)
        assert _sockets(init) & _sockets(box.process.pid) == set()


@requirement("proc.reaped")
@at_tiers("proc.reaped")
def test_a_supervisor_killed_at_any_moment_of_the_start_leaves_nothing(actor: Actor, tier: str) -> None:
    """Also before init could ask the kernel to die with it."""
    marker = f"early-{os.urandom(4).hex()}"
    made = actor.plan(["/bin/sh", "-c", f": {marker}; sleep 60"], tier=tier)
    with actor.spawn(made["argv"], env=made["env"], stdin=-3, stdout=-3, stderr=-3) as child:
        wait_until(lambda: len(processes_with(marker)) >= 2, "left alone the line starts a box")
        child.kill()
    for number in range(120):
        with actor.spawn(made["argv"], env=made["env"], stdin=-3, stdout=-3, stderr=-3) as child:
            wait_until(lambda child=child: _is_launcher(child.pid), "the launcher runs")
            spin = time.monotonic() + number * 0.0001
            while time.monotonic() < spin:
                pass
            child.kill()
    wait_until(lambda: processes_with(marker) == [], "every process is gone")


def _is_launcher(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith("/stockade-launch")
    except (FileNotFoundError, PermissionError):
        return True  # it protects itself, or has ended


@requirement("proc.reaped")
@at_tiers("proc.reaped")
def test_daemons_die_with_the_command(actor: Actor, tier: str) -> None:
    marker = _marker(actor, "beat-bare")
    actor.call(_daemon(actor, marker))
    assert len(processes_with(marker)) == 5, "without a box they live on"
    _clear(marker)
    marker = _marker(actor, f"beat-{tier}")
    run = actor.run(_daemon(actor, marker), tier=tier)
    assert run.returncode == 0 and actor.host(marker).stat().st_size > 0, "they did start inside"
    assert processes_with(marker) == []
    kept(run, "proc.reaped", tier)


@requirement("proc.reaped")
@at_tiers("proc.reaped")
def test_a_killed_supervisor_takes_the_box_along(actor: Actor, tier: str) -> None:
    for number in (signal.SIGKILL, 63):
        marker = _marker(actor, f"beat-kill-{tier}-{number}")
        child = actor.live(_daemon(actor, marker, "stay"), tier=tier, stdin=-3, stdout=-3, stderr=-3)
        wait_until(lambda m=marker: actor.host(m).exists() and len(processes_with(m)) >= 6, "the daemons run")
        child.send_signal(number)
        child.wait(20)
        wait_until(lambda m=marker: processes_with(m) == [], "every process of the box is dead")


@requirement("proc.reaped")
@at_tiers("proc.reaped")
def test_a_dead_caller_takes_the_box_along(actor: Actor, tier: str) -> None:
    """The API's caller is killed; nobody is left to wait for the box."""
    marker = _marker(actor, f"beat-caller-{tier}")
    job = {"mode": "run", "argv": _daemon(actor, marker, "stay"), "kwargs": actor._grants(tier, None, {})}
    driver = actor.drive(job, stdin=-3, stdout=-3, stderr=-3)
    wait_until(lambda: actor.host(marker).exists() and len(processes_with(marker)) >= 6, "the daemons run")
    below = descendants(driver.pid)
    assert below, "the launcher is a child of the caller"
    driver.kill()
    driver.wait(20)
    wait_until(lambda: processes_with(marker) == [], "every process of the box is dead")
    wait_until(lambda: all(_gone(pid) for pid in below), "the supervisor is gone too")


def _gone(pid: int) -> bool:
    from support.live import state_of

    return state_of(pid) in (None, "Z")


@requirement("proc.reaped")
@at_tiers("proc.reaped")
def test_children_that_the_command_waits_for_end_normally(actor: Actor, tier: str) -> None:
    run = actor.box([op("run", "run", argv=["/bin/sh", "-c", "(sleep 0.1; echo late) & wait; echo done"])], tier=tier)
    assert run.value("run")["out"] == "late\ndone\n"
