"""What runs code later and appeared in a run is moved away, and nothing else is.

Each plant is first shown to stay without a box. The box is dead when files are moved, so what may
interfere is the host: other boxes, swapped parents, crashes of the supervisor.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.boxes import BoxRun, op, worked
from support.cli import environment, line, stockade
from support.live import LiveBox
from support.terminal import Terminal

LOADER = "fault_loader"
STATE = ".local/state/stockade"


def leave(actor: Actor, root: str, script: str, *, tier: str = "guarded", caller: str = "repository", **kwargs: Any) -> BoxRun:
    """Run a shell script in a box of a class that quarantines by default."""
    run = actor.run(["/bin/sh", "-ec", script], tier=tier, cwd=root, caller=caller, **kwargs)
    assert run.refused is None, run.raw
    return run


def points(run: BoxRun) -> dict[str, dict[str, Any]]:
    """The receipt's persistence changes by path."""
    return {row["path"]: row for row in run.receipt["end"]["persistence"]}


def reasons(run: BoxRun) -> dict[str, str | None]:
    """Why each change was left; None for what was moved."""
    return {path: row["left"] for path, row in points(run).items()}


def restore(actor: Actor, row: dict[str, Any]) -> None:
    """Type the receipt's line into a shell of the host."""
    done = actor.call(["/bin/bash", "-ec", row["restore"]])
    assert done.returncode == 0, done.stderr


PLANTS = (".envrc", ".vscode/tasks.json", ".mcp.json", "CLAUDE.md", "AGENTS.md", ".claude/settings.json", ".husky/pre-commit", ".git/commondir",
          ".git/hooks/post-commit", ".cargo/config.toml", "x.code-workspace")


@requirement("end.quarantine", "fs.persistence")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_planted_points_are_gone_after_the_run_and_come_back_by_the_receipts_line(actor: Actor, fresh_repo: str, tier: str) -> None:
    actor.remove(f"{fresh_repo}/.git/hooks")
    script = "".join(f'mkdir -p "$(dirname {name})"; echo evil > {name}; ' for name in PLANTS if name != ".git/commondir") + "echo ../.git > .git/commondir"
    actor.sh(script, cwd=fresh_repo)
    assert [name for name in PLANTS if not actor.host(f"{fresh_repo}/{name}").exists()] == [], "the attack works without a box"
    for name in PLANTS:
        actor.remove(f"{fresh_repo}/{name}")
    for name in (".vscode", ".claude", ".husky", ".cargo", ".git/hooks"):
        actor.remove(f"{fresh_repo}/{name}")
    run = leave(actor, fresh_repo, script, tier=tier)
    assert [name for name in PLANTS if actor.host(f"{fresh_repo}/{name}").exists()] == []
    found = points(run)
    assert sorted(name for name, row in found.items() if row["restore"]) == sorted(PLANTS), run.stderr
    assert actor.host(f"{actor.home}/{STATE}/quarantine").stat().st_mode & 0o777 == 0o700
    for name in PLANTS:
        restore(actor, found[name])
        assert actor.host(f"{fresh_repo}/{name}").exists()


@requirement("end.quarantine")
def test_ordinary_tracked_and_older_files_stay(actor: Actor, fresh_repo: str) -> None:
    actor.put(f"{fresh_repo}/.envrc", "tracked\n", 0o644)
    actor.put(f"{fresh_repo}/.tool-versions", "older\n", 0o644)
    actor.sh("git add .envrc && git commit -qm envrc && rm .envrc", cwd=fresh_repo)
    run = leave(actor, fresh_repo, "git checkout -q -- .envrc; echo x > main.c; mkdir -p node_modules/.bin; echo x > node_modules/.bin/tool; "
                "mkfifo .mcp.json; mkdir -p .claude/skills; git init -q inner; git init -q .claude; echo x > .claude/.git/hooks/post-commit")
    assert run.returncode == 0, run.stderr
    for name in (".envrc", ".tool-versions", "main.c", "node_modules/.bin/tool", ".mcp.json", ".claude/skills", "inner/.git/HEAD", ".claude/.git/hooks/post-commit"):
        assert os.path.lexists(actor.host(f"{fresh_repo}/{name}")), name
    left = reasons(run)
    assert (left[".envrc"], left[".mcp.json"], left["node_modules/.bin/tool"]) == ("tracked", "not_a_file", "reported_only")
    assert (left[".claude/skills"], left["inner/.git"], left[".claude/.git/hooks/post-commit"]) == ("not_a_file", "not_a_file", "new_repository")
    assert "main.c" not in left and ".tool-versions" not in left


