"""The notes of what was there before: nothing that a box leaves makes them fail open or lose the way back.

The box chooses how many names there are and how long they are, and it may be killed at any moment.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from typing import Any

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.boxes import BoxRun, op, worked
from support.cli import stockade
from support.live import LiveBox

STATE = ".local/state/stockade"
TREES = (".idea", ".mise", ".vim", ".kiro", ".qwen")

FILL = """
import os, sys
for top in sys.argv[1:]:
    here = os.fsencode(top)
    os.makedirs(here, exist_ok=True)
    at = os.open(here, os.O_RDONLY)
    for level in range(6):
        os.mkdir(b"\\xff" * 240, dir_fd=at)
        at = os.open(b"\\xff" * 240, os.O_RDONLY, dir_fd=at)
    for number in range(1900):
        os.close(os.open(b"\\xff" * 240 + b"%d" % number, os.O_CREAT | os.O_WRONLY, dir_fd=at))
"""


def leave(actor: Actor, root: str, script: str, *, caller: str = "repository", **kwargs: Any) -> BoxRun:
    """Run a shell script in a box that quarantines by default."""
    run = actor.run(["/bin/sh", "-ec", script], tier=kwargs.pop("tier", "guarded"), cwd=root, caller=caller, **kwargs)
    assert run.refused is None, run.raw
    return run


def rows(run: BoxRun) -> dict[str, dict[str, Any]]:
    """The receipt's persistence changes by path."""
    return {row["path"]: row for row in run.receipt["end"]["persistence"]}


def plant_and_kill(actor: Actor, root: str, *, tier: str = "guarded") -> str:
    """A box writes ``.envrc`` and its supervisor is killed; the name of the run."""
    with LiveBox(actor, tier=tier, cwd=root, caller="repository") as box:
        worked(box.ask([op("create", path=f"{root}/.envrc", text="evil\n", keep=True)]))
        run_id = str(box.records(until="launch")["launch"]["run_id"])
        box.process.send_signal(signal.SIGKILL)
        box.process.wait(20)
    assert actor.host(f"{root}/.envrc").exists(), "the attack works: what the killed box wrote is there"
    return run_id


def fill(actor: Actor, root: str) -> None:
    """So many names, and so long, that the notes of all of them would be 30 MB."""
    done = actor.call([PYTHON, "-c", FILL, *(f"{root}/{top}" for top in TREES)])
    assert done.returncode == 0, done.stderr


def journals(actor: Actor) -> dict[str, int]:
    """The open journals and their sizes."""
    return {path.name: path.stat().st_size for path in actor.host(f"{actor.home}/{STATE}/audit/open").glob("[!.]*")}


@requirement("end.journal", "end.quarantine")
def test_too_many_names_to_note_do_not_hide_a_killed_box(actor: Actor, fresh_repo: str) -> None:
    fill(actor, fresh_repo)
    run_id = plant_and_kill(actor, fresh_repo)
    assert [size for name, size in journals(actor).items() if run_id in name and size <= 16 << 20], journals(actor)
    end = leave(actor, fresh_repo, "true", caller="operator").receipt["end"]
    [earlier] = end["earlier"]
    found = {row["path"]: row["left"] for row in earlier["persistence"]}
    assert (earlier["run_id"], found[".envrc"]) == (run_id, "unsure"), found
    assert [word for word in end["degraded"] if run_id in word and "was not looked at" in word], end["degraded"]


@requirement("end.journal", "end.quarantine")
def test_too_many_names_to_note_do_not_hide_a_box_that_lives(actor: Actor, fresh_repo: str) -> None:
    fill(actor, fresh_repo)
    with LiveBox(actor, tier="guarded", cwd=fresh_repo, caller="repository") as box:
        box.ask([op("environ")])
        assert rows(leave(actor, fresh_repo, "echo x > .mcp.json"))[".mcp.json"]["left"] == "shared_root"
        assert actor.host(f"{fresh_repo}/.mcp.json").exists()
        box.finish()


def spoil(actor: Actor, run_id: str, *, line: int) -> None:
    """Make one line of a journal unreadable, as a bad disk does."""
    [path] = [path for path in actor.host(f"{actor.home}/{STATE}/audit/open").iterdir() if run_id in path.name]
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = b"\xff" * (len(lines[line]) - 1) + b"\n"
    path.write_bytes(b"".join(lines))


@requirement("end.journal", "end.quarantine")
@pytest.mark.parametrize("line", [0, 1])
def test_a_journal_that_cannot_be_read_is_said_once(actor: Actor, fresh_repo: str, line: int) -> None:
    run_id = plant_and_kill(actor, fresh_repo)
    spoil(actor, run_id, line=line)
    end = leave(actor, fresh_repo, "true", caller="operator").receipt["end"]
    assert [word for word in end["degraded"] if run_id in word and "cannot be read" in word], end
    document = json.loads(stockade(actor, "show", run_id, "--json").out)
    assert document["end"]["outcome"] == "killed" and any("not compared" in word for word in document["end"]["degraded"])
    assert leave(actor, fresh_repo, "true", caller="operator").receipt["end"]["degraded"] == []


@requirement("end.journal", "end.quarantine")
def test_while_the_journal_of_a_live_box_cannot_be_read_nothing_is_moved(actor: Actor, fresh_repo: str) -> None:
    with LiveBox(actor, tier="guarded", cwd=fresh_repo, caller="repository") as box:
        box.ask([op("environ")])
        spoil(actor, str(box.records(until="launch")["launch"]["run_id"]), line=0)
        assert rows(leave(actor, fresh_repo, "echo x > .mcp.json"))[".mcp.json"]["left"] == "shared_root"
        box.finish()


