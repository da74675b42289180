"""Litter: after many boxes, some killed at random moments, nothing is left anywhere.

``STOCKADE_HYGIENE_SPAWNS`` sets the number and ``STOCKADE_HYGIENE_KILL_EVERY`` how many are killed;
``make soak`` runs the budget's size, 10,000 with 1,000 killed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor
from support.live import processes_with, wait_until
from support.trees import Snapshot, changes, snapshot

SPAWNS = int(os.environ.get("STOCKADE_HYGIENE_SPAWNS", "150"))
KILL_EVERY = int(os.environ.get("STOCKADE_HYGIENE_KILL_EVERY", "3"))
STORM_WAIT_S = 280 + SPAWNS // 10
SOCKETS_WAIT_S = 60
# The log, and the one cache that a probe of the host leaves on purpose.
LOG = (".local/state/stockade/audit", ".local/state/stockade/host-probe")


class World:
    """Everything that a box could leave behind."""

    def __init__(self, actor: Actor) -> None:
        """Look now."""
        self.actor = actor
        self.trees: dict[str, Snapshot] = {place: snapshot(actor.host(place), LOG) for place in (actor.home, "/tmp", "/var/tmp", "/run", "/dev/shm")}
        self.mounts = self._mounts()
        self.sockets = self._sockets()

    def _mounts(self) -> list[str]:
        text = Path(f"/proc/{self.actor.world.holder.pid}/mountinfo").read_text(encoding="utf-8")
        return sorted(line.split(" - ")[0].split(" ", 3)[3] for line in text.splitlines())

    def _sockets(self) -> list[str]:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
        return sorted(line.split()[7] for line in lines if len(line.split()) > 7 and "stockade" in line)

    def left_behind(self) -> dict[str, Any]:
        """What is new since the first look."""
        now = World(self.actor)
        found: dict[str, Any] = {place: changes(tree, now.trees[place]) for place, tree in self.trees.items()}
        found["mounts"] = sorted(set(now.mounts) - set(self.mounts))
        found["sockets"] = self._sockets_that_stay(set(now.sockets) - set(self.sockets))
        return {place: new for place, new in found.items() if new}

    def _sockets_that_stay(self, left: set[str]) -> list[str]:
        """The list is the machine's: those of tests that run beside this one go with them."""
        until = time.monotonic() + SOCKETS_WAIT_S
        while left and time.monotonic() < until:
            time.sleep(0.1)
            left &= set(self._sockets())
        return sorted(left)


def _storm(actor: Actor, **job: Any) -> tuple[dict[str, Any], str]:
    marker = f"storm-{os.urandom(4).hex()}"
    job = {"seed": 7, "kill_every": 0, "threads": 4, "argv": ["/bin/sh", "-c", f": {marker}; sleep 0.002"], **job}
    job["kwargs"] = actor._grants("strict", None, job.pop("kwargs", {}))
    done = actor.call([PYTHON, "-B", str(actor.stage.bin / "storm.py"), str(actor.stage.lib), json.dumps(job)], timeout_s=STORM_WAIT_S)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return dict(json.loads(done.stdout)), marker


@requirement("A.many_spawns_leave_nothing")
def test_many_boxes_of_which_some_are_killed_leave_nothing(actor: Actor) -> None:
    _storm(actor, spawns=2)
    before = World(actor)
    result, marker = _storm(actor, spawns=SPAWNS, kill_every=KILL_EVERY)
    killed = result["ends"].pop("killed")
    assert killed == SPAWNS // KILL_EVERY
    assert result["ends"] == {"ended 0": SPAWNS - killed}
    assert result["new_descriptors"] == [] and result["children"] == []
    wait_until(lambda: processes_with(marker) == [], "every process is gone")
    assert before.left_behind() == {}
    # The log's notes of boxes that were killed last are settled by the next start on their root.
    actor.run(["true"], tier="strict")
    assert [path.name for path in actor.host(f"{actor.home}/{LOG[0]}/open").iterdir()] == [".lock"]


@requirement("A.many_spawns_leave_nothing")
def test_two_hundred_boxes_at_once_from_a_hundred_threads(actor: Actor) -> None:
    _storm(actor, spawns=2)
    before = World(actor)
    result, marker = _storm(actor, spawns=200, threads=100, together=True)
    assert result["ends"] == {"ended 0": 200}
    assert result["new_descriptors"] == [] and result["children"] == []
    assert processes_with(marker) == []
    assert before.left_behind() == {}


@requirement("A.killed_launcher_leaves_nothing")
@at_tiers("fs.write_roots")
def test_a_launcher_killed_in_an_empty_directory_leaves_no_file(actor: Actor, tier: str) -> None:
    empty = actor.make_dir(f"{actor.home}/work/empty-{tier}")
    actor.run(["true"], tier=tier, cwd=empty)
    before = World(actor)
    marker = f"kill9-{os.urandom(4).hex()}"
    for delay_lines in (0, 1):
        child = actor.live(["/bin/sh", "-c", f": {marker}; echo up; sleep 60"], tier=tier, cwd=empty, stdin=-3, stdout=-1, stderr=-3)
        assert child.stdout is not None
        if delay_lines:
            assert child.stdout.readline() == b"up\n"
        child.send_signal(signal.SIGKILL)
        child.wait(20)
        child.stdout.close()
    wait_until(lambda: processes_with(marker) == [], "every process is gone")
    left = before.left_behind()
    # The stored plan of a wrapped launch line is what the caller asked for; nothing else is new.
    left[actor.home] = {name: how for name, how in left.get(actor.home, {}).items() if "/stockade/plans/" not in name}
    assert {place: new for place, new in left.items() if new} == {}


@requirement("A.many_spawns_leave_nothing")
@pytest.mark.parametrize("tmp", ["memory", "disk"])
def test_private_temp_files_are_removed_with_the_box(actor: Actor, tmp: str) -> None:
    actor.run(["true"], tier="strict", tmp=tmp)
    before = World(actor)
    run = actor.run(["sh", "-c", "echo x > /tmp/file; mkdir -p /tmp/a/b; chmod 0 /tmp/a/b; echo ok"], tier="strict", tmp=tmp)
    assert run.stdout == "ok\n", run.stderr
    assert before.left_behind() == {}


@requirement("A.exhaustion_is_transient")
def test_descriptors_run_out_and_come_back(actor: Actor) -> None:
    """Fewer and fewer descriptors: every answer but a run is a transient refusal; then all is as before."""
    script = ("import resource, sys\nsys.path.insert(0, sys.argv[1])\nimport stockade\nkw = dict(tier='standard', caller='operator', net='none')\n"
              "stockade.run(['/bin/true'], **kw)\nsaid = []\n"
              "for number in range(40, 3, -1):\n    resource.setrlimit(resource.RLIMIT_NOFILE, (number, 4096))\n    try:\n"
              "        said.append(str(stockade.run(['/bin/true'], **kw).returncode))\n    except stockade.Error as e:\n"
              "        said.append(f'{type(e).__name__} {getattr(e, \"transient\", None)}')\n"
              "    except OSError as e:\n        said.append(f'OSError {e.errno}')\n"
              "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))\nprint(' '.join(sorted(set(said))) + '|' + str(stockade.run(['/bin/true'], **kw).returncode))\n")
    done = actor.call([PYTHON, "-B", "-c", script, str(actor.stage.lib)])
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    first, second = done.stdout.decode().strip().split("|")
    assert (first, second) == ("0 Refused True", "0"), first
