"""env.injection: no variable makes a program in the box load foreign code."""

from __future__ import annotations

import pytest

from requirements import at_tiers, requirement
from support.actors import Actor
from support.boxes import kept, op
from support.lists import SOCKET_VARIABLE, variable_names

LOOK = [op("environ", "own"), op("all_environ", "proc")]


@requirement("env.injection")
@at_tiers("env.injection")
def test_no_listed_variable_reaches_the_box(actor: Actor, tier: str) -> None:
    names = [name for name in variable_names("env-injection") if name != SOCKET_VARIABLE]
    harmless = [name for name in names if not name.startswith(("LD_", "PYTHON", "MALLOC", "GLIBC"))]
    env = {**actor.env, **dict.fromkeys(names, "/nonexistent/injected")}
    # Without the box they arrive; those that stop the probe's own interpreter are left out there.
    bare = actor.bare(LOOK, env={**actor.env, **dict.fromkeys(harmless, "/nonexistent/injected")})
    assert set(harmless) <= set(bare["own"]["value"])
    # As the request's source of values: the driver's own interpreter starts clean.
    run = actor.box(LOOK, tier=tier, source=env)
    assert run.value("own")["PATH"] and f"PATH={run.value('own')['PATH']}" in run.value("proc"), "the box reads its own environment"
    assert "/nonexistent/injected" not in repr(run.answers)
    kept(run, "env.injection", tier)


@requirement("env.injection")
@at_tiers("env.injection")
def test_shell_and_interpreter_hooks_run_nothing(actor: Actor, tier: str) -> None:
    hook = actor.put(f"{actor.workspace}/hook.sh", "echo injected\n", 0o755)
    module = actor.put(f"{actor.workspace}/evil/Evil.pm", "print \"injected\\n\"; 1;\n", 0o644)
    env = {**actor.env, "BASH_ENV": hook, "ENV": hook, "PERL5OPT": f"-I{module.rsplit('/', 1)[0]} -MEvil"}
    ask = ["bash", "-c", "perl -e 'print qq(done\\n)'; echo end"]
    bare = actor.call(ask, env=env).stdout.decode()
    assert bare.count("injected") == 2
    run = actor.run(ask, tier=tier, env=env)
    assert run.stdout.split() == ["done", "end"]


@requirement("env.injection")
@at_tiers("env.injection")
def test_a_granted_variable_is_a_voiding_grant(actor: Actor, tier: str) -> None:
    env = {**actor.env, "NODE_OPTIONS": "--no-warnings"}
    refused = actor.run(["true"], tier=tier, env=env, pass_env=["NODE_OPTIONS"])
    assert refused.code == "grant_voids_tier" and refused.refused is not None and refused.refused["missing"] == ["env.injection"]
    run = actor.box(LOOK, tier=tier, env=env, pass_env=["NODE_OPTIONS"], accept=["env.injection"])
    assert run.value("own")["NODE_OPTIONS"] == "--no-warnings"
    assert run.state("env.injection") == "waived" and run.receipt["effective_tier"] != tier


@requirement("env.injection")
@at_tiers("env.injection")
@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "NODE_OPTIONS", "PYTHONSTARTUP", "BASH_ENV", "GIT_SSH_COMMAND"])
def test_a_loader_variable_is_a_voiding_grant_by_name_and_by_value(user: Actor, name: str, tier: str) -> None:
    """Passed or set: either way foreign code can be loaded, so the promise is given away aloud or not at all."""
    env = {**user.env, name: "/x.so"}
    for options in ({"pass_env": [name], "env": env}, {"set_env": {name: "/x.so"}}):
        refused = user.run(["true"], tier=tier, **options)
        assert (refused.code, refused.refused and refused.refused["missing"]) == ("grant_voids_tier", ["env.injection"]), (options, refused.raw)
        accepted = user.run(["/usr/bin/printenv", name], tier=tier, accept=["env.injection"], **options)
        assert (accepted.state("env.injection"), accepted.stdout) == ("waived", "/x.so\n"), accepted.raw