@requirement("end.journal", "end.quarantine")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_moving_what_a_killed_box_left_does_not_end_the_next_box(actor: Actor, fresh_repo: str, tier: str) -> None:
    run_id = plant_and_kill(actor, fresh_repo, tier=tier)
    run = leave(actor, fresh_repo, "sleep 1; echo done > done", tier=tier)
    end = run.receipt["end"]
    assert (run.returncode, end["outcome"], end["guard_lost"]) == (0, "exited", []), end
    assert actor.host(f"{fresh_repo}/done").exists()
    [earlier] = end["earlier"]
    assert earlier["run_id"] == run_id and earlier["persistence"][0]["restore"], earlier
    assert not os.path.lexists(actor.host(f"{fresh_repo}/.envrc"))


def listed(actor: Actor, run: BoxRun) -> list[dict[str, Any]]:
    """The lines of the list that the receipt names."""
    return [json.loads(line) for line in actor.host(run.receipt["end"]["quarantine"]).read_text().splitlines()]


@requirement("end.quarantine")
def test_every_file_that_was_moved_has_a_way_back_however_many_there_are(actor: Actor, fresh_repo: str) -> None:
    run = leave(actor, fresh_repo, "mkdir -p .claude/skills; for n in $(seq 150); do echo $n > .claude/skills/$n.md; done; echo x > .mcp.json")
    names = [*(f".claude/skills/{number}.md" for number in range(1, 151)), ".mcp.json"]
    assert [name for name in names if os.path.lexists(actor.host(f"{fresh_repo}/{name}"))] == []
    named = [path for path, row in rows(run).items() if row["restore"]]
    assert ".mcp.json" in named and len(named) < len(names), "the receipt has no room for all of them"
    lines = listed(actor, run)
    assert sorted(item["path"] for item in lines) == sorted(f"{fresh_repo}/{name}" for name in names)
    assert [word for word in run.receipt["end"]["degraded"] if f"{len(names) - len(named)} moved, listed in " in word]
    done = actor.call(["/bin/bash", "-ec", "\n".join(item["restore"] for item in lines)])
    assert done.returncode == 0, done.stderr
    assert [name for name in names if not actor.host(f"{fresh_repo}/{name}").exists()] == []
    assert actor.host(f"{fresh_repo}/.claude/skills/77.md").read_text() == "77\n"
    assert run.receipt["end"]["quarantine"] in stockade(actor, "show", run.receipt["end"]["run_id"]).out.replace("\n", "")


@requirement("end.quarantine")
@pytest.mark.parametrize("word", ["quarantine", "report"])
def test_many_names_of_a_pattern_hide_none_that_is_spelled_out(actor: Actor, fresh_repo: str, word: str) -> None:
    run = leave(actor, fresh_repo, "mkdir .claude; for n in $(seq 1100); do echo > .claude/$n; done; echo x > .mcp.json", on_persistence=word)
    row = rows(run)[".mcp.json"]
    assert bool(row["restore"]) is (word == "quarantine") is not os.path.lexists(actor.host(f"{fresh_repo}/.mcp.json"))
    left = [path for path in actor.host(f"{fresh_repo}/.claude").iterdir() if path.is_file()]
    assert len(left) == (101 if word == "quarantine" else 1100)
    [said] = [word for word in run.receipt["end"]["degraded"] if word.startswith("persistence: ")]
    assert int(said.split()[1]) + len(rows(run)) >= 1101, said


@requirement("end.quarantine", "end.journal")
def test_what_is_moved_for_a_killed_box_is_listed_too(actor: Actor, fresh_repo: str) -> None:
    run_id = plant_and_kill(actor, fresh_repo)
    [earlier] = leave(actor, fresh_repo, "true").receipt["end"]["earlier"]
    assert earlier["quarantine"] == f"{actor.home}/{STATE}/quarantine/{run_id}/manifest.jsonl"
    [item] = [json.loads(line) for line in actor.host(earlier["quarantine"]).read_text().splitlines()]
    assert (item["path"], item["restore"]) == (f"{fresh_repo}/.envrc", earlier["persistence"][0]["restore"])
    actor.call(["/bin/bash", "-ec", item["restore"]])
    assert actor.host(f"{fresh_repo}/.envrc").read_text() == "evil\n"


@requirement("end.fail")
def test_more_changes_than_a_receipt_names_fail_the_run_where_that_was_asked(actor: Actor, fresh_repo: str) -> None:
    run = leave(actor, fresh_repo, "mkdir .claude; for n in $(seq 1100); do echo > .claude/$n; done; echo x > .mcp.json",
                caller="operator", on_persistence="fail")
    assert (run.returncode, run.receipt["end"]["outcome"]) == (125, "persistence") and ".mcp.json" in rows(run)
    assert [word for word in run.receipt["end"]["degraded"] if "left where they are" in word]


@requirement("end.journal", "A.many_spawns_leave_nothing")
def test_the_file_of_a_box_killed_before_it_was_named_goes_with_the_next_start(actor: Actor, fresh_repo: str) -> None:
    leave(actor, fresh_repo, "true")
    place = actor.host(f"{actor.home}/{STATE}/audit/open")
    before = set(place.iterdir())  # boxes that were killed in other trees are settled by a start there
    left, held = (place / f".01M8N520PACF48EN6AHZ158P0{end}" for end in "AB")
    for path in (left, held):
        path.write_bytes(b"")
        os.chown(path, place.stat().st_uid, -1)
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        leave(actor, fresh_repo, "true")
        assert not left.exists() and held.exists(), "what nobody holds goes, what a live start holds stays"
    leave(actor, fresh_repo, "true")
    assert set(place.iterdir()) <= before and place / ".lock" in before