@requirement("end.quarantine")
def test_outside_a_repository_and_for_an_operator_points_are_reported_only(actor: Actor, fresh_repo: str) -> None:
    plain = actor.make_dir(f"{actor.home}/work/plain")
    left = reasons(leave(actor, plain, "echo x > .envrc; git init -q .; echo x > .mcp.json", write=[plain]))
    assert (left[".envrc"], left[".mcp.json"], left[".git/config"]) == ("no_repository",) * 3
    assert actor.host(f"{plain}/.envrc").exists()
    run = leave(actor, fresh_repo, "echo x > .envrc", caller="operator")
    assert points(run)[".envrc"] | {"root": ""} == {"root": "", "path": ".envrc", "change": "created", "restore": None, "left": None}
    assert actor.host(f"{fresh_repo}/.envrc").exists()
    actor.remove(plain)


@requirement("end.quarantine")
def test_links_are_moved_as_links_and_the_other_name_of_a_file_stays(actor: Actor, fresh_repo: str) -> None:
    before = actor.host(f"{fresh_repo}/README").read_bytes()
    run = leave(actor, fresh_repo, "ln -s /etc/passwd .envrc; ln README .mcp.json; ln -s ../elsewhere .vscode; ln -s /nonexistent CLAUDE.md")
    assert all(row["restore"] for row in points(run).values()) and len(points(run)) == 4, points(run)
    assert actor.host(f"{fresh_repo}/README").read_bytes() == before
    for row in points(run).values():
        restore(actor, row)
    assert os.readlink(actor.host(f"{fresh_repo}/.envrc")) == "/etc/passwd" and os.readlink(actor.host(f"{fresh_repo}/.vscode")) == "../elsewhere"


@requirement("end.quarantine")
def test_a_hostile_name_comes_back_exactly_and_drives_no_terminal(actor: Actor, fresh_repo: str) -> None:
    script = r"""mkdir .vscode; echo x > ".vscode/$(printf 'a\033[2J\nb\047 \\$(id)\377')" """
    with Terminal.bare(actor, line("run", "--as", "repository", "--tier", "guarded", "sh", "-c", script), cwd=fresh_repo,
                       env=environment(actor, NO_COLOR="1")) as screen:
        seen = screen.read_until("moved to quarantine") + screen.read_until("\n")
    assert "\x1b" not in seen
    document = json.loads(stockade(actor, "show", "last", "--json").out)
    restore(actor, document["end"]["persistence"][0])
    assert os.listdir(os.fsencode(actor.host(f"{fresh_repo}/.vscode"))) == [b"a\x1b[2J\nb' \\$(id)\xff"]
    shown = stockade(actor, "show", "last").out
    assert "moved to quarantine" in shown and document["end"]["persistence"][0]["restore"] in shown and "\x1b" not in shown


