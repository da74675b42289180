"""fs.persistence while the host works in the same tree: guards that are replaced, moved or removed.

A guard is a mount on an entry of a directory that the box may write. What the host does with the
entry ends the mount; these tests show how long, and that the receipt says so.
"""

from __future__ import annotations

import json

import pytest

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor
from support.boxes import failed_with, op
from support.live import LiveBox, wait_until

BLOCKED = {"EROFS", "EBUSY", "EXDEV"}

# Renames the guarded object or a directory above it away, and puts another one in its place. The
# mount moves along with the old object: the table of mounts does not change.
MOVED = {
    "git": ("cp -r .git ../g2; mv .git ../old; mv ../g2 .git; rm -rf ../old", ".git/config"),
    "hooks": ("cp -r .git/hooks .git/h2; mv .git/hooks .git/h1; mv .git/h2 .git/hooks", ".git/hooks/pre-push"),
    "tasks": ("mv .vscode .vscode.bak; cp -r .vscode.bak .vscode", ".vscode/tasks.json"),
    "parent": ("mv pkg pkg.bak; cp -r pkg.bak pkg", "pkg/.envrc"),
}


@pytest.fixture
def project(actor: Actor, fresh_repo: str) -> str:
    """The repository with points of every kind."""
    actor.put(f"{fresh_repo}/.vscode/tasks.json", "{}\n", 0o644)
    actor.put(f"{fresh_repo}/pkg/.envrc", "# before\n", 0o644)
    return fresh_repo


@requirement("fs.persistence", "B.host_renames_over", "B.move_into_guard")
@at_tiers("fs.persistence")
@pytest.mark.parametrize("what", MOVED)
def test_a_guarded_object_that_the_host_moves_away_is_guarded_again_or_ends_the_box(actor: Actor, project: str, tier: str, what: str) -> None:
    script, name = MOVED[what]
    look = [op("write_open", "look", path=f"{project}/{name}")]
    with LiveBox(actor, tier=tier, cwd=project) as box:
        failed_with(box.ask(look), BLOCKED)
        actor.sh(script, cwd=project)
        if tier == "strict":
            wait_until(lambda: box.process.poll() is not None, "the box is ended")
            end = box.records(until="end")["end"]
            assert end["outcome"] == "guard_lost" and end["guard_lost"]
            return
        wait_until(lambda: box.ask(look)["look"]["errno"] in BLOCKED, "the guard is back")
        failed_with({str(number): box.ask(look)["look"] for number in range(20)}, BLOCKED)
        box.finish()
        assert box.records(until="end")["end"]["guard_lost"]


@requirement("fs.persistence", "B.host_renames_over")
@pytest.mark.parametrize("tier", ["guarded"])
def test_a_name_that_the_host_removed_and_the_box_made_is_on_record(actor: Actor, project: str, tier: str) -> None:
    """It is not prevented (limitations); what counts is that the receipt says it."""
    path = actor.put(f"{project}/.envrc", "# before\n", 0o644)
    with LiveBox(actor, tier=tier, cwd=project) as box:
        failed_with(box.ask([op("rewrite", path=path)]), BLOCKED)
        actor.host(path).unlink()
        wait_until(lambda: box.ask([op("create", "make", path=path, keep=True, text="made by the box")])["make"]["errno"] in (None, "EEXIST"), "the box made it")
        box.finish()
        end = box.records(until="end")["end"]
    assert path in end["guard_lost"]
    changed = {row["path"]: row["change"] for row in end["persistence"]}
    assert ".envrc" in changed, end


@requirement("fs.persistence", "B.host_renames_over")
@at_tiers("fs.persistence")
def test_what_a_box_writes_in_the_moment_of_a_rename_does_not_stay_unsaid(actor: Actor, project: str, tier: str) -> None:
    """The box writes without a pause while the host runs ordinary git commands."""
    config = f"{project}/.git/config"
    loop = "import os, time\nend = time.monotonic() + 6\nprint('ready', flush=True)\nwhile time.monotonic() < end:\n    try:\n" \
           f"        f = os.open({config!r}, os.O_WRONLY | os.O_APPEND)\n        os.write(f, b'# planted\\n')\n        os.close(f)\n    except OSError:\n        pass\n"
    with LiveBox(actor, tier=tier, cwd=project) as box:
        # The guards have to stand before the host acts, or there is none to be lost.
        failed_with(box.ask([op("write_open", path=config)]), BLOCKED)
        assert box.process.stdin is not None
        box.process.stdin.write(json.dumps([op("run", "loop", argv=["/usr/bin/python3", "-c", loop])]).encode() + b"\n")
        box.process.stdin.flush()
        for number in range(4):
            wait_until(lambda: box.process.poll() is None or tier == "strict", "the box lives")
            actor.sh(f"git config user.x {number}; sleep 0.3", cwd=project)
        if tier == "guarded":
            box.finish()
        end = box.records(until="end")["end"]
        box.process.wait(20)
    assert config in end["guard_lost"]
    planted = "# planted" in actor.host(config).read_text()
    changed = {row["path"]: row["change"] for row in end["persistence"]}
    assert not planted or changed.get(".git/config") == "changed", end
    # At strict the box is over before the host has written again.
    assert end["outcome"] == ("guard_lost" if tier == "strict" else "exited")


@requirement("fs.persistence", "B.host_renames_over")
@pytest.mark.parametrize("tier", ["guarded"])
def test_a_guard_that_the_host_replaces_again_and_again_is_put_back_each_time(actor: Actor, project: str, tier: str) -> None:
    """Between the moment in which a guard is put back and the one in which init takes note the host may rename once more."""
    config = f"{project}/.git/config"
    look = [op("write_open", "look", path=config)]
    with LiveBox(actor, tier=tier, cwd=project) as box:
        failed_with(box.ask(look), BLOCKED)
        for _ in range(3):
            actor.sh("for i in 1 2 3 4 5; do git remote add r$i x; git remote remove r$i; done", cwd=project)
            wait_until(lambda: box.ask(look)["look"]["errno"] in BLOCKED, "the guard is back")
            failed_with({str(number): box.ask(look)["look"] for number in range(20)}, BLOCKED)
        box.finish()
        assert box.records(until="end")["end"]["guard_lost"]


@requirement("fs.persistence", "B.host_renames_over")
@pytest.mark.parametrize(("tier", "net"), [("strict", "none"), ("guarded", "none"), ("guarded", "host")])
def test_a_guard_that_the_host_moves_while_the_box_is_made_is_not_lost_in_silence(actor: Actor, project: str, tier: str, net: str) -> None:
    kwargs = {"tier": tier, "net": net, "cwd": project, "write": [project]}
    job = {"starts": 60, "seed": 11, "place": f"{project}/.git/config", "kwargs": kwargs}
    done = actor.call([PYTHON, "-B", str(actor.stage.bin / "guard_race.py"), str(actor.stage.lib), json.dumps(job)])
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = json.loads(done.stdout)
    assert found["silent"] == 0 and found["told"] > 0, found
