"""Resolution: every value from its right place, and nothing that widens by accident."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from stockade.errors import ConfigError, Refused
from stockade.rules import trust
from stockade.rules.load import load_list, profile_data, profile_names
from stockade.rules.match import matches
from stockade.rules.settings import project_document
from stockade.rules.tiers import CALLERS, Caller, Tier
from unit.rules.world import World


@pytest.mark.parametrize("caller", [str(c) for c in CALLERS if c != Caller.FIRST_PARTY])
def test_auto_is_the_row_of_the_class(world: World, caller: str) -> None:
    got = world.resolve(caller=caller)
    row = next(row for name, row in CALLERS.items() if name == caller)
    assert (got.tier, got.net) == (row.tier, row.net)
    assert got.values["tier"].origin == got.values["net"].origin == f"class {caller}"


@pytest.mark.parametrize(("tier", "net"), [("strict", "none"), ("guarded", "host"), ("standard", "host"), ("off", "host")])
def test_a_named_tier_brings_its_own_network(world: World, tier: str, net: str) -> None:
    got = world.resolve(tier=tier, caller="mcp_server")
    assert (str(got.tier), got.net) == (tier, net)
    assert got.values["net"].origin == f"tier {tier}"


def test_an_explicit_network_wins_then_the_profile_then_the_tier(world: World) -> None:
    world.profile("p", 'net = "host"\n')
    assert world.resolve(tier="strict", net="host").net == "host"
    assert world.resolve(tier="strict", profile="p").net == "host"
    assert world.resolve(tier="strict", profile="p", net="none").net == "none"


def test_npm_at_strict_gets_the_network_of_its_profile(world: World) -> None:
    got = world.resolve("npm", "ci", tier="strict", caller="auto")
    assert (got.caller, got.net, got.profiles[-1]) == ("repository", "host", "npm")
    assert got.values["profile"].origin == "argv[0]"
    assert got.caches and all(cache.path.startswith(str(world.home)) for cache in got.caches)


def test_values_come_from_the_first_place_that_has_one(world: World) -> None:
    places = ["argument", "profile", "project", "config", "system"]
    values = dict(zip(places, ("ephemeral", "-", "off", "keep", "ephemeral"), strict=True))
    for chosen in itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(6)):
        for path in (world.conf / "config.toml", world.repo / ".stockade.toml", world.etc / "config.toml"):
            path.unlink(missing_ok=True)
        options: dict[str, Any] = {}
        for place in chosen:
            text = f'cache = "{values[place]}"\ntmp = "disk"\n'
            if place == "argument":
                options["cache"] = values[place]
            elif place == "project":
                world.project(text)
                trust.trust(world.state, _document(world))
            elif place == "config":
                world.config(text)
            elif place == "system" and os.geteuid() == 0:
                (world.etc / "config.toml").write_text(text)
        first = next((p for p in places if p in chosen and p != "profile" and (p != "system" or os.geteuid() == 0)), None)
        assert world.resolve(**options).cache == (values[first] if first else "keep"), chosen


def _document(world: World) -> Any:
    document = project_document(str(world.repo))
    assert document is not None
    return document


def test_a_named_profile_beats_files_and_a_picked_one_does_not(world: World) -> None:
    world.config('net = "none"\n')
    assert world.resolve("npm", "ci", caller="auto").net == "none"
    assert world.resolve("npm", "ci", caller="auto", profile="npm").net == "host"


@pytest.mark.parametrize("argv", [("./npm", "ci"), (".venv/bin/pip", "install", "."), ("python3", "-m", "pip", "install", "."),
                                  ("venv/bin/python3.12", "-m", "pytest"), ("./gradlew", "build")])
def test_a_build_tool_named_by_a_word_of_the_repository_gets_the_tools_tier_and_no_more(world: World, argv: tuple[str, ...]) -> None:
    got = world.resolve(*argv, caller="auto")
    assert (got.tier, got.values["caller"].value) == (Tier.strict, "repository")
    # Where more was asked for than the operator's own box has, its word gives it nothing.
    assert world.resolve(*argv, caller="generated").net == "none"
    assert world.resolve(*argv, caller="auto", tier="strict").net == "none"
    assert world.resolve(*argv, caller="auto", net="none").profiles == ()
    world.config('[class.operator]\nnet = "none"\n')
    assert world.resolve(*argv, caller="auto").net == "none"


@pytest.mark.parametrize("argv", [("./claude",), ("python3", "-m", "aider"), ("python3", "pip"), ("python3", "-m", "http.server")])
def test_a_word_of_the_repository_picks_no_profile_that_grants_more(world: World, argv: tuple[str, ...]) -> None:
    assert world.resolve(*argv, caller="auto").profiles == ()


@pytest.mark.parametrize("entry", ["{repo}/node_modules/.bin", "node_modules/.bin", ""])
def test_a_bare_name_that_path_finds_in_the_repository_is_the_repositorys_word(world: World, entry: str) -> None:
    place = world.repo / "sub" if entry == "" else world.repo / "sub/node_modules/.bin" if not entry.startswith("{") else world.repo / "node_modules/.bin"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("claude", "npm"):
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
    world.env["PATH"] = f"{entry.format(repo=world.repo)}:/usr/bin:/bin"
    assert world.resolve("claude", caller="auto").profiles == ()
    assert world.resolve("npm", "ci", caller="auto").tier == Tier.strict
    assert world.resolve("npm", "ci", caller="generated").net == "none"
    world.env["PATH"] = f"/usr/bin:/bin:{world.home}/bin"
    assert "claude" in world.resolve("claude", caller="auto").profiles


def test_a_link_of_the_repository_to_a_program_outside_is_the_repositorys_word(world: World) -> None:
    (world.repo / "bin").mkdir()
    (world.repo / "bin/claude").symlink_to("/bin/sh")
    assert world.resolve(f"{world.repo}/bin/claude", caller="auto").profiles == ()


def test_a_users_own_profile_is_not_picked_by_a_word_of_the_repository(world: World) -> None:
    world.profile("npm", 'extends = ["npm"]\nenv = ["NPM_TOKEN"]\nclass = "repository"\n')
    assert "npm" in world.resolve("npm", "ci", caller="auto").profiles
    assert world.resolve("./npm", "ci", caller="auto").profiles == ()


def test_profiles_of_build_tools_pass_no_secret() -> None:
    """What picks them by a word of the repository relies on it."""
    secret = [entry.pattern for entry in load_list("env-secrets")]
    for name in profile_names():
        data = profile_data(name)
        if data.get("class") == "repository":
            passed = [var for var in data.get("env", ()) if any(matches(var.upper(), pattern.upper()) for pattern in secret)]
            assert (name, passed, data.get("write"), data.get("sockets"), data.get("allow")) == (name, [], None, None, None)


def test_configuration_changes_a_row_and_says_so(world: World) -> None:
    world.config('[class.operator]\ntier = "strict"\n')
    got = world.resolve()
    assert got.tier == Tier.strict and got.net == "host"
    assert "config.toml class operator" in got.values["tier"].origin
    assert world.resolve(caller="agent").tier == Tier.guarded


@pytest.mark.parametrize("text", ["tierr = 'strict'", "[class.robot]\ntier='strict'", "[class.agent]\nteir='strict'",
                                  "tier = 3", "profile = 3", "net = ['x.example']", "x = ["])
def test_an_invalid_configuration_is_an_error_with_its_file(world: World, text: str) -> None:
    world.config(text)
    with pytest.raises(ConfigError) as caught:
        world.resolve()
    assert caught.value.code == "config_invalid" and "config.toml" in caught.value.message


# -- project file ---------------------------------------------------------------------------------

WIDE = ('tier = "standard"\nnet = "host"\nread = ["/srv"]\nwrite = ["/srv"]\nenv = ["AWS_SECRET_ACCESS_KEY"]\n'
        'accept = ["fs.home"]\nprofile = ["npm"]\nallow = ["git-config"]\n[set_env]\nLD_PRELOAD = "/x.so"\n'
        '[limits]\nprocesses = 9999\n')


def test_an_untrusted_project_file_cannot_widen(world: World) -> None:
    plain = world.resolve(tier="auto", caller="repository", limits={"processes": 10})
    world.project(WIDE)
    got = world.resolve(tier="auto", caller="repository", limits={"processes": 10})
    for name in ("tier", "net", "read", "write_roots", "env_keep", "accept", "profiles", "allow", "set_env",
                 "profile_set_env", "limits"):
        assert getattr(got, name) == getattr(plain, name), name
    assert sum("before stockade trust" in note for note in got.notes) >= 8


def test_an_untrusted_project_file_narrows_at_once(world: World) -> None:
    world.project('tier = "strict"\nnet = "none"\ncache = "off"\nhide = ["./secret", "~/notes"]\n[limits]\nprocesses = 5\n')
    got = world.resolve()
    assert (got.tier, got.net, got.cache, got.limits) == (Tier.strict, "none", "off", {"processes": 5})
    assert {g.path for g in got.hide} == {f"{world.repo}/secret", f"{world.home}/notes"}
    assert got.notes == ()


def test_trust_is_given_to_a_content_and_ends_with_it(world: World) -> None:
    world.project(WIDE)
    trust.trust(world.state, _document(world))
    got = world.resolve(caller="repository")
    assert got.tier == Tier.standard and "/srv" in [g.path for g in got.write_roots]
    assert ("LD_PRELOAD", "/x.so") in got.set_env and "AWS_SECRET_ACCESS_KEY" in got.env_keep
    assert trust.trusted_text(world.state, f"{world.repo}/.stockade.toml") == WIDE
    world.project(WIDE + "# changed\n")
    assert world.resolve(caller="repository").tier == Tier.strict
    world.project(WIDE)
    assert trust.untrust(world.state, f"{world.repo}/.stockade.toml")
    assert world.resolve(caller="repository").tier == Tier.strict


def test_a_broken_trust_file_is_an_error_not_trust(world: World) -> None:
    world.project(WIDE)
    Path(world.state.trust_file).write_text("{}")
    with pytest.raises(ConfigError) as caught:
        world.resolve()
    assert caught.value.code == "config_invalid"


def test_a_project_file_that_does_not_lie_at_the_top_is_named_as_not_read(world: World) -> None:
    below = world.repo / "below"
    below.mkdir()
    (below / ".stockade.toml").write_text('tier = "strict"\n')
    found = world.resolve(cwd=str(below))
    assert str(found.tier) != "strict" and any("is not read" in note and str(below) in note for note in found.notes), found.notes
    assert not any("is not read" in note for note in world.resolve(cwd=str(world.repo)).notes)


def test_an_argument_beats_a_narrowing_project_file(world: World) -> None:
    world.project('tier = "strict"\n')
    assert world.resolve(tier="standard").tier == Tier.standard


def test_a_project_file_cannot_name_a_profile_by_path(world: World) -> None:
    world.project('profile = ["./evil.toml"]\n')
    with pytest.raises(ConfigError):
        world.resolve()


# -- policy ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("tier", ["off", "standard", "guarded", "strict"])
@pytest.mark.parametrize("floor", ["off", "standard", "guarded", "strict"])
def test_the_floor_beats_every_tier_below_it(world: World, tier: str, floor: str) -> None:
    world.policy(f'min_tier = "{floor}"\n')
    got = world.resolve(tier=tier)
    assert got.tier == max(Tier[tier], Tier[floor])
    if Tier[tier] < Tier[floor]:
        assert "policy" in got.values["tier"].origin and any("was raised" in note for note in got.notes)


def test_the_floor_beats_accept(world: World) -> None:
    world.policy('min_tier = "guarded"\n')
    got = world.resolve(tier="strict", accept=["fs.credentials", "fs.home", "standard", "guarded"])
    assert [item.value for item in got.accept] == ["fs.home", "guarded"]


def test_denied_accept_has_no_effect(world: World) -> None:
    world.policy('deny_accept = ["*"]\n')
    assert world.resolve(accept=["fs.home"]).accept == ()


def test_the_network_ceiling_beats_an_argument(world: World) -> None:
    world.policy('max_net = "none"\n')
    got = world.resolve(net="host")
    assert got.net == "none" and any("became none" in note for note in got.notes)


def test_a_denied_grant_refuses_when_named_and_is_left_out_when_it_is_a_default(world: World) -> None:
    world.policy('deny_grants = ["ssh-agent", "/srv"]\n')
    assert "ssh-agent" not in [s.value for s in world.resolve().sockets]
    for options in ({"sockets": ["ssh-agent"]}, {"read": ["/srv/x"]}, {"write": ["/srv"]}):
        with pytest.raises(Refused) as caught:
            world.resolve(**options)
        assert caught.value.code == "policy_denied"


def test_a_denied_workspace_is_not_granted_by_default(world: World) -> None:
    world.policy(f'deny_grants = ["{world.repo}"]\n')
    got = world.resolve()
    assert got.write_roots == () and got.cwd is None and got.notes


def test_profiles_outside_the_allow_list_are_refused_or_not_picked(world: World) -> None:
    world.policy('allow_profiles = ["pip"]\n')
    with pytest.raises(Refused):
        world.resolve(profile="npm")
    assert world.resolve("npm", "ci").profiles == ()


def test_off_is_refused_where_policy_denies_unconfined(world: World) -> None:
    world.policy("deny_unconfined = true\n")
    with pytest.raises(Refused) as caught:
        world.resolve(tier="off")
    assert caught.value.code == "policy_denied"


def test_the_state_home_of_policy_is_the_only_one(world: World, tmp_path: Path) -> None:
    world.policy(f'state_home = "{tmp_path}/audit-home"\n')
    assert str(world.resolve().state_home.path) == f"{tmp_path.resolve()}/audit-home"
    (tmp_path / "file").write_text("")
    world.policy(f'state_home = "{tmp_path}/file/x"\n')
    with pytest.raises(ConfigError) as caught:
        world.resolve()
    assert caught.value.code == "state_home_invalid"


# -- write roots and cwd --------------------------------------------------------------------------

@pytest.mark.parametrize("caller", ["operator", "agent", "repository"])
def test_the_default_write_root_is_the_git_top_level_else_cwd(world: World, caller: str) -> None:
    got = world.resolve(caller=caller)
    assert [g.path for g in got.write_roots] == [str(world.repo)] and got.cwd == f"{world.repo}/sub"
    (world.home / "plain").mkdir()
    got = world.resolve(caller=caller, cwd=world.home / "plain")
    assert [g.path for g in got.write_roots] == [f"{world.home}/plain"] == [got.cwd]


@pytest.mark.parametrize("caller", ["mcp_server", "generated", "document", "app"])
def test_hostile_classes_get_nothing_by_default(world: World, caller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.repo)
    got = world.resolve(caller=caller, cwd=None)
    assert got.write_roots == () and got.cwd is None and got.read == ()
    named = world.resolve(caller=caller, cwd=world.repo)
    assert named.write_roots == () and named.cwd == str(world.repo) and [g.path for g in named.read] == [str(world.repo)]
    written = world.resolve(caller=caller, cwd=None, write=[world.repo])
    assert written.cwd == str(world.repo) and [g.path for g in written.write_roots] == [str(world.repo)]


@pytest.mark.parametrize("place", ["home", "/", "above", "state", "above_state", "/tmp", "/etc", "/usr/bin"])
def test_standing_in_a_wide_place_grants_nothing_and_says_so(world: World, place: str) -> None:
    cwd = {"home": world.home, "above": world.home.parent, "state": f"{world.state.path}/plans",
           "above_state": world.home / ".local"}.get(place, Path(place))
    got = world.resolve(cwd=cwd)
    assert got.write_roots == () and got.cwd is None
    assert len(got.notes) == 1 and "--cwd" in got.notes[0]


@pytest.mark.parametrize("place", ["home", "/", "above", "state", "above_state", "conf", "link", "/proc/self", "/dev"])
def test_a_wide_write_root_is_refused_when_it_is_named(world: World, place: str) -> None:
    (world.repo / "link").symlink_to(world.home)
    path = {"home": world.home, "above": world.home.parent, "state": world.state.path,
            "above_state": world.home / ".local", "conf": world.conf, "link": world.repo / "link"}.get(place, Path(place))
    with pytest.raises(Refused) as caught:
        world.resolve(write=[path])
    assert caught.value.code == "write_root_refused"
    world.profile("p", f'write = ["{path}"]\n')
    with pytest.raises(Refused):
        world.resolve(profile="p")


def test_a_home_under_git_is_no_write_root_for_what_is_in_it(world: World) -> None:
    (world.home / ".git").mkdir()
    (world.home / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (world.home / "notes").mkdir()
    assert [g.path for g in world.resolve(cwd=world.home / "notes").write_roots] == [f"{world.home}/notes"]


def test_a_home_that_is_a_link_is_known_by_both_names(world: World) -> None:
    (world.home.parent / "alias").symlink_to(world.home)
    world.env["HOME"] = str(world.home.parent / "alias")
    for cwd in (world.home, world.home.parent / "alias"):
        assert world.resolve(cwd=cwd).cwd is None
    got = world.resolve(read=["~/x"])
    assert got.home == str(world.home) and got.read[0].path == f"{world.home}/x"


# -- lists ----------------------------------------------------------------------------------------

def test_hide_beats_every_grant_by_either_name(world: World) -> None:
    (world.repo / "link").symlink_to(world.repo / "sub")
    world.profile("p", 'read = ["~/secret/a", "~/open"]\n')
    got = world.resolve(profile="p", hide=["~/secret", world.repo / "sub"], read=[world.repo / "link"],
                        write=[world.repo / "sub"])
    assert [g.path for g in got.read] == [f"{world.home}/open"]
    assert [g.path for g in got.write_roots] == [str(world.repo)]


def test_a_hidden_working_directory_is_left(world: World) -> None:
    got = world.resolve(hide=[world.repo])
    assert got.cwd is None and got.write_roots == () and got.notes


def test_lists_of_all_places_join_with_their_origins(world: World) -> None:
    world.profile("p", 'read = ["~/a", {path = "$NOT_SET/x"}, {path = "./b", optional = true}]\n')
    world.config('read = ["~/a", "~/c"]\n')
    got = world.resolve(profile="p", read=["~/d"])
    assert [(g.path.replace(str(world.home), "~"), g.origin.split("/")[0].strip(), g.optional) for g in got.read] == [
        ("~/d", "argument", False), ("~/a", "profile p", False), ("~/repo/b", "profile p", True), ("~/c", "file", False)]


def test_a_variable_moves_a_grant_but_never_to_the_home(world: World) -> None:
    world.profile("p", 'read = ["$TOOL_DIR/x"]\ncaches = [{name = "c", path = "~/.c", env = "TOOL_CACHE"}]\n')
    world.env |= {"TOOL_DIR": "/opt/tool", "TOOL_CACHE": str(world.home / "elsewhere")}
    got = world.resolve(profile="p")
    assert [g.path for g in got.read] == ["/opt/tool/x"]
    assert got.caches[0].path == f"{world.home}/elsewhere"
    for value in (str(world.home), "/", str(world.home.parent), str(world.state.path)):
        world.env["TOOL_CACHE"] = value
        with pytest.raises(ConfigError) as caught:
            world.resolve(profile="p")
        assert caught.value.code == "path_invalid"


def test_the_agent_socket_and_its_variable_come_with_the_tier(world: World) -> None:
    for tier, granted in (("standard", True), ("guarded", True), ("strict", False)):
        got = world.resolve(tier=tier)
        assert ("ssh-agent" in [s.value for s in got.sockets]) is granted
        assert ("SSH_AUTH_SOCK" in got.env_keep) is granted
    named = world.resolve(tier="strict", sockets=["ssh-agent"])
    assert "SSH_AUTH_SOCK" in named.env_keep


def test_values_of_files_go_by_descriptor_and_only_reviewed_ones_into_the_plan(world: World) -> None:
    world.profile("p", '[set_env]\nA = "user"\n')
    world.config('[set_env]\nA = "config"\nB = "config"\n')
    got = world.resolve(profile="p", set_env={"C": "hunter2"})
    assert dict(got.set_env) == {"A": "user", "B": "config", "C": "hunter2"}
    assert not {"A", "B", "C"} & {name for name, _ in got.profile_set_env}
    assert "hunter2" not in repr(got)


def test_only_a_built_in_profile_may_set_a_loader_variable_without_a_grant(world: World) -> None:
    assert dict(world.resolve(profile="git-untrusted").profile_set_env)["GIT_ASKPASS"] == "/bin/false"
    assert "GIT_ASKPASS" not in world.resolve(profile="git-untrusted").env_keep
    world.profile("p", '[set_env]\nGIT_ASKPASS = "/bin/false"\n')
    assert "GIT_ASKPASS" in world.resolve(profile="p").env_keep


# -- class ----------------------------------------------------------------------------------------

def test_a_profile_class_applies_to_defaults_and_never_loosens(world: World) -> None:
    world.profile("loose", 'class = "operator"\n')
    world.profile("build", 'class = "repository"\n')
    assert world.resolve(caller="auto").caller == "operator"
    assert world.resolve(caller="auto", profile="build").caller == "repository"
    assert world.resolve(caller="generated", profile="build").caller == "repository"
    assert world.resolve(caller="generated", profile="loose").caller == "generated"
    assert world.resolve(caller="mcp_server", profile="build").caller == "mcp_server"


def test_the_documented_sandbox_for_npm_can_write_its_repository(world: World) -> None:
    got = world.resolve("npm", "ci", tier="strict", profile=["npm"], cwd=world.repo, caller="generated")
    assert [g.path for g in got.write_roots] == [str(world.repo)] and got.net == "host"


@pytest.mark.parametrize("argv0", ["./npm", "{repo}/npm", "sub/npm", "../npm"])
def test_a_program_of_the_workspace_called_npm_gets_nothing_by_its_name(world: World, argv0: str) -> None:
    got = world.resolve(argv0.format(repo=world.repo), caller="generated")
    assert got.profiles == () and got.net == "none"


def test_what_the_request_left_open_is_built_in(world: World) -> None:
    got = world.resolve()
    assert (got.cache, got.tmp, got.on_persistence) == ("keep", "memory", "report")
    assert got.values["tmp"].origin == "built in"


@pytest.mark.parametrize(("caller", "mode"), [("operator", "report"), ("agent", "report"), ("app", "report"), ("mcp_server", "report"),
                                               ("repository", "quarantine"), ("generated", "quarantine"), ("document", "quarantine")])
def test_what_others_chose_to_run_has_its_new_persistence_points_moved_away(world: World, caller: str, mode: str) -> None:
    got = world.resolve(caller=caller)
    assert (got.on_persistence, got.values["on_persistence"].origin) == (mode, "built in" if mode == "report" else f"class {caller}")
    assert world.resolve(caller=caller, on_persistence="fail").on_persistence == "fail"


@pytest.mark.parametrize(("caller", "project", "mode"), [("operator", "fail", "fail"), ("operator", "quarantine", "quarantine"),
                                                         ("repository", "fail", "quarantine"), ("repository", "report", "quarantine")])
def test_an_untrusted_project_may_only_ask_for_more_than_a_report(world: World, caller: str, project: str, mode: str) -> None:
    (world.repo / ".stockade.toml").write_text(f'on_persistence = "{project}"\n')
    assert world.resolve(caller=caller).on_persistence == mode


def test_resolving_creates_nothing_on_disk(world: World) -> None:
    before = sorted(str(p) for p in world.home.rglob("*"))
    world.resolve("npm", "ci")
    assert sorted(str(p) for p in world.home.rglob("*")) == before
