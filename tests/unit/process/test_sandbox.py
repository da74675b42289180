"""``Sandbox.narrow``: whatever is asked of it, the result is refused or is less, never more."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.errors import ConfigError, Error
from stockade.frozen import replace
from stockade.paths import is_below
from stockade.process.sandbox import Sandbox
from stockade.rules.request import build_request
from stockade.rules.resolve import resolve
from stockade.rules.resolved import Resolved

TIERS = ("auto", "off", "standard", "guarded", "strict")
CALLERS = ("operator", "repository", "generated", "mcp_server", "app", "agent")
DIRECTORIES = (".", "sub", "sub/deep", "other", "..", "link")


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("narrow").resolve()
    path = base / "repo"
    for name in (".git", "sub/deep", "other"):
        (path / name).mkdir(parents=True)
    (path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (path / "link").symlink_to(base)  # out of the repository
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(base / "home"))
        patch.setenv("STOCKADE_HOME", str(base / "state"))
        yield path


def resolved(sandbox: Sandbox, command: str = "tool") -> Resolved:
    return resolve(replace(build_request([command], **sandbox.options()), ceiling=sandbox._ceiling))


def assert_not_more(less: Resolved, more: Resolved) -> None:
    assert less.tier >= more.tier
    assert less.net == "none" or more.net == "host"
    assert all(any(is_below(g.real, root.real) for root in more.write_roots) for g in less.write_roots)
    seen = (*more.read, *more.write_roots)
    assert all(any(is_below(g.real, root.real) for root in seen) for g in less.read)
    assert {g.path for g in more.hide} <= {g.path for g in less.hide}
    assert all(less.limits.get(name, value + 1) <= value for name, value in more.limits.items())
    # off has every socket of the host.
    assert more.tier == 0 or {item.value for item in less.sockets} <= {item.value for item in more.sockets}
    assert more.tier == 0 or set(less.env_keep) <= set(more.env_keep)
    assert (less.allow, less.accept, less.devices) == (more.allow, more.accept, more.devices)


def paths(repo: Path, names: list[str] | None) -> list[str] | None:
    return None if names is None else [str(repo / name) for name in names]


LIMITS = st.dictionaries(st.sampled_from(["processes", "files"]), st.integers(1, 99), max_size=2)
LISTS = st.none() | st.lists(st.sampled_from(DIRECTORIES), max_size=2)
WIDE = st.fixed_dictionaries({
    "tier": st.sampled_from(TIERS), "caller": st.sampled_from(CALLERS), "net": st.sampled_from([None, "host", "none"]),
    "write": st.lists(st.sampled_from([".", "sub", "other"]), max_size=2),
    "read": st.lists(st.sampled_from([".", "sub", "other"]), max_size=2), "limits": LIMITS,
    "cwd": st.sampled_from([".", "sub"])})
LESS = st.fixed_dictionaries({}, optional={
    "tier": st.sampled_from(TIERS), "net": st.sampled_from(["host", "none"]), "write": LISTS, "read": LISTS,
    "hide": st.lists(st.sampled_from(DIRECTORIES[:4]), max_size=1), "limits": LIMITS})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wide=WIDE, steps=st.lists(LESS, min_size=1, max_size=2), command=st.sampled_from(["tool", "npm", "git"]))
def test_what_narrow_gives_is_never_more(repo: Path, wide: dict[str, Any], steps: list[dict[str, Any]],
                                         command: str) -> None:
    sandbox = Sandbox(**{**wide, "cwd": repo / wide["cwd"], "write": paths(repo, wide["write"]),
                         "read": paths(repo, wide["read"])})
    for step in steps:
        asked = {**step, **{key: paths(repo, step[key]) for key in ("write", "read", "hide") if key in step}}
        try:
            less = sandbox.narrow(**asked)
        except ConfigError as error:
            assert error.code in ("value_invalid", "unknown_option")
            continue
        assert_not_more(resolved(less, command), resolved(sandbox, command))
        if step.get("write") is not None:
            wanted = [os.path.realpath(path) for path in paths(repo, step["write"]) or ()]
            assert all(g.real in wanted for g in resolved(less, command).write_roots)
        sandbox = less


@pytest.mark.parametrize("lower", ["off", "standard", "guarded", "auto"])
def test_an_auto_sandbox_does_not_narrow_to_a_lower_tier(repo: Path, lower: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sandbox(cwd=repo).narrow(tier=lower)
    assert caught.value.code == "value_invalid"


def test_a_higher_tier_keeps_the_network_that_was_none(repo: Path) -> None:
    less = Sandbox(cwd=repo, caller="operator", net="none").narrow(tier="strict")
    assert (str(resolved(less).tier), resolved(less).net) == ("strict", "none")


def test_off_narrows_to_a_box(repo: Path) -> None:
    assert str(resolved(Sandbox(cwd=repo, tier="off").narrow(tier="standard")).tier) == "standard"
    with pytest.raises(ConfigError):
        Sandbox(cwd=repo, tier="off").narrow(tier="off")


def test_write_replaces_the_default_root_of_the_class(repo: Path) -> None:
    wide = Sandbox(cwd=repo, caller="repository")
    assert [g.real for g in resolved(wide).write_roots] == [str(repo)]
    part = resolved(wide.narrow(write=[repo / "sub"]))
    assert [g.real for g in part.write_roots] == [str(repo / "sub")]
    assert [g.real for g in part.read] == [str(repo)] and part.cwd == str(repo)
    assert resolved(wide.narrow(write=[])).write_roots == ()


def test_a_link_that_leads_out_is_no_narrower_root(repo: Path) -> None:
    with pytest.raises(ConfigError):
        Sandbox(cwd=repo, caller="repository").narrow(write=[repo / "link"])


def test_a_root_that_becomes_a_link_later_is_not_granted(repo: Path) -> None:
    (repo / "sub/late").mkdir()
    less = Sandbox(cwd=repo, caller="repository").narrow(write=[repo / "sub/late"])
    (repo / "sub/late").rmdir()
    (repo / "sub/late").symlink_to("/etc")
    assert resolved(less).write_roots == ()


@pytest.mark.parametrize("from_file", [False, True])
def test_a_limit_is_never_raised_wherever_it_came_from(repo: Path, from_file: bool,
                                                       monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if from_file:
        (tmp_path / "stockade").mkdir()
        (tmp_path / "stockade/config.toml").write_text("[limits]\nprocesses = 20\n")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    wide = Sandbox(cwd=repo, **({} if from_file else {"limits": {"processes": 20}}))
    with pytest.raises(ConfigError):
        wide.narrow(limits={"processes": 21})
    less = wide.narrow(limits={"processes": 10, "files": 64}).narrow(limits={"files": 32})
    assert resolved(less).limits == {"processes": 10, "files": 32}


def test_narrowed_sandboxes_are_compared_hashed_and_pickled_with_their_ceiling(repo: Path) -> None:
    wide = Sandbox(cwd=repo)
    one, two = wide.narrow(net="none"), wide.narrow(net="none")
    assert one == two and hash(one) == hash(two) and one != wide
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    assert "narrow" in repr(one)


def test_what_cannot_be_narrowed_is_a_typed_error(repo: Path) -> None:
    for options in ({"accept": ["standard"]}, {"sockets": []}, {"writes": []}):
        with pytest.raises(Error) as caught:
            Sandbox(cwd=repo).narrow(**options)
        assert caught.value.code == "unknown_option"
