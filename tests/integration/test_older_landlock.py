"""Kernels whose Landlock is older than this host's, or that have none: what namespaces keep alone.

The kernel's answer for its version is made smaller by ``hostile/old_landlock.c``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from requirements import requirement
from support.actors import Actor
from support.boxes import Op, failed_with, kept, op, worked
from support.cli import environment, stockade

TIERS = ("standard", "guarded", "strict")
ABIS = (0, 2, 3, 5)


@pytest.fixture
def own_state(actor: Actor) -> Iterator[dict[str, str]]:
    """The environment of the actor with a state home in which no answer is kept."""
    state = f"{actor.home}/older-state"
    actor.remove(state)
    yield {**actor.env, "STOCKADE_HOME": state}
    actor.remove(state)


@pytest.fixture
def abstract(actor: Actor) -> list[Op]:
    """An abstract socket that a host process of the same user serves."""
    name = f"stk-older-{os.getpid()}-{actor.name}-{os.urandom(3).hex()}"
    actor.agent.do("listen_abstract", name=name)
    return [op("connect_abstract", "abstract", name=name)]


def older(actor: Actor, abi: int) -> list[str]:
    """Start what follows on a kernel with that Landlock."""
    return [str(actor.stage.bin / "old_landlock"), str(abi), "--"]


@requirement("D.older_landlock", "mechanism.without_landlock")
@pytest.mark.parametrize("abi", ABIS)
def test_without_a_network_every_tier_is_kept_whatever_landlock_there_is(actor: Actor, own_state: dict[str, str], abstract: list[Op], abi: int) -> None:
    plain = actor.put(f"{actor.elsewhere}/plain", "before\n", 0o644)
    ops = [*abstract, op("rewrite", path=plain), op("create", path=f"{actor.elsewhere}/new"), op("kill", pid=actor.agent.pid, signal=0)]
    worked(actor.bare(ops))
    for tier in TIERS:
        run = actor.box([*ops, op("create", "twin", path=f"{actor.workspace}/twin")], tier=tier, before=older(actor, abi), env=own_state, read=[actor.elsewhere])
        failed_with(run.answers, {"ECONNREFUSED", "EROFS", "ESRCH"}, but={"twin"})
        run.value("twin")
        assert (run.receipt["effective_tier"], run.receipt["missing"]) == (tier, []), run.receipt
        # A second mechanism from version 3 on, and its scopes from 6.
        used = {name for name in run.receipt["mechanisms"] if name.startswith("landlock")}
        assert used == ({"landlock_fs"} if abi >= 3 else set()), run.receipt["mechanisms"]
        kept(run, "ipc.isolated", tier)


@requirement("D.older_landlock", "F.never_silently_weaker")
@pytest.mark.parametrize("abi", ABIS)
def test_with_the_hosts_network_the_one_promise_that_is_lost_is_named_and_can_be_accepted(actor: Actor, own_state: dict[str, str], abstract: list[Op], abi: int) -> None:
    for tier in TIERS:
        run = actor.run(["true"], tier=tier, net="host", before=older(actor, abi), env=own_state)
        assert run.refused is not None and run.refused["missing"] == ["ipc.isolated"], run.raw
        assert f"got ABI {abi}" in run.refused["text"] and "--net none" in run.refused["remedy"], run.refused
    accepted = actor.box(abstract, tier="guarded", net="host", before=older(actor, abi), env=own_state, accept=["ipc.isolated"])
    worked(accepted.answers)
    assert accepted.receipt["missing"] == ["ipc.isolated"] and accepted.receipt["effective_tier"] == "off"
    failed_with(actor.box(abstract, tier="guarded", net="host", env=own_state).answers, {"EPERM"})


@requirement("D.older_landlock", "F.probe_agrees")
def test_doctor_says_which_network_keeps_the_tiers(actor: Actor, own_state: dict[str, str]) -> None:
    env = environment(actor, STOCKADE_HOME=own_state["STOCKADE_HOME"])
    found = stockade(actor, "doctor", "--json", before=older(actor, 3), env=env)
    trials = {(row["tier"], row["net"]): row["good"] for row in found.json()["trials"]}
    assert trials == {(tier, net): net == "none" for tier in TIERS for net in ("none", "host")}
    assert found.json()["kept"] == {"none": "strict", "host": "off"} and found.status == 1
    said = stockade(actor, "doctor", before=older(actor, 3), env=env)
    assert said.out.startswith("strict is kept here with net none, not with net host: "), said
    assert "remedy: " in said.out and "--net none" in said.out


@requirement("F.probe_agrees")
def test_a_policy_has_no_part_in_what_the_host_is_said_to_keep(actor: Actor, own_state: dict[str, str]) -> None:
    """The answer is kept for later, when the policy may be another one."""
    policy = actor.put(f"{actor.home}/.config/stockade/policy.toml", 'max_net = "none"\nmin_tier = "strict"\n', 0o644)
    try:
        assert actor.run(["true"], tier="strict", net="none", before=older(actor, 0), env=own_state).code is None
    finally:
        actor.remove(policy)
    run = actor.run(["true"], tier="guarded", net="host", before=older(actor, 0), env=own_state)
    assert run.refused is not None and run.refused["missing"] == ["ipc.isolated"], run.raw
