"""A warm start is as good as a cold one: whatever was read of policy and configuration counts when it changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stockade.paths import OUR_VARIABLES
from stockade.process import prepare as warm
from stockade.rules import looked, settings, trust
from stockade.rules.request import build_request
from stockade.rules.settings import load_settings, project_document
from stockade.rules.tiers import Tier
from unit.rules.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world whose files are old enough to be known by their times, and no memory of other tests."""
    made = World(tmp_path.resolve())
    for name in OUR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.setenv("STOCKADE_HOME", str(tmp_path / "state"))

    def load(request: Any, **_: Any) -> settings.Settings:
        return load_settings(request, system_dir=str(made.etc), root_uid=os.geteuid())

    monkeypatch.setattr(settings, "load_settings", load)
    monkeypatch.setattr(looked, "TICK_NS", -1 << 62)
    warm.forget()
    yield made
    warm.forget()


def prepared(world: World, **options: Any) -> warm.Prepared:
    return warm.prepare(build_request(["/bin/true"], env=world.env, **{"cwd": world.repo, "caller": "operator", **options}))


def linked(path: Path) -> Path:
    """Replace a directory by a link to it elsewhere; return the new place."""
    away = path.with_name(f"{path.name}-away")
    path.rename(away)
    path.symlink_to(away)
    return away


def files(world: World) -> dict[str, tuple[Path, str, dict[str, Any]]]:
    """File, content that makes the box strict (or strict by trust), options of the request."""
    strict = 'tier = "strict"\n'
    profile = f'schema = "profile.v1"\n{strict}'
    return {
        "system policy": (world.etc / "policy.toml", 'min_tier = "strict"\n', {}),
        "policy.d": (world.etc / "policy.d/1.toml", 'min_tier = "strict"\n', {}),
        "own policy": (world.conf / "policy.toml", 'min_tier = "strict"\n', {}),
        "system config": (world.etc / "config.toml", strict, {}), "own config": (world.conf / "config.toml", strict, {}),
        "project": (world.repo / ".stockade.toml", strict, {}),
        "system profile": (world.etc / "profiles/git.toml", profile, {"profile": ["git"]}),
        "own profile": (world.conf / "profiles/git.toml", profile, {"profile": ["git"]}),
        "profile by path": (world.home / "p.toml", profile, {"profile": [world.home / "p.toml"]}),
    }


KINDS = ("system policy", "policy.d", "own policy", "system config", "own config", "project", "system profile", "own profile",
         "profile by path")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    path.write_text(text)
    path.chmod(0o644)


def neutral(kind: str) -> str:
    return 'schema = "profile.v1"\n' if "profile" in kind else ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["written", "replaced", "behind a link", "behind a linked directory", "new", "removed"])
def test_a_change_of_any_file_counts_at_the_next_start(world: World, kind: str, how: str) -> None:
    path, text, options = files(world)[kind]
    if how != "new" or kind == "profile by path":
        put(path, text if how == "removed" else neutral(kind))
    if how == "behind a linked directory" and kind not in ("project", "profile by path"):
        linked(path.parent)
    elif how == "behind a link":
        path.rename(world.home / "real.toml")
        path.symlink_to(world.home / "real.toml")
    first = prepared(world, **options)
    assert prepared(world, **options) is first
    assert first.resolved.tier == (Tier.strict if how == "removed" else Tier.guarded)
    target = path.resolve()
    if how == "removed":
        if kind == "profile by path":
            put(target, neutral(kind))
        else:
            target.unlink()
    elif how == "replaced":
        put(target.with_name("new"), text)
        os.utime(target.with_name("new"), ns=(1, target.stat().st_mtime_ns))
        target.with_name("new").rename(target)
    else:
        put(target, text)
    assert prepared(world, **options).resolved.tier == (Tier.guarded if how == "removed" else Tier.strict)


@pytest.mark.parametrize("kind", KINDS[:6])
def test_a_directory_that_was_not_there_counts_when_it_is(world: World, kind: str) -> None:
    for directory in (world.etc, world.conf):
        directory.rename(directory.with_name("away"))
    first = prepared(world)
    assert prepared(world) is first
    path, text, _ = files(world)[kind]
    put(path, text)
    assert prepared(world).resolved.tier == Tier.strict


def test_a_link_that_is_turned_to_another_directory_counts(world: World) -> None:
    away = linked(world.conf)
    other = away.with_name("other")
    put(other / "policy.toml", 'min_tier = "strict"\n')
    assert prepared(world) is prepared(world)
    world.conf.unlink()
    world.conf.symlink_to(other)
    assert prepared(world).resolved.tier == Tier.strict


def test_a_repository_that_begins_above_the_working_directory_brings_its_file(world: World) -> None:
    plain = world.home / "plain"
    put(plain / ".stockade.toml", 'tier = "strict"\n')
    (plain / "sub").mkdir()
    assert prepared(world, cwd=plain / "sub").resolved.tier == Tier.guarded
    put(plain / ".git/HEAD", "ref: refs/heads/main\n")
    assert prepared(world, cwd=plain / "sub").resolved.tier == Tier.strict


