"""``prove --against`` the Node sandbox runtime: the same attacks, counted."""

from __future__ import annotations

import json
from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from support.cli import environment, stockade
from tools.support import Tool


@requirement("prove.against")
def test_the_node_runtime_is_attacked_beside_the_tier(actor: Actor, npm_tool: Callable[..., Tool], debian: Callable[..., Tool]) -> None:
    for program, package in (("rg", "ripgrep"), ("socat", "socat")):  # it asks for them
        debian(program, package)
    env = environment(actor)
    env["PATH"] = f"{npm_tool('@anthropic-ai/sandbox-runtime').path[0]}:{env['PATH']}"
    said = stockade(actor, "prove", "--tier", "strict", "--against", "srt", "--json", env=env)
    assert said.status == 0, said
    document = json.loads(said.out)
    tier, peer = document["tiers"][0], document["against"]
    assert (tier["name"], peer["name"]) == ("strict", "srt")
    worked = {row["id"]: [attack["state"] == "worked" for attack in row["attacks"]] for row in peer["promises"]}
    # It denies what its settings name, and shows the rest of the home: both are in the count.
    assert any(worked["fs.credentials"]) and not all(worked["fs.credentials"]), worked
    assert not any(worked["fs.write_roots"]), worked
