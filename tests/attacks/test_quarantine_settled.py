"""What a killed box left is settled whole by the next launch: nothing is lost, overwritten, or left unsaid."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from requirements import requirement
from support.actors import WAIT_S, Actor, make_repository
from support.boxes import op, worked
from support.left import OTHER_FILE_SYSTEM, STATE, journals, leave, listed, plant_and_kill, records, rows
from support.live import LiveBox, wait_until

LOADER = "fault_loader"


@requirement("end.journal", "end.quarantine")
@pytest.mark.parametrize("home", [None, OTHER_FILE_SYSTEM])
def test_what_is_settled_takes_no_number_that_a_moved_file_has(actor: Actor, fresh_repo: str, home: str | None) -> None:
    """One file of the dead box stayed and has no line in its journal; the next one was moved under its number."""
    env = {**actor.env, "STOCKADE_HOME": home} if home else None
    actor.remove(f"{actor.home}/work/second")
    second = make_repository(actor, f"{actor.home}/work/second")
    script = f"echo first > .envrc; echo second > {second}/.envrc"
    with LiveBox(actor, tier="guarded", cwd=fresh_repo, caller="repository", env=env) as box:
        box.ask([op("environ")])
        dead = leave(actor, fresh_repo, script, write=[fresh_repo, second], env=env, before=[str(actor.stage.bin / LOADER), "unlinkat:KILL", "--"])
        assert dead.returncode == -signal.SIGSYS and actor.host(f"{fresh_repo}/.envrc").exists()
        box.finish()
    place = actor.host(f"{home or f'{actor.home}/{STATE}'}/quarantine/{dead.receipt['run_id']}")
    [moved] = listed(place / "manifest.jsonl")
    assert moved["number"] > 0 and (place / str(moved["number"])).read_text() == "second\n"
    actor.put(f"{second}/.mcp.json", "third\n", 0o644)
    [earlier] = leave(actor, fresh_repo, "true", env=env).receipt["end"]["earlier"]
    assert [row for row in earlier["persistence"] if not row["restore"]] == [], earlier
    items = listed(place / "manifest.jsonl")
    assert len({item["number"] for item in items}) == len(items), items
    texts = {".envrc": "first\n", ".mcp.json": "third\n"}
    for item in items:
        root, name = item["path"].rsplit("/", 1)
        assert (place / str(item["number"])).read_text() == ("second\n" if (root, name) == (second, ".envrc") else texts[name]), items
    actor.remove(second)


@requirement("end.journal", "end.quarantine")
def test_two_boxes_killed_on_one_root_are_not_taken_for_boxes_that_live(actor: Actor, fresh_repo: str) -> None:
    with LiveBox(actor, tier="guarded", cwd=fresh_repo, caller="repository") as one, LiveBox(actor, tier="guarded", cwd=fresh_repo, caller="repository") as two:
        for box, name in ((one, ".envrc"), (two, ".mcp.json")):
            worked(box.ask([op("create", path=f"{fresh_repo}/{name}", text="evil\n", keep=True)]))
        for box in (one, two):
            box.process.send_signal(signal.SIGKILL)
            box.process.wait(20)
    assert all(actor.host(f"{fresh_repo}/{name}").exists() for name in (".envrc", ".mcp.json"))
    end = leave(actor, fresh_repo, "true", caller="operator").receipt["end"]
    found = {row["path"]: row["left"] for run in end["earlier"] for row in run["persistence"] if row["restore"] or row["left"] != "not_new"}
    assert found == {".envrc": None, ".mcp.json": None}, end
    assert [name for name in (".envrc", ".mcp.json") if actor.host(f"{fresh_repo}/{name}").exists()] == []
    assert leave(actor, fresh_repo, "true").receipt["end"]["earlier"] == []


# An identifier of 2019: its box was killed long ago.
OLD = "01D00000000000000000000000"


def age(actor: Actor, run_id: str, *, mark: str | None = None) -> None:
    """Let the notes of a killed box be years old; with a mark, those of another root."""
    [path] = [path for path in journals(actor).iterdir() if run_id in path.name]
    info, text = path.stat(), path.read_text().replace(run_id, OLD)
    path.unlink()
    path = path.with_name("-".join([OLD, mark]) if mark else path.name.replace(run_id, OLD))
    path.write_text(text)
    os.chown(path, info.st_uid, info.st_gid)


@requirement("end.journal", "end.quarantine")
def test_old_notes_of_this_root_are_compared_and_not_forgotten(actor: Actor, fresh_repo: str) -> None:
    age(actor, plant_and_kill(actor, fresh_repo))
    end = leave(actor, fresh_repo, "true", caller="operator").receipt["end"]
    [earlier] = end["earlier"]
    assert (earlier["run_id"], [row["path"] for row in earlier["persistence"]]) == (OLD, [".envrc"]) and end["degraded"] == []
    assert not actor.host(f"{fresh_repo}/.envrc").exists()


@requirement("end.journal")
def test_old_notes_of_other_roots_are_forgotten_and_that_is_said(actor: Actor, fresh_repo: str) -> None:
    age(actor, plant_and_kill(actor, fresh_repo), mark="000000000000")
    end = leave(actor, fresh_repo, "true", caller="operator").receipt["end"]
    assert [word for word in end["degraded"] if word.startswith("journal: 1 forgotten")], end
    assert [path.name for path in journals(actor).iterdir() if OLD in path.name] == []
    assert leave(actor, fresh_repo, "true", caller="operator").receipt["end"]["degraded"] == []


def probed(actor: Actor) -> None:
    """Under one filter that denies nothing the host allows a box: the next caller with one filter is given that answer."""
    for _ in range(2):  # the first start of all makes the state home
        assert actor.run(["true"], tier="guarded", before=[str(actor.stage.bin / LOADER), "chroot:EPERM", "--"]).code is None


@requirement("end.journal", "end.quarantine", "launcher.fault_is_typed")
def test_a_refusal_names_what_was_moved_before_it(actor: Actor, fresh_repo: str) -> None:
    probed(actor)
    run_id = plant_and_kill(actor, fresh_repo)
    before = [str(actor.stage.bin / LOADER), "seccomp:EPERM", "--"]
    refused = actor.run(["true"], tier="guarded", cwd=fresh_repo, before=before)
    assert refused.code == "seccomp_denied" and not actor.host(f"{fresh_repo}/.envrc").exists(), refused.raw
    said = f"run {run_id} was killed: 1 changes, 1 moved to quarantine, listed in "
    assert [reason for reason in refused.refused["reasons"] if reason.startswith(said)], refused.raw
    [row] = [row for row in records(actor) if row.get("record") == "refused" and any(run["run_id"] == run_id for run in row.get("earlier", ()))]
    actor.sh(row["earlier"][0]["persistence"][0]["restore"])
    assert actor.host(f"{fresh_repo}/.envrc").read_text() == "evil\n"
    assert leave(actor, fresh_repo, "true").receipt["end"]["earlier"] == []


@requirement("end.journal", "launcher.fault_is_typed")
def test_a_refusal_on_a_terminal_names_what_was_moved_before_it(actor: Actor, fresh_repo: str) -> None:
    probed(actor)
    run_id = plant_and_kill(actor, fresh_repo)
    before = [str(actor.stage.bin / LOADER), "seccomp:EPERM", "--"]
    with actor.live(["true"], tier="guarded", cwd=fresh_repo, before=before, stderr=-1) as launcher:
        _, err = launcher.communicate(timeout=WAIT_S)
    first, second = err.decode().splitlines()
    assert first.startswith("stockade: refused: seccomp_denied: ")
    assert second.startswith(f"stockade: run {run_id} was killed: 1 changes in places that run code later, 1 moved to quarantine, listed in ")


def full_pipe() -> tuple[int, int]:
    """A pipe whose reader has not read for long: the next write waits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    return reader, writer


