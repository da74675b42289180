"""A store is found in its usual place and wherever its variable moves it."""

from __future__ import annotations

from stockade.rules.load import load_list
from stockade.rules.moves import locations

HOME = "/home/u"
STORES = {e.path: e for e in load_list("credentials")}
CHAINS = {e.path: e for e in load_list("toolchains")}


def test_without_variables_there_is_the_usual_place_alone() -> None:
    assert locations(STORES[".npmrc"], HOME, {}) == ("/home/u/.npmrc",)
    assert locations(CHAINS["~/.cargo"], HOME, {}) == ("/home/u/.cargo",)
    assert locations(CHAINS["/usr/local/go"], HOME, {}) == ("/usr/local/go",)


def test_a_variable_adds_a_place_and_keeps_the_usual_one() -> None:
    found = locations(STORES[".cargo/credentials.toml"], HOME, {"CARGO_HOME": "/data/cargo"})
    assert found == ("/home/u/.cargo/credentials.toml", "/data/cargo/credentials.toml")


def test_a_variable_that_names_the_file_itself_is_followed() -> None:
    assert "/srv/keys" in locations(STORES[".aws"], HOME, {"AWS_SHARED_CREDENTIALS_FILE": "/srv/keys"})
    assert "/home/u/k" in locations(STORES[".pgpass"], HOME, {"PGPASSFILE": "~/k"})


def test_a_list_of_files_is_split() -> None:
    found = locations(STORES[".kube"], HOME, {"KUBECONFIG": "/a/one:/b/two"})
    assert {"/a/one", "/b/two", "/home/u/.kube"} == set(found)


def test_base_directories_move_what_lies_below_them() -> None:
    env = {"XDG_CONFIG_HOME": "/cfg", "XDG_DATA_HOME": "/data", "XDG_CACHE_HOME": "/cache"}
    assert "/cfg/gh/hosts.yml" in locations(STORES[".config/gh/hosts.yml"], HOME, env)
    assert "/data/keyrings" in locations(STORES[".local/share/keyrings"], HOME, env)
    assert "/cache/huggingface/token" in locations(STORES[".cache/huggingface/token"], HOME, env)
    assert locations(STORES[".ssh"], HOME, env) == ("/home/u/.ssh",)


def test_a_variable_cannot_hide_the_home_or_the_root() -> None:
    for value in ("/", "/home", "/home/u", "/home/u/", "/home/../", "relative", ""):
        assert locations(STORES[".gnupg"], HOME, {"GNUPGHOME": value}) == ("/home/u/.gnupg",), value
