"""fs.workspace_secrets: .env files at the top of a root are unreadable unless granted."""

from __future__ import annotations

from requirements import at_tiers, requirement
from stockade.rules.load import load_list
from support.actors import Actor
from support.boxes import failed_with, kept, op, worked
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
    plain = [actor.put(f"{fresh_repo}/{name}", "KEY=\n", 0o644) for name in SAMPLES]
    ops = [op("read", path=path) for path in secret]
    worked(actor.bare(ops, cwd=fresh_repo))
    run = actor.box([*ops, *(op("read", path=path) for path in plain), op("find", "find", path=fresh_repo, needle="workspace-needle")], tier=tier, cwd=fresh_repo)
    failed_with({f"read {path}": run.answers[f"read {path}"] for path in secret}, {"ENOENT", "EACCES"})
    worked({f"read {path}": run.answers[f"read {path}"] for path in plain})
    assert run.value("find") == []
    kept(run, "fs.workspace_secrets", tier)


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
def test_moving_or_linking_a_hidden_file_does_not_show_it(actor: Actor, fresh_repo: str, tier: str) -> None:
    secret = actor.put(f"{fresh_repo}/.env", "KEY=workspace-needle\n")
    ops = [op("rename", path=secret, to=f"{fresh_repo}/shown", keep=True), op("link", path=secret, to=f"{fresh_repo}/hard", keep=True),
           op("read", path=f"{fresh_repo}/shown"), op("read", path=f"{fresh_repo}/hard"), op("rewrite", path=secret, keep=True)]
    run = actor.box(ops, tier=tier, cwd=fresh_repo)
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
