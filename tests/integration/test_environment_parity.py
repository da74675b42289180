"""The filter in Python and the filter in the launcher give one answer for one environment."""

from __future__ import annotations

import pytest

from stockade.environment import EnvPolicy, TokenShape, apply
from support.actors import Actor
from support.plans import launch, small_plan

SHAPES = (TokenShape(name="gh", prefix="ghp_", charset="A-Za-z0-9_", min_len=10),
          TokenShape(name="lab", prefix="glpat-", charset="a-z-", min_len=4))
POLICIES = {
    "allow": EnvPolicy(mode="allow", keep=("PATH", "LC_*", "*_CA_*", "a*b*c"), set=(("TMPDIR", "/tmp"), ("PLAN", "p"))),
    "deny": EnvPolicy(mode="deny", keep=("GH_TOKEN", "Npm_*"), drop=("*TOKEN*", "AWS_*", "npm_*", "*a*a*b", "é*"),
                      drop_values=SHAPES, set=(("PLAN", "p"),)),
    "open": EnvPolicy(mode="deny"),
    "all": EnvPolicy(mode="deny", drop=("*",), keep=("LC_ALL",)),
}
TOKEN = "ghp_" + "a" * 10
ENVIRON = {
    "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "PLAN": "inherited", "TMPDIR": "/elsewhere", "EMPTY": "",
    "GH_TOKEN": TOKEN, "gh_token": "x", "MY_TOKEN_2": "x", "token": "x", "AWS_": "x", "AWSX": "x", "Npm_x": TOKEN,
    "NPM_X": "x", "X_CA_Y": "x", "_CA_": "x", "abc": "x", "aXbYc": "x", "ab": "x", "acb": "x", "aab": "x", "AxAxB": "x",
    "URL": f"https://{TOKEN}@host", "SHORT": "ghp_" + "a" * 9, "UPPER": "GHP_" + "A" * 20, "SPLIT": "ghp_aaaaa-aaaaa",
    "TWICE": "ghp_- " + TOKEN, "LAB": "glpat-a-bc", "LABX": "glpat-a-b", "éa": "x", "É": "x", "sp ace": "x", "p%q.r-s": "x",
    "LONG": "v" * 100_000, "LINES": "a\nb", "K": "x",
}


@pytest.mark.parametrize("name", POLICIES)
def test_both_filters_keep_and_drop_the_same_variables(user: Actor, name: str) -> None:
    policy = POLICIES[name]
    mine = apply(policy, ENVIRON)
    done = launch(user, small_plan(user, env=policy.to_plan()), ["/usr/bin/env", "-0"], env=dict(ENVIRON))
    assert done.status == 0, done.err
    theirs = dict(item.split("=", 1) for item in done.out.split("\0") if item)
    assert theirs == mine.kept
    assert sorted(done.records["launch"]["env_dropped"]) == mine.dropped
    assert sorted(done.records["launch"]["env_kept"]) == sorted(mine.kept)
