"""A launch line that was stored before the tree had what it must protect.

Every other start compiles its plan anew and sees the tree as it is. A stored line (``wrap``, a
client's configuration file) is started by whoever holds it, with no Python in between.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from requirements import at_tiers, requirement
from support.actors import PYTHON, Actor
from support.boxes import Answers, failed_with, op, parse_answers, worked

BLOCKED = {"EROFS", "EBUSY", "EXDEV", "EACCES", "EPERM"}
UNREADABLE = {"ENOENT", "EACCES"}
POINTS = (".vscode/tasks.json", "any.code-workspace", ".github/hooks/a.json", ".git/modules/m/config", ".envrc")
SECRETS = (".env", ".ENV.prod", "team.kdbx", "my.tfvars", "deploy.p12")
PLAIN = (".env.example", "notes.txt")


def start(actor: Actor, made: dict[str, Any], ops: list[dict[str, Any]], cwd: str) -> Answers:
    """Start the stored line with operations for the probe."""
    done = actor.call(made["argv"], stdin=json.dumps(ops).encode(), cwd=cwd, env=made["env"])
    assert done.returncode == 0, done.stderr
    return parse_answers(done.stdout, done.stderr, ops)


@pytest.fixture
def stored(actor: Actor, fresh_repo: str, tier: str) -> dict[str, Any]:
    """A line that was made while the tree had nothing of the kind."""
    return actor.plan([PYTHON, str(actor.stage.bin / "probe.py")], tier=tier, cwd=fresh_repo)


@requirement("fs.persistence")
@at_tiers("fs.persistence")
def test_a_point_that_came_after_the_line_was_stored_is_guarded(actor: Actor, fresh_repo: str, stored: dict[str, Any]) -> None:
    ops = [op("write_open", path=f"{fresh_repo}/{name}") for name in POINTS]
    move = op("rename", "move", path=f"{fresh_repo}/.vscode", to=f"{fresh_repo}/elsewhere")
    plain = op("write_open", "plain", path=f"{fresh_repo}/notes.txt")
    for name in (*POINTS, "notes.txt"):
        actor.put(f"{fresh_repo}/{name}", "{}\n", 0o644)
    worked(actor.bare([*ops, plain], cwd=fresh_repo))
    answers = start(actor, stored, [*ops, move, plain], fresh_repo)
    worked({"plain": answers.pop("plain")})
    failed_with(answers, BLOCKED)
    assert all(actor.host(f"{fresh_repo}/{name}").read_text() == "{}\n" for name in POINTS)


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
def test_a_secret_that_came_after_the_line_was_stored_is_masked(actor: Actor, fresh_repo: str, stored: dict[str, Any]) -> None:
    for name in (*SECRETS, *PLAIN, "kept/by-link"):
        actor.put(f"{fresh_repo}/{name}", "later-needle\n", 0o644)
    actor.put(f"{fresh_repo}/.secrets/deep", "later-needle\n", 0o644)
    actor.sh("ln -s kept/by-link .dev.vars", cwd=fresh_repo)
    secret = (*SECRETS, ".secrets/deep", ".dev.vars", "kept/by-link")
    ops = [op("read", name, path=f"{fresh_repo}/{name}") for name in (*secret, *PLAIN)]
    worked(actor.bare(ops, cwd=fresh_repo))
    answers = start(actor, stored, ops, fresh_repo)
    worked({name: answers.pop(name) for name in PLAIN})
    failed_with(answers, UNREADABLE)


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
def test_thousands_of_secrets_that_came_later_are_masked(actor: Actor, fresh_repo: str, stored: dict[str, Any]) -> None:
    """More names than one message between the launcher's processes holds."""
    actor.sh("for n in $(seq 4000); do echo later-needle > .env.a-name-of-some-length-$n; done", cwd=fresh_repo)
    plain = actor.put(f"{fresh_repo}/notes.txt", "plain\n", 0o644)
    ops = [op("read", str(n), path=f"{fresh_repo}/.env.a-name-of-some-length-{n}") for n in (1, 2000, 4000)]
    worked(actor.bare(ops, cwd=fresh_repo))
    answers = start(actor, stored, [*ops, op("read", "plain", path=plain)], fresh_repo)
    worked({"plain": answers.pop("plain")})
    failed_with(answers, UNREADABLE)


