"""The environment filter keeps and drops exactly what its policy says."""

from __future__ import annotations

import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.environment import TRACING, EnvPolicy, TokenShape, apply, compile_env, token_shapes
from stockade.rules.load import load_list
from stockade.rules.tiers import Tier

SHAPE = TokenShape(name="github", prefix="ghp_", charset="A-Za-z0-9_", min_len=36)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0="), min_size=1, max_size=12)
VALUE = st.text(st.characters(exclude_characters="\0"), max_size=40)


def resolved(**fields: Any) -> Any:
    base = {"tier": Tier.standard, "env_keep": (), "profile_set_env": ()}
    return SimpleNamespace(**{**base, **fields})


def deny(**fields: Any) -> EnvPolicy:
    return EnvPolicy(mode="deny", **fields)


def glob(pattern: str, name: str) -> bool:
    """Wildcard matching by definition, for comparison."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return glob(pattern[1:], name) or (bool(name) and glob(pattern, name[1:]))
    return bool(name) and pattern[0] == name[0] and glob(pattern[1:], name[1:])


@given(pattern=st.text("aAb*", min_size=1, max_size=6), name=st.text("aAb", min_size=1, max_size=8))
def test_patterns_mean_the_same_as_their_definition(pattern: str, name: str) -> None:
    kept = apply(EnvPolicy(mode="allow", keep=(pattern,)), {name: "v"}).kept
    assert (name in kept) == glob(pattern, name)
    dropped = apply(deny(drop=(pattern,)), {name: "v"}).dropped
    assert (name in dropped) == glob(pattern.lower(), name.lower())


@given(environ=st.dictionaries(NAME, VALUE, max_size=20), keep=st.lists(NAME, max_size=3), drop=st.lists(NAME, max_size=3))
def test_every_variable_is_kept_or_dropped_with_a_reason(environ: dict[str, str], keep: list[str], drop: list[str]) -> None:
    result = apply(deny(keep=tuple(keep), drop=tuple(drop), drop_values=(SHAPE,)), environ)
    assert set(result.kept) | set(result.dropped) == set(environ)
    assert not set(result.kept) & set(result.dropped)
    assert set(result.reasons) == set(result.dropped)
    assert all(result.kept[name] == environ[name] for name in result.kept)


def test_explicit_values_beat_literals_beat_inherited_ones() -> None:
    policy = deny(drop=("*TOKEN*",), set=(("TMPDIR", "/tmp"), ("A", "plan")))
    result = apply(policy, {"A": "env", "TMPDIR": "/x", "MY_TOKEN": "s"}, {"A": "caller", "MY_TOKEN": "given"})
    assert result.kept == {"A": "caller", "TMPDIR": "/tmp", "MY_TOKEN": "given"}
    assert result.dropped == []


def test_a_granted_name_is_kept_whatever_its_value() -> None:
    token = "ghp_" + "a" * 36
    policy = deny(keep=("GITHUB_TOKEN",), drop=("*TOKEN*",), drop_values=(SHAPE,))
    assert apply(policy, {"GITHUB_TOKEN": token}).kept == {"GITHUB_TOKEN": token}


@pytest.mark.parametrize(("value", "kept"), [
    ("ghp_" + "a" * 36, False), ("url=https://ghp_" + "B9_" * 12 + "@host", False),
    ("ghp_" + "a" * 35, True), ("ghp_" + "a" * 20 + "-" + "a" * 20, True), ("GHP_" + "a" * 40, True), ("", True),
])
def test_a_token_is_known_by_its_shape_anywhere_in_a_value(value: str, kept: bool) -> None:
    assert ("X" in apply(deny(drop_values=(SHAPE,)), {"X": value}).kept) is kept


def test_a_dash_at_the_end_of_a_charset_is_itself() -> None:
    shape = TokenShape(name="s", prefix="glpat-", charset="A-Za-z0-9_-", min_len=4)
    assert apply(deny(drop_values=(shape,)), {"X": "glpat-a-_Z"}).dropped == ["X"]


def test_of_two_variables_with_one_name_the_first_counts() -> None:
    twice = [("A", "1"), ("A", "2"), ("T", "ghp_" + "a" * 36), ("T", "harmless")]
    result = apply(deny(drop_values=(SHAPE,)), twice)
    assert result.kept == {"A": "1"}
    assert result.reasons == {"A": "duplicate", "T": "value: " + result.reasons["T"].removeprefix("value: ")}


def test_case_does_not_hide_a_name_from_the_drop_list_but_grants_are_exact() -> None:
    policy = deny(keep=("Npm_Token",), drop=("NPM_TOKEN",))
    result = apply(policy, {"npm_token": "a", "Npm_Token": "b"})
    assert result.kept == {"Npm_Token": "b"}


def test_a_large_and_odd_environment_is_filtered_fast_and_without_a_warning() -> None:
    environ = {f"VAR_{i}": "x" * 40 for i in range(5000)}
    environ |= {"BIG": "ghp_-" * 20_000, "A\udcff\udcfe": "\udc80", "sp ace-é.%": "v", "N" * 100_000: "v"}
    policy = compile_env(resolved(tier=Tier.guarded))
    apply(policy, {})
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = apply(policy, environ)
    assert time.perf_counter() - start < 3
    assert len(result.kept) == len(environ)
    assert result.kept["A\udcff\udcfe"] == "\udc80"


def test_a_long_name_cannot_stall_a_pattern_with_many_stars() -> None:
    start = time.perf_counter()
    apply(EnvPolicy(mode="allow", keep=("*A*A*A*A*A*B",)), {"A" * 100_000: "v"})
    assert time.perf_counter() - start < 2


def test_standard_drops_by_name_guarded_also_by_value_strict_by_default() -> None:
    standard, guarded, strict = (compile_env(resolved(tier=tier)) for tier in (Tier.standard, Tier.guarded, Tier.strict))
    assert (standard.mode, guarded.mode, strict.mode) == ("deny", "deny", "allow")
    assert not standard.drop_values and guarded.drop_values == token_shapes() and not strict.drop
    environ = {"AWS_SECRET_ACCESS_KEY": "s", "LD_PRELOAD": "/x.so", "MY_SETTING": "1", "PATH": "/bin",
               "NOTE": "ghp_" + "a" * 36}
    assert set(apply(standard, environ).kept) == {"MY_SETTING", "PATH", "NOTE"}
    assert set(apply(guarded, environ).kept) == {"MY_SETTING", "PATH"}
    assert set(apply(strict, environ).kept) == {"PATH"}


@pytest.mark.parametrize("name", ["env-secrets", "env-injection"])
@pytest.mark.parametrize("tier", [Tier.standard, Tier.guarded, Tier.strict])
def test_every_listed_variable_is_absent_at_every_tier(name: str, tier: Tier) -> None:
    policy = compile_env(resolved(tier=tier))
    for entry in load_list(name):
        for variable in {entry.pattern.replace("*", "X"), *entry.examples}:
            assert variable not in apply(policy, {variable: "v"}).kept, variable


def test_off_keeps_the_environment_promises_of_standard() -> None:
    assert compile_env(resolved(tier=Tier.off)) == compile_env(resolved(tier=Tier.standard))


@pytest.mark.parametrize("tier", [Tier.standard, Tier.guarded, Tier.strict])
def test_tracing_context_and_grants_pass_at_every_tier(tier: Tier) -> None:
    policy = compile_env(resolved(tier=tier, env_keep=("NPM_TOKEN",)), extra_set={"TMPDIR": "/tmp"})
    result = apply(policy, dict.fromkeys((*TRACING, "NPM_TOKEN"), "v"))
    assert result.dropped == [] and result.kept["TMPDIR"] == "/tmp"


def test_no_value_of_the_environment_is_in_the_policy() -> None:
    assert "hunter2" not in repr(compile_env(resolved(env_keep=("NPM_TOKEN",))))
    assert "hunter2" not in repr(apply(deny(), {"A": "hunter2"}))


def test_the_plan_object_has_the_keys_of_the_schema() -> None:
    plan = compile_env(resolved(tier=Tier.guarded)).to_plan()
    assert set(plan) == {"mode", "keep", "drop", "drop_values", "set"}
    assert plan["keep"] == sorted(set(plan["keep"])) and plan["drop"] == sorted(set(plan["drop"]))
    assert plan["drop_values"] and all(set(shape) == {"name", "prefix", "charset", "min_len"} for shape in plan["drop_values"])