def test_commits_of_a_repository_do_not_make_a_start_cold(world: World) -> None:
    seen = looked.Looked()
    assert seen.top_above(f"{world.repo}/sub") == str(world.repo)
    put(world.repo / ".git/HEAD.lock", "ref: refs/heads/other\n")
    (world.repo / ".git/HEAD.lock").rename(world.repo / ".git/HEAD")
    assert seen.still_true({})
    (world.repo / ".git/HEAD").unlink()
    assert not seen.still_true({})


def test_trust_that_is_given_or_taken_back_counts(world: World) -> None:
    world.project('tier = "standard"\n')
    document = project_document(str(world.repo))
    assert document is not None and prepared(world).resolved.tier == Tier.guarded
    state = prepared(world).resolved.state_home
    trust.trust(state, document)
    assert prepared(world).resolved.tier == Tier.standard
    trust.untrust(state, document.path)
    assert prepared(world).resolved.tier == Tier.guarded


@pytest.mark.parametrize("name", ["TOOL_DIR", "STOCKADE_HOME"])
def test_a_variable_that_a_file_or_the_state_home_is_named_by_counts(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {**world.env, "TOOL_DIR": f"{world.home}/a"}.items():
        monkeypatch.setenv(variable, value)
    for directory in ("a", "b"):
        (world.home / directory).mkdir()
    world.config('read = ["$TOOL_DIR"]\n')

    def start() -> warm.Prepared:
        return warm.prepare(build_request(["/bin/true"], cwd=world.repo, caller="operator"))
    first = start()
    assert start() is first
    monkeypatch.setenv(name, f"{world.home}/b")
    again = start().resolved
    assert again != first.resolved
    assert f"{world.home}/b" in ([grant.path for grant in again.read] if name == "TOOL_DIR" else [again.state_home.path])


def test_a_word_that_picks_a_profile_picks_it_for_a_warm_start_too(world: World) -> None:
    def start(*argv: str) -> warm.Prepared:
        return warm.prepare(build_request(list(argv), env=world.env, cwd=world.repo, caller="auto"))
    assert start("python3", "-m", "http.server").resolved.tier == Tier.guarded
    assert start("python3", "-m", "pip", "list").resolved.tier == Tier.strict
    assert start("python3", "-m", "http.server", "1").resolved.tier == Tier.guarded
    assert start("python3", "-c", "0").compiled is not None


# -- during the preparation --------------------------------------------------------------------------

@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", ["before it is opened", "after it was read", "while the plan is compiled"])
def test_a_change_during_the_preparation_counts_at_the_next_start(
        world: World, kind: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, text, options = files(world)[kind]
    put(path, neutral(kind))
    change = _once(lambda: put(path, text))
    if moment == "while the plan is compiled":
        from stockade.plan import compile as compiling
        _before(monkeypatch, compiling, "compile_plan", change)
    else:
        from stockade.rules import files as reading
        at = os.path.realpath(path)
        if moment == "before it is opened":
            # The name was looked at; the content that is read is the new one, so this start has it already.
            _before(monkeypatch, reading.os, "open", change, when=lambda name, *_: isinstance(name, str) and os.path.realpath(name) == at)
        else:
            _after(monkeypatch, reading, "_read_bounded", change, when=lambda name, *_: os.path.realpath(name) == at)
    first = prepared(world, **options)
    assert change.called
    assert first.resolved.tier == (Tier.strict if moment == "before it is opened" else Tier.guarded)
    assert prepared(world, **options).resolved.tier == Tier.strict


class _once:
    def __init__(self, function: Callable[[], None]) -> None:
        self.function, self.called = function, False

    def __call__(self) -> None:
        if not self.called:
            self.called = True
            self.function()


def _before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: _once, when: Callable[..., bool] = lambda *_: True) -> None:
    real = getattr(owner, name)

    def changed(*args: Any, **more: Any) -> Any:
        if not change.called and when(*args):
            change()
        return real(*args, **more)
    monkeypatch.setattr(owner, name, changed)


def _after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: _once, when: Callable[..., bool]) -> None:
    real = getattr(owner, name)

    def changed(*args: Any, **more: Any) -> Any:
        found = real(*args, **more)
        if when(*args):
            change()
        return found
    monkeypatch.setattr(owner, name, changed)


def test_a_file_that_was_written_just_now_is_not_known_by_its_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked, "TICK_NS", 3600 * 10**9)
    world.config('tier = "standard"\n')
    assert prepared(world) is not prepared(world)
    monkeypatch.setattr(looked, "time_ns", lambda: time.time_ns() + 7200 * 10**9)
    first = prepared(world)
    assert prepared(world) is first