@requirement("end.journal", "end.quarantine", "launcher.fault_is_typed")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_a_launch_that_cannot_be_recorded_is_compared_all_the_same(actor: Actor, fresh_repo: str, tier: str) -> None:
    """The command runs while its launch record waits for a reader, who goes away."""
    reader, writer = full_pipe()
    kwargs = {"caller": "repository"}
    with actor.live(["/bin/sh", "-c", "echo evil > .envrc; sleep 60"], tier=tier, cwd=fresh_repo, report_fd=writer, kwargs=kwargs, stderr=-1) as box:
        os.close(writer)
        wait_until(actor.host(f"{fresh_repo}/.envrc").exists, "the attack works: the command has run")
        os.close(reader)
        _, err = box.communicate(timeout=WAIT_S)
    assert box.returncode == 125 and b"report_failed" in err and b"the command had started and was ended" in err, err
    assert not actor.host(f"{fresh_repo}/.envrc").exists(), "what it planted is moved"
    [earlier] = leave(actor, fresh_repo, "true", caller="operator").receipt["end"]["earlier"]
    assert [(row["path"], bool(row["restore"])) for row in earlier["persistence"]] == [(".envrc", True)]
    assert leave(actor, fresh_repo, "true").receipt["end"]["earlier"] == []


@requirement("end.journal", "end.quarantine")
def test_a_killed_box_with_more_than_a_record_holds_is_named_with_part_of_it(actor: Actor, fresh_repo: str) -> None:
    """Which part fits is the box's choice of names; that it was killed, and how much more there is, is said all the same."""
    script = "mkdir -p .claude/skills; for n in $(seq 150); do echo $n > .claude/skills/$n.md; done; echo x > .mcp.json"
    dead = leave(actor, fresh_repo, script, before=[str(actor.stage.bin / LOADER), "unlinkat:KILL", "--"])
    run_id = dead.receipt["run_id"]
    end = leave(actor, fresh_repo, "true").receipt["end"]
    [earlier] = end["earlier"]
    assert (earlier["run_id"], bool(earlier["persistence"])) == (run_id, True)
    [said] = [word for word in end["degraded"] if word.startswith(f"run {run_id}: persistence: ")]
    assert int(said.split()[3]) + len(earlier["persistence"]) >= 151 and f"listed in {earlier['quarantine']}" in said, said


