"""fs.workspace_secrets: .env files at the top of a root are unreadable unless granted."""

from __future__ import annotations

from typing import Any

import pytest

from requirements import at_tiers, requirement
from stockade.rules.load import load_list
from support.actors import Actor
from support.boxes import failed_with, found_only, kept, op, worked
from support.lists import entry_paths
from support.live import LiveBox

SAMPLES = (".env.example", ".env.sample")


def _names() -> list[str]:
    found = {".env", ".env.local", ".env.production"}
    for entry in load_list("workspace-secrets"):
        found.update(entry_paths(entry) if entry.examples or entry.path or entry.paths else [entry.pattern.replace("*", "sample")])
    return sorted(name for name in found if name not in SAMPLES and not name.endswith((".example", ".sample", ".template")))


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
def test_env_files_are_unreadable_and_samples_are_not(actor: Actor, fresh_repo: str, tier: str) -> None:
    secret = [actor.put(f"{fresh_repo}/{name}", "KEY=workspace-needle\n") for name in _names()]
    plain = [actor.put(f"{fresh_repo}/{name}", "KEY=workspace-needle\n", 0o644) for name in SAMPLES]
    ops = [op("read", path=path) for path in secret]
    worked(actor.bare(ops, cwd=fresh_repo))
    run = actor.box([*ops, *(op("read", path=path) for path in plain), op("find", "find", path=fresh_repo, needle="workspace-needle")], tier=tier, cwd=fresh_repo)
    failed_with({f"read {path}": run.answers[f"read {path}"] for path in secret}, {"ENOENT", "EACCES"})
    assert [run.value(f"read {path}") for path in plain] == ["KEY=workspace-needle\n"] * len(plain)
    found_only(run, "find", plain)
    kept(run, "fs.workspace_secrets", tier)


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
def test_moving_or_linking_a_hidden_file_does_not_show_it(actor: Actor, fresh_repo: str, tier: str) -> None:
    secret = actor.put(f"{fresh_repo}/.env", "KEY=workspace-needle\n")
    ops = [op("rename", path=secret, to=f"{fresh_repo}/shown", keep=True), op("link", path=secret, to=f"{fresh_repo}/hard", keep=True),
           op("read", path=f"{fresh_repo}/shown"), op("read", path=f"{fresh_repo}/hard"), op("rewrite", path=secret, keep=True)]
    # The twin moves and links a file that is no secret, and sees it under the new names.
    plain = actor.put(f"{fresh_repo}/plain", "KEY=plain\n", 0o644)
    twin = [op("link", "twin link", path=plain, to=f"{fresh_repo}/plain-hard", keep=True), op("rename", "twin rename", path=plain, to=f"{fresh_repo}/plain-shown", keep=True),
            op("read", "twin shown", path=f"{fresh_repo}/plain-shown"), op("read", "twin hard", path=f"{fresh_repo}/plain-hard")]
    run = actor.box([*ops, *twin], tier=tier, cwd=fresh_repo)
    worked({item["id"]: run.answers[item["id"]] for item in twin})
    assert (run.value("twin shown"), run.value("twin hard")) == ("KEY=plain\n", "KEY=plain\n")
    assert "workspace-needle" not in repr(run.answers)
    assert actor.host(secret).read_text() == "KEY=workspace-needle\n"


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
def test_a_granted_env_file_can_be_read(actor: Actor, fresh_repo: str, tier: str) -> None:
    secret = actor.put(f"{fresh_repo}/.env", "KEY=granted\n")
    run = actor.box([op("read", path=secret)], tier=tier, cwd=fresh_repo, read=[secret])
    assert run.value(f"read {secret}") == "KEY=granted\n"


