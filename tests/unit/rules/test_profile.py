"""Profiles: search order, extends, merge, strict keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade.errors import ConfigError
from stockade.rules.load import profile_names
from stockade.rules.profile import ProfileStore

HEAD = 'schema = "profile.v1"\ndescription = "d"\n'


@pytest.fixture
def places(tmp_path: Path) -> tuple[ProfileStore, Path, Path]:
    system, user = tmp_path / "etc", tmp_path / "conf"
    (system / "profiles").mkdir(parents=True)
    (user / "profiles").mkdir(parents=True)
    return ProfileStore(str(user), system_dir=str(system)), system / "profiles", user / "profiles"


def names(store: ProfileStore, *wanted: str) -> list[str]:
    return [profile.source.rsplit("/", 1)[-1] for profile in store.chain(wanted)]


def test_every_built_in_profile_is_accepted_by_the_parser(places: tuple[ProfileStore, Path, Path]) -> None:
    store = places[0]
    assert {"npm", "pip", "git", "claude"} <= set(profile_names())
    for name in profile_names():
        profile = store.get(name)
        assert profile.description and profile.level == 0 and profile.layer.literal


def test_a_later_place_replaces_an_earlier_one(places: tuple[ProfileStore, Path, Path]) -> None:
    store, system, user = places
    (user / "npm.toml").write_text(HEAD + 'net = "none"\n')
    assert store.get("npm").layer.scalars["net"] == "none" and not store.get("npm").layer.literal
    if os.geteuid() == 0:
        (system / "npm.toml").write_text(HEAD + 'net = "host"\n')
        (user / "npm.toml").unlink()
        assert store.get("npm").source == str(user / "npm.toml")  # a store reads each once
        assert ProfileStore(str(user.parent), system_dir=str(system.parent)).get("npm").source == str(system / "npm.toml")


def test_a_profile_may_extend_the_one_it_replaces(places: tuple[ProfileStore, Path, Path]) -> None:
    store, _, user = places
    (user / "npm.toml").write_text(HEAD + 'extends = ["npm"]\n')
    assert names(store, "npm")[-2:] == ["built-in profile npm", "npm.toml"]


def test_what_is_extended_comes_first_and_only_once(places: tuple[ProfileStore, Path, Path]) -> None:
    store, _, user = places
    for name, extends in (("base", ""), ("left", '"base"'), ("right", '"base"'), ("top", '"left", "right"')):
        (user / f"{name}.toml").write_text(HEAD + f"extends = [{extends}]\n")
    assert names(store, "top") == ["base.toml", "left.toml", "right.toml", "top.toml"]


def test_a_cycle_is_an_error_that_names_it(places: tuple[ProfileStore, Path, Path]) -> None:
    store, _, user = places
    (user / "a.toml").write_text(HEAD + 'extends = ["b"]\n')
    (user / "b.toml").write_text(HEAD + 'extends = ["a"]\n')
    with pytest.raises(ConfigError) as caught:
        store.chain(["a"])
    assert caught.value.code == "profile_invalid" and "extends itself" in caught.value.message


def test_a_profile_by_path_is_found_and_a_missing_one_is_unknown(places: tuple[ProfileStore, Path, Path],
                                                               tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(HEAD)
    assert places[0].get(str(tmp_path / "my.toml")).name == "my"
    with pytest.raises(ConfigError) as caught:
        places[0].get(str(tmp_path / "other.toml"))
    assert caught.value.code == "unknown_profile"


def test_an_unknown_name_shows_the_nearest_of_all_places(places: tuple[ProfileStore, Path, Path]) -> None:
    (places[2] / "mytool.toml").write_text(HEAD)
    with pytest.raises(ConfigError) as caught:
        places[0].get("mytol")
    assert caught.value.code == "unknown_profile" and "'mytool'" in caught.value.hint


@pytest.mark.parametrize(("text", "reason"), [
    ('hidee = ["~/x"]', "line 3"),
    ('read = "~/x"', "line 3"),
    ('read = ["x"]', "starts with"),
    ('read = ["~/../x"]', "climb"),
    ('read = [{path = "~/x", optionl = true}]', "'read.optionl'"),
    ('tier = "stict"', "'stict'"),
    ('net = ["a.example"]', "network lists"),
    ('class = "robot"', "'robot'"),
    ('class = "first_party"', "claim"),
    ('state = [{path = "~/x", mode = "copyback", env = "X"}]', "state.env"),
    ('accept = ["fs.hom"]', "fs.hom"),
    ('env = ["*"]', "fewer than 3"),
    ('env = ["A=B"]', "'A=B'"),
    ('caches = [{name = "../x", path = "~/x"}]', "plain name"),
    ('caches = [{name = "x", pth = "~/x"}]', "caches.pth"),
    ('caches = [{name = "x", path = "~/x", plain = "yes"}]', "true or false"),
    ('state = [{path = "~/x", mode = "env"}]', "needs the keys"),
    ('[set_env]\nA = 3', "table of strings"),
    ('[limits]\nprocess = 3', "process"),
    ("x = [", "TOML"),
])
def test_a_wrong_profile_is_an_error_with_file_and_reason(places: tuple[ProfileStore, Path, Path], text: str,
                                                         reason: str) -> None:
    store, _, user = places
    (user / "bad.toml").write_text(HEAD + text + "\n")
    with pytest.raises(ConfigError) as caught:
        store.get("bad")
    assert caught.value.code == "profile_invalid"
    assert "bad.toml" in caught.value.message and reason in str(caught.value)


def test_a_profile_that_others_can_write_is_refused(places: tuple[ProfileStore, Path, Path]) -> None:
    file = places[2] / "open.toml"
    file.write_text(HEAD)
    file.chmod(0o666)
    with pytest.raises(ConfigError) as caught:
        places[0].get("open")
    assert caught.value.code == "profile_invalid" and "mode" in caught.value.message


def test_a_fifo_under_a_profile_name_does_not_hang(places: tuple[ProfileStore, Path, Path]) -> None:
    os.mkfifo(places[2] / "pipe.toml", 0o600)
    with pytest.raises(ConfigError):
        places[0].get("pipe")


def test_argv0_picks_the_built_in_profile_of_its_tool(places: tuple[ProfileStore, Path, Path]) -> None:
    store = places[0]
    assert store.pick("npm") == store.pick("/usr/bin/npx") == "npm"
    assert store.pick("pip") == "pip" and store.pick("claude") == "claude"
    assert store.pick("no-such-tool") is None