@requirement("end.quarantine")
def test_a_lock_that_somebody_keeps_is_its_own_reason(actor: Actor, fresh_repo: str) -> None:
    leave(actor, fresh_repo, "true")
    with (journals(actor) / ".lock").open("rb") as lock:
        # As a start takes part in it.
        fcntl.flock(lock, fcntl.LOCK_SH)
        run = leave(actor, fresh_repo, "echo x > .envrc; echo x > .mcp.json")
        assert {path: row["left"] for path, row in rows(run.receipt["end"]["persistence"]).items()} == {".envrc": "lock_busy", ".mcp.json": "lock_busy"}
        assert run.receipt["end"]["quarantine"] is None and actor.host(f"{fresh_repo}/.envrc").exists()
    run = leave(actor, fresh_repo, "echo x > CLAUDE.md")
    assert rows(run.receipt["end"]["persistence"])["CLAUDE.md"]["restore"], "the twin: free, it is moved"


@contextlib.contextmanager
def slow_syncs(pid: int) -> Iterator[None]:
    """Let a process's disk answer late."""
    argv = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=60ms", "-p", str(pid)]
    with subprocess.Popen(argv) as tracer:
        try:
            wait_until(lambda: f"TracerPid:\t{tracer.pid}\n" in Path(f"/proc/{pid}/status").read_text(), "strace holds it")
            yield
        finally:
            tracer.terminate()


@requirement("end.quarantine")
def test_a_box_that_starts_while_many_files_are_moved_is_not_refused(actor: Actor, fresh_repo: str) -> None:
    """More files on a slower disk than a start waits for the lock: 60 at 120 ms each."""
    made = actor.host(f"{fresh_repo}/.husky")
    script = "mkdir .husky; for n in $(seq 60); do echo x > .husky/$n; done; read line"
    with actor.live(["/bin/sh", "-c", script], tier="guarded", cwd=fresh_repo, kwargs={"caller": "repository"}, stdin=-1) as box:
        wait_until(lambda: made.exists() and len(list(made.iterdir())) == 60, "the attack works: the files are there")
        with slow_syncs(box.pid):
            began = time.monotonic()
            assert box.stdin is not None
            box.stdin.close()
            wait_until(lambda: len(list(made.iterdir())) < 60, "the first is moved")
            other = actor.run(["true"], tier="guarded")
            assert other.refused is None and box.poll() is None, other.raw
            box.wait(60)
        assert time.monotonic() - began > 5, "longer than a start waits"
    assert list(made.iterdir()) == []