@requirement("fs.persistence")
@at_tiers("fs.persistence")
@pytest.mark.parametrize("where", [".husky", "tools/hooks"])
def test_a_point_that_is_a_link_is_guarded_with_what_it_leads_to(actor: Actor, fresh_repo: str, stored: dict[str, Any], where: str) -> None:
    place = "store" if where == ".husky" else where
    actor.put(f"{fresh_repo}/{place}/pre-commit", "#!/bin/sh\n", 0o755)
    actor.sh(f"ln -s {place} {fresh_repo}/.husky")
    ops = [op("rewrite", "there", path=f"{fresh_repo}/{place}/pre-commit"), op("create", "new", path=f"{fresh_repo}/.husky/new", keep=True)]
    worked(actor.bare(ops, cwd=fresh_repo))
    actor.remove(f"{fresh_repo}/{place}/new")
    failed_with(start(actor, stored, ops, fresh_repo), BLOCKED)


@requirement("fs.workspace_secrets", "fs.persistence")
@at_tiers("fs.workspace_secrets")
@pytest.mark.parametrize("guarded", ["before", "after"])
def test_a_secret_inside_a_point_is_masked_and_the_point_stays_guarded(actor: Actor, fresh_repo: str, tier: str, guarded: str) -> None:
    """One path may be the parent of a mask and a point at once; many links, so that no order of a listing hides it."""
    if guarded == "before":
        actor.put(f"{fresh_repo}/.husky/pre-commit", "#!/bin/sh\n", 0o755)
    made = actor.plan([PYTHON, str(actor.stage.bin / "probe.py")], tier=tier, cwd=fresh_repo)
    actor.put(f"{fresh_repo}/.husky/secret", "later-needle\n", 0o644)
    links = [".env", *(f".env.{number}" for number in range(12))]
    actor.sh("for name in " + " ".join(links) + "; do ln -s .husky/secret $name; done", cwd=fresh_repo)
    ops = [op("read", "secret", path=f"{fresh_repo}/.husky/secret"), op("create", "new", path=f"{fresh_repo}/.husky/new", keep=True),
           *(op("read", name, path=f"{fresh_repo}/{name}") for name in links)]
    worked(actor.bare(ops, cwd=fresh_repo))
    actor.remove(f"{fresh_repo}/.husky/new")
    failed_with(start(actor, made, ops, fresh_repo), BLOCKED | UNREADABLE)
    assert not actor.host(f"{fresh_repo}/.husky/new").exists()


@requirement("fs.persistence")
@at_tiers("fs.persistence")
def test_a_point_that_cannot_be_looked_into_refuses_the_start_by_name(user: Actor, tier: str) -> None:
    made = user.plan(["/bin/true"], tier=tier)
    assert user.call(made["argv"], cwd=user.workspace, env=made["env"]).returncode == 0
    locked = user.make_dir(f"{user.workspace}/.github", 0o000)
    done = user.call(made["argv"], cwd=user.workspace, env=made["env"])
    user.sh(f"chmod 755 {locked}")
    user.remove(locked)
    assert done.returncode == 125 and b"guard_denied" in done.stderr and b"/.github" in done.stderr, done


@requirement("fs.workspace_secrets")
@at_tiers("fs.workspace_secrets")
def test_a_link_to_itself_and_odd_names_do_not_stop_a_stored_line(actor: Actor, fresh_repo: str, stored: dict[str, Any]) -> None:
    """What a box left in the tree must not keep the next one from starting, nor show anything."""
    actor.sh("ln -s .env .env; ln -s / .secrets; mkfifo .env.pipe; mkdir .env.dir; ln -s /nowhere .vscode", cwd=fresh_repo)
    names = (".env", ".env.pipe", ".env.dir/x", ".secrets/etc/hostname")
    answers = start(actor, stored, [op("write_open", name, path=f"{fresh_repo}/{name}") for name in names], fresh_repo)
    failed_with(answers, {"ELOOP", "ENOTDIR", *BLOCKED, *UNREADABLE})


@requirement("fs.persistence")
def test_a_line_stays_what_it_was_where_nothing_came(actor: Actor, fresh_repo: str) -> None:
    made = actor.plan(["/bin/true"], tier="strict", cwd=fresh_repo)
    assert made["plan"]["appearing"] and actor.call(made["argv"], cwd=fresh_repo, env=made["env"]).returncode == 0


@requirement("fs.own_state")
@at_tiers("fs.own_state")
@pytest.mark.parametrize("inside", ["", "/plans", "/.."])
def test_a_stored_line_is_not_turned_at_the_state_home(actor: Actor, fresh_repo: str, stored: dict[str, Any], inside: str) -> None:
    argv = list(stored["argv"])
    state = os.path.normpath(os.path.dirname(argv[argv.index("--plan-store") + 1]) + inside)
    argv[argv.index("--bind") + 1] = f"ws={state}"
    argv[argv.index("--cwd") + 1] = state
    done = actor.call(argv, cwd=fresh_repo, env=stored["env"])
    assert done.returncode == 125 and b"bind_invalid" in done.stderr, done