@requirement("end.quarantine")
def test_between_file_systems_files_are_copied_and_a_huge_one_stays(actor: Actor, fresh_repo: str) -> None:
    env = {**actor.env, "STOCKADE_HOME": "/var/tmp/state-home"}
    run = leave(actor, fresh_repo, "echo evil > .envrc; chmod 755 .envrc; ln -s /x .mcp.json; truncate -s 65M CLAUDE.md", env=env)
    assert reasons(run) == {".envrc": None, ".mcp.json": None, "CLAUDE.md": "too_large"}
    assert not os.path.lexists(actor.host(f"{fresh_repo}/.envrc")) and not os.path.lexists(actor.host(f"{fresh_repo}/.mcp.json"))
    assert actor.host(f"{fresh_repo}/CLAUDE.md").stat().st_size == 65 << 20
    for name in (".envrc", ".mcp.json"):
        restore(actor, points(run)[name])
    got = actor.host(f"{fresh_repo}/.envrc")
    assert (got.read_text(), got.stat().st_uid) == ("evil\n", actor.uid) and os.readlink(actor.host(f"{fresh_repo}/.mcp.json")) == "/x"


@requirement("end.quarantine")
@pytest.mark.parametrize("where", [".", "sub"])
def test_while_another_box_has_the_root_nothing_is_moved(actor: Actor, fresh_repo: str, where: str) -> None:
    actor.make_dir(f"{fresh_repo}/sub")
    other = os.path.normpath(f"{fresh_repo}/{where}")
    with LiveBox(actor, tier="guarded", cwd=other, write=[other]) as box:
        box.ask([op("environ")])
        assert reasons(leave(actor, fresh_repo, "echo x > .envrc")) == {".envrc": "shared_root"}
        assert actor.host(f"{fresh_repo}/.envrc").exists()
        box.finish()
    assert reasons(leave(actor, fresh_repo, "echo x > .mcp.json")) == {".mcp.json": None}


RACE = """
import ctypes, signal, sys, time
libc, root, end, n = ctypes.CDLL(None), sys.argv[1].encode(), time.monotonic() + float(sys.argv[2]), 0
going = [True]
signal.signal(15, lambda *a: going.clear())
while going and time.monotonic() < end:
    n += libc.renameat2(-100, root + b"/.vscode", -100, root + b"/decoy", 2) == 0
print(n)
"""
# A run is a try: whether the host comes between is chance, that it did in one of so many is not.
TRIES = 12


def swaps(racer: subprocess.Popen[bytes]) -> int:
    """End a racer of the host; return how often it swapped."""
    racer.terminate()
    out, _ = racer.communicate(timeout=20)
    return int(out)


@requirement("end.quarantine")
def test_a_parent_that_the_host_swaps_for_a_link_leads_no_move_astray(actor: Actor, fresh_repo: str) -> None:
    victims = [actor.put(f"{actor.elsewhere}/task{number}.json", "victim\n", 0o644) for number in range(TRIES)]
    actor.remove(f"{fresh_repo}/decoy")
    os.symlink(actor.elsewhere, actor.host(f"{fresh_repo}/decoy"))
    os.lchown(actor.host(f"{fresh_repo}/decoy"), actor.uid, actor.gid)
    actor.make_dir(f"{fresh_repo}/.vscode")
    with actor.spawn([PYTHON, "-c", RACE, fresh_repo, "50"], stdout=subprocess.PIPE) as racer:
        try:
            for number, victim in enumerate(victims):
                leave(actor, fresh_repo, f"echo evil > .vscode/task{number}.json || true", on_persistence="quarantine")
                assert actor.host(victim).read_text() == "victim\n"
        finally:
            swapped = swaps(racer)
    assert swapped > 0
    held = [path.read_text() for path in actor.host(f"{actor.home}/{STATE}/quarantine").glob("*/*") if path.is_file()]
    assert "victim\n" not in held
    for victim in victims:
        actor.remove(victim)


SWAP = """
import os, signal, sys, time
root, end, n = sys.argv[1], time.monotonic() + float(sys.argv[2]), 0
going = [True]
signal.signal(15, lambda *a: going.clear())
while going and time.monotonic() < end:
    if os.path.lexists(root + "/.envrc"):
        with open(f"{root}/new{n}", "w") as f: f.write(f"host {n}")
        os.rename(f"{root}/new{n}", root + "/.envrc")
        n += 1
print(n)
"""


