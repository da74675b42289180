"""Where our own files are: the word of this process, never of a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from stockade.paths import OUR_VARIABLES
from stockade.rules.tiers import Tier
from unit.rules.world import World


@pytest.mark.parametrize("name", OUR_VARIABLES)
def test_the_environment_of_a_request_does_not_choose_our_files(world: World, tmp_path: Path, name: str) -> None:
    """A request's ``env`` is for the command: a policy, a trust or a log of its choice would be no policy."""
    world.policy('min_tier = "strict"\n')
    world.config('net = "none"\n')
    expected = world.resolve()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "stockade").mkdir(parents=True)
    (elsewhere / "stockade/config.toml").write_text('net = "host"\n')
    world.env[name] = str(elsewhere)
    got = world.resolve()
    assert (got.tier, got.net) == (expected.tier, expected.net) == (Tier.strict, "none")
    assert (got.state_home, got.config_home) == (expected.state_home, expected.config_home)
    assert str(world.home) in got.homes


def test_this_process_chooses_where_our_files_are(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere/stockade").mkdir(parents=True)
    (tmp_path / "elsewhere/stockade/policy.toml").write_text('min_tier = "strict"\n')
    assert world.resolve(tier="standard").tier == Tier.standard
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
    assert world.resolve(tier="standard").tier == Tier.strict
    monkeypatch.setenv("STOCKADE_HOME", str(tmp_path / "state"))
    assert world.resolve().state_home.path == str(tmp_path / "state")
