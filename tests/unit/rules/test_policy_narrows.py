"""Policy only ever takes away: no file of it leaves a box that may do more."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.errors import ConfigError, Refused
from stockade.paths import OUR_VARIABLES, is_below
from stockade.plan.inputs import is_harmless, socket_paths
from stockade.rules.governance import Policy, intersect
from stockade.rules.resolved import Resolved
from stockade.rules.tiers import Tier
from unit.rules.world import World

CACHES = ("off", "ephemeral", "keep")


# -- a profile that policy forbids, or that argv[0] picked ------------------------------------------

def test_a_denied_profile_that_argv0_picks_leaves_no_wider_box_than_with_it(world: World) -> None:
    world.policy('allow_profiles = ["git"]\n')
    got = world.resolve("npm", "ci", caller="auto")
    assert (got.tier, got.net, got.profiles, got.caches) == (Tier.strict, "none", (), ())
    assert got.on_persistence == "quarantine" and any("npm" in note and "narrows" in note for note in got.notes)


def test_what_a_denied_profile_hides_and_limits_stays_and_what_it_grants_goes(world: World) -> None:
    (world.home / "notes").mkdir()
    world.profile("hard", 'tier = "strict"\nnet = "none"\nhide = ["~/notes"]\nread = ["~/open"]\nsockets = ["docker"]\n'
                          'env = ["MY_TOKEN"]\n[set_env]\nA = "b"\n[limits]\nprocesses = 5\n')
    world.config('profile = ["hard"]\nread = ["~/notes/x"]\n')
    world.policy("allow_profiles = []\n")
    got = world.resolve()
    assert (got.tier, got.net, got.limits) == (Tier.strict, "none", {"processes": 5})
    assert [grant.path for grant in got.hide] == [f"{world.home}/notes"] and got.read == ()
    assert (got.sockets, got.set_env, got.profiles) == ((), (), ()) and "MY_TOKEN" not in got.env_keep


def test_a_denied_profile_cannot_loosen_either(world: World) -> None:
    world.profile("loose", 'tier = "standard"\nnet = "host"\n[limits]\nprocesses = 99\n')
    world.config('profile = ["loose"]\ntier = "strict"\n[limits]\nprocesses = 5\n')
    world.policy("allow_profiles = []\n")
    got = world.resolve()
    assert (got.tier, got.net, got.limits) == (Tier.strict, "none", {"processes": 5})


def test_a_denied_class_gives_no_write_root_that_the_callers_own_class_lacks(world: World) -> None:
    world.policy("allow_profiles = []\n")
    assert world.resolve("npm", "ci", caller="generated").write_roots == ()


@pytest.mark.parametrize(("argv0", "tier"), [("claude", "strict"), ("git", "strict"), ("npm", "strict")])
def test_a_picked_profile_stands_below_the_class_rows_of_files(world: World, argv0: str, tier: str) -> None:
    world.config('[class.operator]\ntier = "strict"\nnet = "none"\n')
    got = world.resolve(argv0, caller="auto")
    assert (got.profiles[-1], str(got.tier), got.net) == (argv0, tier, "none")
    world.config('[class.repository]\nnet = "none"\n')
    assert world.resolve("npm", caller="auto").net == "none"
    assert world.resolve("npm", caller="auto", profile="npm").net == "host"


def test_a_picked_profile_never_lowers_the_tier(world: World) -> None:
    world.profile("npm", 'class = "repository"\ntier = "standard"\n')
    assert world.resolve("npm", caller="auto").tier == Tier.strict
    assert world.resolve("npm", caller="auto", profile="npm").tier == Tier.standard
    world.config('[class.repository]\ntier = "standard"\n')
    assert world.resolve("npm", caller="generated").tier == Tier.strict


def test_a_tier_that_an_untrusted_project_names_brings_no_network(world: World) -> None:
    world.config('[class.operator]\ntier = "standard"\nnet = "none"\n')
    world.project('tier = "guarded"\n')
    got = world.resolve()
    assert (got.tier, got.net) == (Tier.guarded, "none")


# -- grants by another spelling ---------------------------------------------------------------------

@pytest.mark.parametrize("words", [{"sockets": ["/run/docker.sock"]}, {"sockets": ["/var/run/docker.sock"]},
                                   {"read": ["/run/docker.sock"]}, {"write": ["/var/run/docker.sock"]}])
def test_a_denied_socket_cannot_be_granted_by_its_path(world: World, words: dict[str, Any]) -> None:
    world.policy('deny_grants = ["docker"]\n')
    with pytest.raises(Refused) as caught:
        world.resolve(**words)
    assert caught.value.code == "policy_denied"


def test_a_denied_path_cannot_be_granted_as_a_socket_through_a_link(world: World) -> None:
    (world.home / "link").symlink_to("/srv/keys/agent.sock")
    world.policy('deny_grants = ["/srv/keys"]\n')
    with pytest.raises(Refused):
        world.resolve(sockets=[world.home / "link"])


def test_a_denied_path_is_no_source_of_configuration_for_the_box(world: World) -> None:
    world.policy(f'deny_grants = ["{world.home}/.npmrc"]\n')
    (world.home / ".npmrc").write_text("registry=https://r.example\n")
    with_it = World(world.home.parent / "other").resolve("npm", caller="auto", tier="strict")
    got = world.resolve("npm", caller="auto", tier="strict")
    assert any(path.endswith("/.npmrc") for made in with_it.config for path in made.sources)
    assert not any(path.endswith("/.npmrc") for made in got.config for path in made.sources)


def test_a_denied_socket_does_not_come_in_as_the_agent_of_a_variable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.home / "s"
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(world.home)  # the whole path may be longer than an address can be
        server.bind("s")
        world.env["SSH_AUTH_SOCK"] = str(place)
        assert socket_paths(world.resolve(), world.env) == (str(place),)
        world.policy(f'deny_grants = ["{place}"]\n')
        assert socket_paths(world.resolve(), world.env) == ()
        with pytest.raises(Refused) as caught:
            socket_paths(world.resolve(sockets=["ssh-agent"]), world.env)
    assert caught.value.code == "policy_denied"


def test_a_denied_repository_is_not_written_on_the_word_of_a_work_tree(world: World) -> None:
    (world.home / "far").mkdir()
    assert is_harmless(f"{world.home}/far", world.resolve())
    world.policy(f'deny_grants = ["{world.home}/far"]\n')
    assert not is_harmless(f"{world.home}/far", world.resolve())


# -- the property -----------------------------------------------------------------------------------

NAMES = ("npm", "hard", "loose", "wide", "git")
PATHS = ("{home}/a", "{home}/a/b", "{home}/repo", "{home}/repo/sub", "/srv", "/srv/keys", "/run/docker.sock")
TIERS = ("off", "standard", "guarded", "strict")


def _some(*words: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(words), max_size=3, unique=True)


POLICIES = st.fixed_dictionaries({}, optional={
    "min_tier": st.sampled_from(TIERS), "max_net": st.sampled_from(("none", "host")),
    "deny_grants": _some("*", "docker", "ssh-agent", "git-config", *PATHS),
    "deny_accept": _some("*", "standard", "guarded", "fs.home", "fs.credentials", "net.policy"),
    "deny_unconfined": st.booleans(), "allow_profiles": _some(*NAMES), "require_audit": st.booleans()})

LAYERS: dict[str, st.SearchStrategy[Any]] = {
    "tier": st.sampled_from(TIERS[1:]), "net": st.sampled_from(("none", "host")),
    "read": _some(*PATHS), "write": _some("{home}/a", "{home}/repo/sub", "/srv"), "hide": _some(*PATHS[:4]),
    "sockets": _some("docker", "ssh-agent", "/run/docker.sock"), "allow": _some("git-config"),
    "env": _some("MY_TOKEN", "AWS_*"), "accept": _some("fs.home", "guarded", "fs.credentials")}
PROFILES = st.fixed_dictionaries({}, optional={
    **LAYERS, "class": st.sampled_from(("operator", "agent", "mcp_server", "repository", "generated", "document")),
    "private": st.just(["~/a/b"]), "limits.processes": st.integers(1, 9),
    "extends": st.just(["hard"])})
CONFIGS = st.fixed_dictionaries({}, optional={
    **LAYERS, "profile": _some(*NAMES), "cache": st.sampled_from(CACHES), "limits.processes": st.integers(1, 9),
    "class.operator.tier": st.sampled_from(TIERS[1:]), "class.operator.net": st.sampled_from(("none", "host")),
    "class.repository.net": st.sampled_from(("none", "host"))})
REQUESTS = st.fixed_dictionaries(
    {"caller": st.sampled_from(("auto", "operator", "generated", "agent", "mcp_server", "document"))},
    optional={"tier": st.sampled_from(TIERS), "net": st.sampled_from(("none", "host")), "profile": _some(*NAMES),
              "read": _some(*PATHS), "write": _some("{home}/a", "/srv"), "sockets": _some("docker", "/run/docker.sock"),
              "allow": _some("git-config"), "accept": _some("fs.home", "guarded"), "pass_env": _some("X_TOKEN")})
COMMANDS = st.sampled_from((("tool",), ("npm", "ci"), ("./npm",), ("claude",), ("hard",)))


def _toml(table: dict[str, Any], world: World) -> str:
    def value(item: Any) -> str:
        if isinstance(item, list):
            return "[" + ", ".join(value(each) for each in item) + "]"
        return {True: "true", False: "false"}[item] if isinstance(item, bool) else repr(
            item.format(home=world.home) if isinstance(item, str) else item)
    return "".join(f"{key} = {value(item)}\n" for key, item in table.items())


def _at_most(less: Resolved, more: Resolved) -> list[str]:
    """Return in what ``less`` may do more; a box of tier off may do everything."""
    if more.tier == Tier.off:
        return []
    def inside(key: str) -> bool:
        return all(any(is_below(g.real, m.real) for m in (*getattr(more, key), *more.write_roots)) for g in getattr(less, key))
    def words(key: str) -> bool:
        return {item.value for item in getattr(less, key)} <= {item.value for item in getattr(more, key)}
    answers = {
        "tier": less.tier >= more.tier, "net": (less.net, more.net) != ("host", "none"),
        **{key: inside(key) for key in ("read", "write_roots", "devices")},
        **{key: words(key) for key in ("sockets", "allow", "accept")},
        "env": set(less.env_keep) <= set(more.env_keep), "set_env": set(less.set_env) <= set(more.set_env),
        "hide": {g.path for g in more.hide} <= {g.path for g in less.hide},
        "private": {g.path for g in more.private} <= {g.path for g in less.private},
        "limits": all(less.limits.get(key, most + 1) <= most for key, most in more.limits.items()),
        "caches": {c.path for c in less.caches} <= {c.path for c in more.caches},
        "config": {s for c in less.config for s in c.sources} <= {s for c in more.config for s in c.sources},
        "state": {s.path for s in less.state} <= {s.path for s in more.state},
        "cache": CACHES.index(less.cache) <= CACHES.index(more.cache),
        "on_persistence": (less.on_persistence, more.on_persistence) != ("report", "quarantine"),
        "inner_sandbox": set(less.inner_sandbox) <= set(more.inner_sandbox),
    }
    return [name for name, holds in answers.items() if not holds]


def _resolved(world: World, command: tuple[str, ...], options: dict[str, Any]) -> Resolved | None:
    try:
        return world.resolve(*command, **options)
    except Refused:
        return None
    except ConfigError as error:
        raise AssertionError(error) from error


@pytest.fixture(scope="module")
def one_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world").resolve())
    (made.etc / "policy.d").mkdir(mode=0o755)
    with pytest.MonkeyPatch.context() as patch:
        for name in OUR_VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(made.home))
        yield made


@settings(max_examples=int(os.environ.get("STOCKADE_POLICY_EXAMPLES", "100")))
@given(first=POLICIES, second=POLICIES, hard=PROFILES, loose=PROFILES, wide=PROFILES, config=CONFIGS, options=REQUESTS,
       command=COMMANDS)
def test_no_policy_file_raises_what_a_box_may_do(one_world: World, first: dict[str, Any], second: dict[str, Any],
                                                 hard: dict[str, Any], loose: dict[str, Any], wide: dict[str, Any],
                                                 config: dict[str, Any], options: dict[str, Any],
                                                 command: tuple[str, ...]) -> None:
    world = one_world
    hard.pop("extends", None)
    for name, table in (("hard", hard), ("loose", loose), ("wide", wide)):
        world.profile(name, _toml(table, world))
    world.config(_toml(config, world))
    options = {key: [word.format(home=world.home) for word in value] if isinstance(value, list) else value
               for key, value in options.items()}
    files = (world.etc / "policy.toml", world.etc / "policy.d/2.toml")
    for path in files:
        path.unlink(missing_ok=True)
    found = [_resolved(world, command, options)]
    for path, table in zip(files, (first, second), strict=True):
        path.write_text(_toml(table, world))
        path.chmod(0o644)
        found.append(_resolved(world, command, options))
        more, less = found[-2:]
        assert less is None or (more is not None and _at_most(less, more) == []), (more and more.values, less.values)


@given(a=POLICIES, b=POLICIES)
def test_the_intersection_of_two_policies_is_never_wider_than_either(a: dict[str, Any], b: dict[str, Any]) -> None:
    def made(table: dict[str, Any]) -> Policy:
        return Policy(**{key: Tier[value] if key == "min_tier" else frozenset(value) if isinstance(value, list) else value
                         for key, value in table.items()})
    both = intersect(made(a), made(b))
    for one in (made(a), made(b)):
        assert both.min_tier >= one.min_tier and (both.max_net, one.max_net) != ("host", "none")
        assert both.deny_unconfined >= one.deny_unconfined and both.require_audit >= one.require_audit
        for word in ("docker", "git-config", *PATHS):
            assert both.denies_grant(word) >= one.denies_grant(word)
        for word in ("guarded", "fs.home"):
            assert both.denies_accept(word) >= one.denies_accept(word)
        for word in NAMES:
            assert both.denies_profile(word) >= one.denies_profile(word)