@requirement("end.quarantine")
def test_a_file_that_the_host_replaces_meanwhile_is_never_lost_or_taken_for_the_boxes(actor: Actor, fresh_repo: str) -> None:
    """What ends in quarantine is the object that was compared; what the host saved last is in the tree or there."""
    with actor.spawn([PYTHON, "-c", SWAP, fresh_repo, "50"], stdout=subprocess.PIPE) as swapper:
        try:
            for _ in range(TRIES):
                run = leave(actor, fresh_repo, "echo box > .envrc")
                row = points(run).get(".envrc")
                assert row is None or row["restore"] or row["left"] in ("swapped", "not_new"), row
                there = os.path.lexists(actor.host(f"{fresh_repo}/.envrc"))
                assert there or (row is not None and row["restore"]), row
                actor.remove(f"{fresh_repo}/.envrc")
        finally:
            swapped = swaps(swapper)
    assert swapped > 0
    # Without the race the same file is moved. The last swap may have come after the last removal.
    actor.remove(f"{fresh_repo}/.envrc")
    assert points(leave(actor, fresh_repo, "echo box > .envrc"))[".envrc"]["restore"]


@requirement("end.journal", "end.quarantine")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_a_killed_box_is_settled_by_the_next_launch_on_its_root(actor: Actor, fresh_repo: str, tier: str) -> None:
    with LiveBox(actor, tier=tier, cwd=fresh_repo, caller="repository") as box:
        worked(box.ask([op("create", path=f"{fresh_repo}/.envrc", text="evil\n", keep=True)]))
        run_id = box.records(until="launch")["launch"]["run_id"]
        box.process.send_signal(signal.SIGKILL)
        box.process.wait(20)
    assert actor.host(f"{fresh_repo}/.envrc").exists()
    other = actor.run(["true"], tier=tier)
    assert other.receipt["end"]["earlier"] == [], "another root has nothing to do with it"
    run = leave(actor, fresh_repo, "true", tier=tier, caller="operator")
    [earlier] = run.receipt["end"]["earlier"]
    assert earlier["run_id"] == run_id and [row["path"] for row in earlier["persistence"]] == [".envrc"]
    assert not actor.host(f"{fresh_repo}/.envrc").exists()
    restore(actor, earlier["persistence"][0])
    assert actor.host(f"{fresh_repo}/.envrc").read_text() == "evil\n"
    end = json.loads(stockade(actor, "show", run_id, "--json").out)["end"]
    assert (end["outcome"], end["wall_ms"], end["persistence"][0]["path"]) == ("killed", None, ".envrc")
    assert leave(actor, fresh_repo, "true", tier=tier).receipt["end"]["earlier"] == []
    assert [path.name for path in actor.host(f"{actor.home}/{STATE}/audit/open").iterdir() if run_id in path.name] == []


@requirement("end.journal", "end.quarantine")
@pytest.mark.parametrize(("fault", "was_moved"), [("renameat2:KILL:4:0xffffffff:1", False), ("unlinkat:KILL", True)])
def test_a_supervisor_that_dies_around_a_move_loses_nothing(actor: Actor, fresh_repo: str, fault: str, was_moved: bool) -> None:
    before = [str(actor.stage.bin / LOADER), fault, "--"]
    dead = leave(actor, fresh_repo, "echo evil > .envrc", before=before)
    assert dead.returncode == -signal.SIGSYS
    assert actor.host(f"{fresh_repo}/.envrc").exists() is not was_moved
    [earlier] = leave(actor, fresh_repo, "true").receipt["end"]["earlier"]
    assert [row["path"] for row in earlier["persistence"]] == [".envrc"] and not actor.host(f"{fresh_repo}/.envrc").exists()
    restore(actor, earlier["persistence"][0])
    assert actor.host(f"{fresh_repo}/.envrc").read_text() == "evil\n"


