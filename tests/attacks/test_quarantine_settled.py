"""What a killed box left is settled whole by the next launch: nothing is lost, overwritten, or left unsaid."""

from __future__ import annotations

import signal

import pytest

from requirements import requirement
from support.actors import Actor, make_repository
from support.boxes import op
from support.left import OTHER_FILE_SYSTEM, STATE, leave, listed
from support.live import LiveBox

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
