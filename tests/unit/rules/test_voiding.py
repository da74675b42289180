"""What a grant gives away is the same whichever way it is spelt."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stockade.rules.load import load_list
from stockade.rules.promises import PROMISE_IDS
from stockade.rules.voiding import expand, path_matches, socket_names, waived_by

HOME = "/home/u"
ENV = {"XDG_RUNTIME_DIR": "/run/user/1000"}


def waived_promises(kind: str, value: str, home: str, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    return frozenset(promise for rule in waived_by(kind, value, home, environ) for promise in rule.waives)


@pytest.mark.parametrize("value", [
    "docker", "/run/docker.sock", "/var/run/docker.sock", "/run/user/1000/docker.sock", "/home/u/.docker/run/docker.sock",
    "/run/./docker.sock",
])
def test_an_engine_socket_waives_the_same_by_name_and_by_path(value: str) -> None:
    assert waived_promises("socket", value, HOME, ENV) == set(PROMISE_IDS) - {"env.injection"}


def test_a_runtime_socket_is_known_without_its_variable() -> None:
    assert "dbus-session" in socket_names("/run/user/1000/bus", HOME, {})


@pytest.mark.parametrize("value", ["tmux", "/tmp/tmux-1000/default", "x11", "/tmp/.X11-unix/X0", "dbus-session",
                                   "/run/user/1000/bus", "emacs", "/tmp/emacs1000/server", "nix"])
def test_sockets_that_run_code_outside_waive_the_file_promises(value: str) -> None:
    assert {"fs.write_roots", "proc.no_control", "net.policy"} <= waived_promises("socket", value, HOME, ENV)


@pytest.mark.parametrize("value", ["ssh-agent", "gpg-agent", "/tmp/ssh-abc/agent.1", "/srv/app/own.sock"])
def test_sockets_that_only_sign_or_are_the_projects_own_waive_nothing(value: str) -> None:
    assert waived_by("socket", value, HOME, ENV) == ()


@pytest.mark.parametrize("entry", [e for e in load_list("sockets") if e.power == "X"], ids=lambda e: e.id)
def test_every_socket_that_runs_code_is_in_the_voiding_list(entry: object) -> None:
    assert waived_promises("socket", entry.id, HOME), entry.id  # type: ignore[attr-defined]


def test_a_rule_about_sockets_names_sockets_that_exist() -> None:
    known = {e.id for e in load_list("sockets")}
    rules = [rule for rule in load_list("voiding") if rule.klass == "socket"]
    assert rules
    for rule in rules:
        assert rule.match and set(rule.match) <= known, rule.id


@pytest.mark.parametrize(("path", "waived"), [
    ("/home/u", {"fs.own_state", "fs.home", "fs.credentials", "fs.persistence"}),
    ("/home", {"fs.home"}), ("/", {"fs.home"}), ("/home/u/.config", {"fs.persistence"}),
    ("/home/u/.bashrc", {"fs.persistence"}), ("/home/u/.config/systemd/user", {"fs.persistence"}),
    ("/home/u/.local/bin", {"fs.persistence"}), ("/etc/cron.d", {"fs.persistence"}),
])
def test_writing_start_files_or_above_them_waives(path: str, waived: set[str]) -> None:
    assert waived <= waived_promises("write", path, HOME)


@pytest.mark.parametrize("path", ["/home/u/work", "/home/u/.claude", "/home/u/.cache/pip", "/home/u/.npm", "/srv/data",
                                  "/home/user2/work", "/home/u/.bashrc.d/x"])
def test_writing_a_project_or_a_cache_waives_nothing(path: str) -> None:
    assert waived_promises("write", path, HOME) == frozenset()


@pytest.mark.parametrize(("path", "waived"), [
    ("/home/u", {"fs.home"}), ("/home/u/.ssh", {"fs.credentials"}), ("/home/u/.ssh/id_ed25519", {"fs.credentials"}),
    *((f"/home/u/.aws{name}", {"fs.credentials"}) for name in (
        "", "/credentials", "/config", "/s3", "/cli/cache/a.json", "/sso", "/sso/x", "/sso/cache",
        "/sso/cache/0a1b.json", "/sso/cache/botocore-client-id-x.json")),
    ("/home/u/.npmrc", {"fs.credentials"}),
    ("/home/u/.config", {"fs.credentials"}), ("/proc", {"proc.invisible"}),
])
def test_reading_a_store_waives(path: str, waived: set[str]) -> None:
    assert waived <= waived_promises("read", path, HOME)


@pytest.mark.parametrize("path", ["/home/u/.ssh/known_hosts", "/home/u/.ssh/config", "/home/u/.gitconfig",
                                  "/home/u/.config/git", "/usr/share", "/opt/tool"])
def test_reading_configuration_waives_nothing(path: str) -> None:
    assert waived_promises("read", path, HOME) == frozenset()


@pytest.mark.parametrize("name", ["LD_PRELOAD", "NODE_OPTIONS", "GIT_SSH_COMMAND", "BASH_ENV"])
def test_loader_variables_waive_injection(name: str) -> None:
    assert waived_promises("env", name, HOME) == {"env.injection"}


def test_ordinary_variables_waive_nothing() -> None:
    assert waived_by("env", "NPM_TOKEN", HOME) == () == waived_by("env", "EDITOR", HOME)


@pytest.mark.parametrize(("device", "promise"), [
    ("/dev/uinput", "tty.injection"), ("/dev/sda1", "fs.write_roots"), ("/dev/kvm", "kernel.surface"),
    ("/dev/tty1", "tty.injection"), ("/dev/net/tun", "kernel.surface")])
def test_devices_waive_what_they_open(device: str, promise: str) -> None:
    assert promise in waived_promises("device", device, HOME)


def test_a_wildcard_stays_inside_one_component() -> None:
    assert path_matches("/tmp/*/d.sock", "/tmp/a/d.sock", HOME, {})
    assert not path_matches("/tmp/*/d.sock", "/tmp/a/b/d.sock", HOME, {})
    assert path_matches("~/x/**", "/home/u/x/a/b", HOME, {}) and path_matches("~/x/**", "/home/u/x", HOME, {})
    assert not path_matches("~/x/**", "/home/u/xy", HOME, {})
    assert not path_matches("/run/.s", "/run/xs", HOME, {})


def test_a_variable_that_is_no_path_names_no_place() -> None:
    assert expand("$TMUX_TMPDIR/x", HOME, {"TMUX_TMPDIR": "relative"}) is None
    assert expand("$NOT_SET/x", HOME, {}) is None
    assert expand("$TMPDIR/x", HOME, {"TMPDIR": "/scratch/"}) == "/scratch/x"


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="kind"):
        waived_by("sockets", "docker", HOME)