@requirement("end.journal", "launcher.refusal_runs_nothing")
@pytest.mark.parametrize("fault", ["renameat2:ENOSPC:4:0xffffffff:0", "flock:EIO"])
def test_a_box_whose_journal_cannot_be_written_does_not_start(actor: Actor, fresh_repo: str, fault: str) -> None:
    run = actor.run(["/bin/sh", "-c", "echo ran > ran"], tier="guarded", cwd=fresh_repo, before=[str(actor.stage.bin / LOADER), fault, "--"])
    assert run.code in ("journal_failed", "resource"), run.raw
    assert not actor.host(f"{fresh_repo}/ran").exists()
    assert leave(actor, fresh_repo, "true").returncode == 0


@requirement("end.fail")
@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_fail_ends_typed_with_the_commands_status_in_the_receipt(actor: Actor, fresh_repo: str, tier: str) -> None:
    run = leave(actor, fresh_repo, "echo x > .envrc", tier=tier, caller="operator", on_persistence="fail")
    end = run.receipt["end"]
    assert (run.returncode, end["outcome"], end["exit_code"]) == (125, "persistence", 0)
    run_id = run.receipt["run_id"]
    assert run.stderr == (f"stockade: ended: persistence_changed: {fresh_repo}: got .envrc created, expected no change in places that run code later "
                          f"(hint: `stockade show {run_id}` names them)\n")
    assert actor.host(f"{fresh_repo}/.envrc").exists()
    assert points(run)[".envrc"]["restore"] is None
    quiet = leave(actor, fresh_repo, "echo x > main.c; exit 3", tier=tier, caller="operator", on_persistence="fail")
    assert (quiet.returncode, quiet.receipt["end"]["outcome"], quiet.stderr) == (3, "exited", ""), quiet.receipt["end"]


@requirement("end.fail")
@pytest.mark.parametrize("word", ["fail", "quarantine"])
def test_where_nothing_is_compared_the_words_are_refused(actor: Actor, fresh_repo: str, word: str) -> None:
    run = actor.run(["/bin/sh", "-c", "echo x > ran"], tier="off", cwd=fresh_repo, accept=["off"], on_persistence=word)
    assert run.code == "persistence_unwatched" and not actor.host(f"{fresh_repo}/ran").exists()
    assert leave(actor, fresh_repo, "true", tier="off", caller="operator", accept=["off"], on_persistence="report").returncode == 0


@requirement("end.fail")
def test_fail_counts_what_could_not_be_looked_at(actor: Actor, fresh_repo: str) -> None:
    if actor.is_root:
        script = "mkdir -p .claude/1/2/3/4/5/6/7/8/9"
    else:
        script = "mkdir .claude; chmod 000 .claude"
    run = leave(actor, fresh_repo, script, caller="operator", on_persistence="fail")
    assert (run.returncode, run.receipt["end"]["outcome"]) == (125, "persistence"), run.receipt["end"]
    assert fresh_repo in run.stderr and ": got " in run.stderr and "expected no change" in run.stderr, run.stderr
    actor.host(f"{fresh_repo}/.claude").chmod(0o755)


@requirement("end.fail", "end.quarantine")
def test_the_option_is_taken_on_the_command_line_and_an_untrusted_project_cannot_switch_it_off(actor: Actor, fresh_repo: str) -> None:
    said = stockade(actor, "run", "--on-persistence", "fail", "sh", "-c", "echo x > .envrc", cwd=fresh_repo)
    assert said.status == 125 and "persistence_changed" in said.err
    actor.remove(f"{fresh_repo}/.envrc")
    actor.put(f"{fresh_repo}/.stockade.toml", 'on_persistence = "report"\n', 0o644)
    assert reasons(leave(actor, fresh_repo, "echo x > .envrc")) == {".envrc": None}
    actor.put(f"{fresh_repo}/.stockade.toml", 'on_persistence = "quarantine"\n', 0o644)
    assert reasons(leave(actor, fresh_repo, "echo x > .mcp.json", caller="operator")) == {".mcp.json": None}