@requirement("fs.workspace_secrets", "B.host_renames_over")
@at_tiers("fs.workspace_secrets")
def test_a_box_whose_hidden_env_file_is_replaced_is_ended(actor: Actor, fresh_repo: str, tier: str) -> None:
    """Inside a write root the hiding is a mount on the host's own entry: strict ends the box."""
    secret = actor.put(f"{fresh_repo}/.env", "KEY=workspace-needle\n")
    with LiveBox(actor, tier=tier, cwd=fresh_repo) as box:
        failed_with(box.ask([op("read", path=secret)]), {"ENOENT", "EACCES"})
        actor.agent.do("replace", path=secret, text="KEY=workspace-needle-new\n")
        end = box.records(until="end")["end"]
        box.process.wait(20)
    assert end["outcome"] == "guard_lost" and secret in end["guard_lost"]


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
def test_a_second_link_and_another_case_do_not_show_it(actor: Actor, fresh_repo: str, tier: str) -> None:
    """A second link in the same root is hidden, or refused with its name."""
    secret = actor.put(f"{fresh_repo}/.env", "KEY=workspace-needle\n")
    actor.put(f"{fresh_repo}/.ENV", "KEY=workspace-needle\n")
    actor.sh(f"ln {secret} {fresh_repo}/hard", cwd=fresh_repo)
    ops = [op("read", path=f"{fresh_repo}/{name}") for name in (".env", ".ENV", "hard")]
    worked(actor.bare(ops, cwd=fresh_repo))
    run = actor.run(["sh", "-c", "cat .env .ENV hard; find . -type f | xargs cat"], tier=tier, cwd=fresh_repo)
    if run.code is None:
        assert "workspace-needle" not in run.stdout
    else:
        assert run.code == "hard_link" and "hard" in str(run.refused), run.raw


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
@pytest.mark.parametrize("options", [{"caller": "generated"}, {"caller": "document"}, {"as_read": True}], ids=["generated", "document", "read"])
def test_env_files_of_a_read_root_are_unreadable_too(actor: Actor, fresh_repo: str, tier: str, options: dict[str, Any]) -> None:
    """A class without a write root still sees the project; so does somebody with a read grant of it."""
    actor.put(f"{fresh_repo}/.env", "KEY=workspace-needle\n")
    given: dict[str, Any] = {"read": [fresh_repo], "cwd": actor.workspace} if options.get("as_read") else {**options, "cwd": fresh_repo, "read": [fresh_repo]}
    ops = [op("read", path=f"{fresh_repo}/.env"), op("read", "twin", path=f"{fresh_repo}/README")]
    worked(actor.bare(ops))
    run = actor.box(ops, tier=tier, **given)
    failed_with(run.answers, {"ENOENT", "EACCES"}, but={"twin"})
    assert run.value("twin").startswith("hello")
    kept(run, "fs.workspace_secrets", tier)


@requirement("fs.workspace_secrets", "fs.persistence")
@at_tiers("fs.workspace_secrets")
def test_a_stored_launch_line_hides_what_appeared_since(actor: Actor, fresh_repo: str, tier: str) -> None:
    """The line is made once and started later; the project has changed meanwhile."""
    made = actor.plan(["/bin/sh", "-c", "echo ran; cat README .env; echo evil > .envrc; echo evil > .vscode/tasks.json; true"], tier=tier, cwd=fresh_repo)
    for name in (".env", ".envrc", ".vscode/tasks.json"):
        actor.put(f"{fresh_repo}/{name}", "KEY=workspace-needle\n", 0o644)
    done = actor.call(made["argv"], env=made["env"], cwd=fresh_repo)
    assert done.stdout.startswith(b"ran\nhello\n") or (done.returncode, b"refused" in done.stderr) == (125, True), done
    assert b"workspace-needle" not in done.stdout
    unchanged = [name for name in (".envrc", ".vscode/tasks.json") if "needle" in actor.host(f"{fresh_repo}/{name}").read_text()]
    promised = {row["id"] for row in made["plan"]["promises"] if row["state"] is None}
    assert unchanged == [".envrc", ".vscode/tasks.json"] or "fs.persistence" not in promised
