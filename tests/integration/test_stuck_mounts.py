"""A file system that never answers, mounted in the home: no start waits for it.

What needs it is refused, typed and in bounded time; everything else does not look there. Mounting
needs root; the boxes are those of an ordinary user and of root. Every mount is in the actor's own
namespace and goes with its holder.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import at_tiers, requirement
from support.actors import WAIT_S, Actor
from support.plans import launch, small_plan

SOURCE = Path(__file__).resolve().parents[2] / "bench" / "stuckfs.c"
pytestmark = [pytest.mark.known_gap("no_root_caller"), pytest.mark.known_gap("no_fuse")]
LIMIT_S = 30  # a start that waits never ends; one that does not takes a second on a slow machine


@pytest.fixture(scope="module")
def stuckfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file system, compiled."""
    program = tmp_path_factory.mktemp("stuck") / "stuckfs"
    subprocess.run(["gcc", "-O2", "-static", "-Wall", "-Wextra", "-o", str(program), str(SOURCE)], check=True)
    return program


def _mounted(actor: Actor, program: Path, place: str) -> Iterator[str]:
    """The place, while nothing below it answers: shown first by a look that has to be killed."""
    actor.make_dir(place)
    # Opened here: the program lies where the actor's world has another /tmp.
    with program.open("rb") as opened:
        argv = ["nsenter", "-m", "-t", str(actor.world.holder.pid), "--", f"/proc/self/fd/{opened.fileno()}", place]
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[opened.fileno()])
    try:
        assert holder.stdin and holder.stdout and holder.stdout.readline() == b"ready\n"
        look = actor.call(["timeout", "-s", "KILL", "0.5", "ls", place], cwd="/")
        assert look.returncode in (137, -9), "the file system answers, so nothing is shown"
        yield place
    finally:
        # Its end lets every call below the place fail, those that still wait among them.
        holder.communicate(timeout=WAIT_S)
        subprocess.run(["nsenter", "-m", "-t", str(actor.world.holder.pid), "--", "umount", "-l", place], check=True)
        actor.remove(place)


@pytest.fixture
def stuck(actor: Actor, stuckfs: Path) -> Iterator[str]:
    """Mounted in the home, where nobody asked for it."""
    yield from _mounted(actor, stuckfs, f"{actor.home}/away")


@pytest.fixture
def stuck_inside(actor: Actor, stuckfs: Path) -> Iterator[str]:
    """Mounted in the workspace."""
    yield from _mounted(actor, stuckfs, f"{actor.workspace}/away")


@requirement("launcher.stuck_mounts")
@at_tiers("fs.own_state")
def test_a_box_starts_beside_a_mount_in_the_home_that_never_answers(actor: Actor, stuck: str, tier: str) -> None:
    begun = time.monotonic()
    run = actor.run(["/bin/sh", "-c", "echo x > made && cat made"], tier=tier, limits={"wall": "60s"})
    assert (run.code, run.returncode, run.stdout) == (None, 0, "x\n"), run.raw
    assert run.receipt["effective_tier"] == tier and time.monotonic() - begun < LIMIT_S
    actor.remove(f"{actor.workspace}/made")


@requirement("launcher.stuck_mounts")
@pytest.mark.parametrize("named", ["read", "write", "cwd", "link"])
def test_a_request_that_names_it_is_refused_in_bounded_time(actor: Actor, stuck: str, named: str) -> None:
    link = f"{actor.elsewhere}/to-away"
    actor.make_dir(actor.elsewhere)
    actor.remove(link)
    actor.host(link).symlink_to(stuck)
    asked = {"read": {"read": [f"{stuck}/x"]}, "write": {"write": [stuck]}, "cwd": {"cwd": stuck}, "link": {"read": [f"{link}/x"]}}[named]
    begun = time.monotonic()
    run = actor.answer({"mode": "run", "argv": ["/bin/true"], "kwargs": {"tier": "guarded", "caller": "operator", **asked}}, cwd=actor.home)
    assert run["refused"]["code"] == "mount_stuck" and run["refused"]["transient"] is True, run
    assert repr(stuck) in run["refused"]["text"] and time.monotonic() - begun < LIMIT_S
    actor.remove(link)


@requirement("launcher.stuck_mounts")
def test_a_write_root_that_holds_it_is_refused_in_bounded_time(actor: Actor, stuck_inside: str) -> None:
    run = actor.run(["/bin/true"], tier="guarded")
    assert run.code == "mount_stuck", run.raw


@requirement("launcher.stuck_mounts")
def test_a_line_that_was_made_before_says_that_it_did_not_look_there(actor: Actor, stuck_inside: str) -> None:
    """The launcher alone: it must not hang on what nobody has asked before it."""
    watched = [{"root": actor.workspace, "names": [".envrc", "*/.git"], "mode": "report", "quarantine": None}]
    limits = {**small_plan(actor)["limits"], "wall_ms": 20000}
    mounts = [row | {"recursive": True} if row.get("source") == actor.workspace else row for row in small_plan(actor)["mounts"]]
    ended = launch(actor, small_plan(actor, persistence=watched, limits=limits, mounts=mounts), ["/bin/sh", "-c", "echo ran"])
    assert (ended.status, ended.out) == (0, "ran\n"), ended.err
    assert any("away could not be read" in said for said in ended.records["end"]["degraded"]), ended.records["end"]
