"""Inside codex's own sandbox: where a process is, what a box there keeps, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from requirements import requirement
from support.actors import Actor
from support.cli import environment, stockade
from support.where import active
from tools.support import Tool
from tools.test_agents import NATIVE

FOREIGN = ["foreign", None, False, None]
WRITE = ("-c", 'sandbox_mode="workspace-write"')
NETWORK = ("-c", "sandbox_workspace_write.network_access=true")


@pytest.fixture
def codex(npm_tool: Callable[..., Tool], actor: Actor) -> Callable[..., list[str]]:
    """The command prefix of its sandbox, with options."""
    prefix = npm_tool("@openai/codex@0.171.0").read[0]
    actor.make_dir(f"{actor.home}/.codex")
    return lambda *options: [os.path.join(prefix, NATIVE, "codex"), "sandbox", *options, "--"]


@pytest.fixture
def env(actor: Actor) -> Iterator[dict[str, str]]:
    """A state home where codex lets its command write, and no write root of a box is."""
    place = actor.make_dir(f"/tmp/stockade-in-codex-{actor.uid}", 0o700)
    yield {**environment(actor), "STOCKADE_HOME": place}
    actor.remove(place)


@requirement("F.where_am_i")
@pytest.mark.parametrize("options", [(), WRITE, (*WRITE, *NETWORK)], ids=["read only", "workspace", "network"])
def test_codex_is_foreign(actor: Actor, codex: Callable[..., list[str]], options: tuple[str, ...]) -> None:
    assert active(actor, codex(*options)) == FOREIGN


@requirement("F.where_am_i")
def test_a_strict_box_in_it_is_strict_for_who_may_have_one(actor: Actor, codex: Callable[..., list[str]], env: dict[str, str]) -> None:
    secret = actor.put(f"{actor.home}/.netrc", "machine secret-of-codex\n")
    script = f"cat {secret}; echo work > made && cat made"
    before = codex(*WRITE, *NETWORK)
    # The sandbox itself lets everything be read.
    bare = actor.call([*before, "sh", "-c", script], cwd=actor.workspace)
    assert bare.stdout == b"machine secret-of-codex\nwork\n", bare
    done = stockade(actor, "run", "--tier", "strict", "--net", "none", "--receipt", "-", "sh", "-c", script,
                    cwd=actor.workspace, before=before, env=env)
    if actor.uid == 0:  # it leaves root no capability, and root's box needs one
        assert (done.status, done.out) == (125, "") and "foreign_sandbox" in done.err and "CAP_SYS_ADMIN" in done.err, done
        return
    said, _, receipt = done.out.partition("\n")
    assert said == "work" and "secret-of-codex" not in receipt + done.err, done
    assert receipt.startswith("strict · kept 19 of 19 · "), done


@requirement("F.where_am_i")
def test_what_its_filter_forbids_is_a_refusal_that_names_it(actor: Actor, codex: Callable[..., list[str]], env: dict[str, str]) -> None:
    for tier in ("standard", "guarded", "strict"):
        done = stockade(actor, "run", "--tier", tier, "--net", "none", "true", cwd=actor.workspace, before=codex(*WRITE), env=env)
        assert (done.status, done.out) == (125, "") and "foreign_sandbox" in done.err, done
        assert ("CAP_SYS_ADMIN" if actor.uid == 0 else "codex's sandbox") in done.err, done
