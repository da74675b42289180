"""What a box leaves behind to keep its new persistence points where they are, or to cost the host dear.

The box is dead when files are moved; modes, holes and the repository's index are what it has left.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest

from requirements import requirement
from support.actors import Actor
from support.boxes import BoxRun

OTHER_FILE_SYSTEM = "/var/tmp/state-home"
MEMORY_KIB = 1 << 20
STAT_AND_HASH = bytes(60)


def leave(actor: Actor, root: str, script: str, **kwargs: Any) -> BoxRun:
    """Run a shell script in a box of a class that quarantines by default."""
    run = actor.run(["/bin/sh", "-ec", script], tier="guarded", cwd=root, caller="repository", **kwargs)
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
    done = actor.call(["bash", "-c", row["restore"]])
    assert done.returncode == 0, done.stderr


def index(*entries: tuple[int, bytes]) -> bytes:
    """Write an index of version 4: of each name, how many bytes of the one before it go, and what comes instead."""
    body = b"".join(STAT_AND_HASH + struct.pack(">HB", min(len(name), 0xFFF), strip) + name + b"\0" for strip, name in entries)
    return b"DIRC" + struct.pack(">II", 4, len(entries)) + body + bytes(20)


def leave_with_index(actor: Actor, root: str, content: bytes, script: str) -> BoxRun:
    """Run a box in a repository whose index an earlier box has written."""
    path = actor.host(f"{root}/.git/index")
    path.write_bytes(content)
    os.chown(path, actor.uid, actor.gid)
    return leave(actor, root, script, before=["prlimit", f"--as={MEMORY_KIB * 1024}"])


@requirement("end.quarantine")
def test_a_small_index_of_gigabytes_of_names_costs_no_memory_and_moves_nothing(actor: Actor, fresh_repo: str) -> None:
    hostile = index((0, b".vscode/" + b"a" * (1 << 20)), *[(0, b"")] * 4_000)
    assert len(hostile) < 2 << 20 and MEMORY_KIB << 10 < 4_000 << 20, "small on the disk, and more than there is when spelled out"
    run = leave_with_index(actor, fresh_repo, hostile, "echo evil > .envrc")
    assert run.returncode == 0 and reasons(run) == {".envrc": "index_unread"}, run.stderr
    allowed = index((0, b".vscode/" + b"a" * 250), *[(0, b"")] * 4_000)
    assert reasons(leave_with_index(actor, fresh_repo, allowed, "echo evil > .mcp.json")) == {".mcp.json": None}


@requirement("end.quarantine")
def test_an_index_that_names_a_hook_does_not_make_it_the_users(actor: Actor, fresh_repo: str) -> None:
    content = index((0, b".envrc"), (len(b".envrc"), b".git/hooks/pre-commit"))
    listed = actor.host(f"{fresh_repo}/.git/index")
    listed.write_bytes(content)
    actor.remove(f"{fresh_repo}/.git/hooks")
    script = "mkdir .git/hooks; printf '#!/bin/sh\\n' > .git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit; echo x > .envrc"
    run = leave_with_index(actor, fresh_repo, content, script)
    assert reasons(run) == {".envrc": "tracked", ".git/hooks/pre-commit": None}, run.raw
    assert not actor.host(f"{fresh_repo}/.git/hooks/pre-commit").exists()


@requirement("end.quarantine")
def test_holes_and_many_files_do_not_fill_the_disk_of_the_state_home(actor: Actor, fresh_repo: str) -> None:
    env = {**actor.env, "STOCKADE_HOME": OTHER_FILE_SYSTEM}
    run = leave(actor, fresh_repo, "mkdir .vscode; for n in 1 2 3 4 5 6; do truncate -s 60M .vscode/$n; echo end >> .vscode/$n; done", env=env)
    assert run.returncode == 0, run.raw
    assert set(reasons(run)) - {".vscode"} == {f".vscode/{n}" for n in range(1, 7)} and all(points(run)[f".vscode/{n}"]["restore"] for n in range(1, 7))
    copies = [path for path in actor.host(f"{OTHER_FILE_SYSTEM}/quarantine").glob("*/*") if path.stat().st_size > 1 << 20]
    assert len(copies) == 6 and sum(path.stat().st_blocks * 512 for path in copies) < 1 << 20
    restore(actor, points(run)[".vscode/3"])
    with actor.host(f"{fresh_repo}/.vscode/3").open("rb") as back:
        assert back.seek(60 << 20) and back.read() == b"end\n"
    actor.remove(f"{fresh_repo}/.vscode")
    data = leave(actor, fresh_repo, "mkdir .vscode; for n in 1 2 3; do head -c 30M /dev/zero > .vscode/$n; done; echo x > .vscode/4", env=env)
    left = reasons(data)
    assert [left[f".vscode/{n}"] for n in range(1, 5)] == [None, None, "too_large", left[".vscode/4"]]
    run_dir = actor.host(f"{OTHER_FILE_SYSTEM}/quarantine/{data.receipt['run_id']}")
    assert sum(path.stat().st_blocks * 512 for path in run_dir.iterdir()) <= 64 << 20, "half a copy does not stay"


@requirement("end.quarantine")
@pytest.mark.parametrize("home", [None, OTHER_FILE_SYSTEM])
def test_modes_do_not_keep_a_point_where_it_is(actor: Actor, fresh_repo: str, home: str | None) -> None:
    env = {**actor.env, "STOCKADE_HOME": home} if home else None
    scripts = {
        ".vscode/tasks.json": "mkdir .vscode; echo evil > .vscode/tasks.json; chmod 500 .vscode",
        ".git/hooks/post-commit": "mkdir .git/hooks; cp /bin/true .git/hooks/post-commit; chmod 100 .git/hooks/post-commit",
        ".envrc": "echo evil > .envrc; chmod 500 .",
    }
    for name, script in scripts.items():
        actor.remove(f"{fresh_repo}/.git/hooks")
        actor.sh(script, cwd=fresh_repo)
        if not actor.is_root:
            assert actor.call(["mv", name, "/tmp"], cwd=fresh_repo).returncode != 0 or name.startswith(".git"), "the mode keeps its owner out"
        actor.host(fresh_repo).chmod(0o755)
        for made in (".vscode", ".git/hooks", name):
            actor.remove(f"{fresh_repo}/{made}")
        run = leave(actor, fresh_repo, script, env=env)
        assert run.returncode == 0, run.raw
        assert points(run)[name]["restore"], (name, reasons(run))
        assert not os.path.lexists(actor.host(f"{fresh_repo}/{name}"))
        above = actor.host(os.path.dirname(f"{fresh_repo}/{name}"))
        assert above.stat().st_mode & 0o777 == (0o755 if name.startswith(".git") else 0o500), "the directory has its mode back"
        above.chmod(0o755)
        restore(actor, points(run)[name])
        assert os.path.lexists(actor.host(f"{fresh_repo}/{name}"))
