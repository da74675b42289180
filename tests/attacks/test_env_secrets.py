"""env.secrets: secret variables do not reach a box, by name, by value, or through /proc."""

from __future__ import annotations

import os

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import kept, op, worked
from support.lists import token_samples, variable_names
from support.live import LiveBox

SECRET = "value-that-must-not-be-seen"
LOOK = [op("environ", "own"), op("all_environ", "proc"), op("proc_environ", "self", path="/proc/self/environ")]


def _loaded(actor: Actor) -> dict[str, str]:
    return {**actor.env, **dict.fromkeys(variable_names("env-secrets"), SECRET), "PLAIN_NAME": "plain"}


@requirement("env.secrets")
@at_tiers("env.secrets")
def test_no_listed_variable_reaches_the_box(actor: Actor, tier: str) -> None:
    env = _loaded(actor)
    bare = actor.bare(LOOK, env=env)
    assert set(variable_names("env-secrets")) <= set(bare["own"]["value"])
    run = actor.box(LOOK, tier=tier, env=env)
    leaked = set(variable_names("env-secrets")) & set(run.value("own"))
    assert leaked == set()
    assert {"PLAIN_NAME=plain"} & {*run.value("proc"), *run.value("self")} or tier == "strict", "the box reads its own environment"
    assert any(text.startswith("PATH=") for text in run.value("proc")) and any(text.startswith("PATH=") for text in run.value("self"))
    assert SECRET not in repr(run.answers)
    kept(run, "env.secrets", tier)


@requirement("env.secrets")
@at_tiers("env.secrets")
def test_plain_and_granted_variables_reach_the_box(actor: Actor, tier: str) -> None:
    granted = variable_names("env-secrets")[0]
    run = actor.box(LOOK, tier=tier, env=_loaded(actor), pass_env=[granted, "PLAIN_NAME"], set_env={"GIVEN_TOKEN": "given"})
    own = run.value("own")
    assert own[granted] == SECRET and own["PLAIN_NAME"] == "plain" and own["GIVEN_TOKEN"] == "given"
    assert own["PATH"] and own["LANG"] == "C.UTF-8"


@requirement("env.secrets")
@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_token_shapes_are_found_in_plainly_named_values(actor: Actor, tier: str) -> None:
    shaped = {f"PLAIN_{n}": text for n, text in enumerate(token_samples().values())}
    env = {**actor.env, **shaped}
    bare = actor.bare(LOOK, env=env)
    worked(bare)
    assert shaped and set(shaped) <= set(bare["own"]["value"])
    run = actor.box(LOOK, tier=tier, env=env)
    assert {name: value for name, value in run.value("own").items() if name in shaped} == {}


@requirement("env.secrets")
@pytest.mark.parametrize(("tier", "seen"), [("standard", True), ("guarded", True), ("strict", False)])
def test_strict_lets_only_listed_names_through(actor: Actor, tier: str, seen: bool) -> None:
    run = actor.box(LOOK, tier=tier, env={**actor.env, "UNHEARD_OF": "x"})
    assert ("UNHEARD_OF" in run.value("own")) is seen


@requirement("env.secrets")
@at_tiers("env.secrets")
def test_no_process_of_the_box_keeps_the_secrets_on_the_host_side(actor: Actor, tier: str) -> None:
    """Init and command are looked at from outside, where nothing hides their environment."""
    with LiveBox(actor, tier=tier, env=_loaded(actor)) as box:
        box.ask(LOOK)
        supervisor, *inner = box.tree()
        assert len(inner) >= 2, "init and command"
        looked = []
        for pid in inner:
            try:
                content = actor.host("/proc").joinpath(str(pid), "environ").read_bytes()
            except PermissionError:
                continue  # an ordinary user cannot even look at it
            looked.append(content)
            assert SECRET.encode() not in content, f"process {pid} of the box of {supervisor} shows a secret"
        # Root can look at each; the command has an environment, init need not have one.
        assert os.geteuid() != 0 or (len(looked) == len(inner) and any(b"PATH=" in content for content in looked))
