"""A request from inside a box: what is there is passed through, a stricter one is a box in it, the rest is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor
from support.boxes import BoxRun
from support.cli import stockade

# A box whose supervisor builds none in it.
DEAF = "from stockade.host import active; active._answers = lambda: False"
CALL = "import sys; sys.path.insert(0, {lib!r}); from stockade.cli import main; raise SystemExit(main({words!r}))"
# Runs one request after the other inside; prints what came of each.
INSIDE = """
import json, os, sys, warnings
sys.path.insert(0, {lib!r})
import stockade
{deaf}
os.environ.update(json.loads(sys.argv[2]))
answers = []
for argv, options in json.loads(sys.argv[1]):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        try:
            done = stockade.run(argv, capture_output=True, text=True, **options)
            answer = {{"status": done.returncode, "out": done.stdout, "err": done.stderr, **done.receipt.to_json()["launch"]}}
        except stockade.Error as error:
            answer = error.to_json()
    answers.append({{**answer, "warned": [str(one.message) for one in said if one.category is stockade.DowngradeWarning]}})
print(json.dumps(answers))
"""


def inside(actor: Actor, outer: str, *requests: tuple[list[str], dict[str, Any]],
           nests: bool = True, exported: dict[str, str] | None = None, **options: Any) -> tuple[list[dict[str, Any]], BoxRun]:
    """Make the requests in one box of the outer tier; each gets what the box itself was granted, and its own."""
    base = {"caller": "operator", "net": "none", "cwd": actor.workspace, "read": [str(actor.stage.bin)]}
    asked = json.dumps([(argv, {**base, **own}) for argv, own in requests])
    code = INSIDE.format(lib=str(actor.stage.lib), deaf="" if nests else DEAF)
    run = actor.run([PYTHON, "-I", "-B", "-c", code, asked, json.dumps(exported or {})], tier=outer, **options)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run


@requirement("decision.inside")
@pytest.mark.parametrize(("outer", "tier"), [("strict", "strict"), ("strict", "standard"), ("guarded", "guarded"), ("standard", "standard")])
def test_a_tier_that_the_box_keeps_is_passed_through_with_its_own_environment(actor: Actor, outer: str, tier: str) -> None:
    argv = ["sh", "-c", "echo $LD_AUDIT-$GIVEN; test -e /run/stockade/box.json"]
    (got,), run = inside(actor, outer, (argv, {"tier": tier, "set_env": {"GIVEN": "g"}, "env": {"PATH": "/usr/bin:/bin", "LD_AUDIT": "x"}}))
    assert (got["status"], got["out"]) == (0, "-g\n"), got
    assert (got["decision"], got["row"], got["backend"]) == ("passthrough", "D7", "none")
    assert (got["requested_tier"], got["active_tier"], got["tier_known"]) == (tier, outer, True)
    assert (got["effective_tier"], got["tier_downgrade"], got["missing"], got["warned"]) == (outer, False, [], [])
    # The supervisor outside was told, and says who said so.
    assert run.receipt["end"]["inside"] == 1


@requirement("decision.inside")
def test_off_inside_a_box_stays_in_it(actor: Actor) -> None:
    argv = ["sh", "-c", f"echo x > {actor.elsewhere}/escaped"]
    actor.make_dir(actor.elsewhere)
    actor.sh(f"echo x > {actor.elsewhere}/escaped && rm {actor.elsewhere}/escaped")  # it works without the box
    (got,), _ = inside(actor, "strict", (argv, {"tier": "off"}))
    assert got["status"] != 0 and not actor.host(f"{actor.elsewhere}/escaped").exists()
    assert (got["decision"], got["effective_tier"], got["requested_tier"]) == ("passthrough", "strict", "off")


@requirement("decision.inside")
@pytest.mark.parametrize(("outer", "tier"), [("standard", "guarded"), ("standard", "strict"), ("guarded", "strict")])
def test_a_higher_tier_runs_nothing_without_a_word_and_says_so_with_one(actor: Actor, outer: str, tier: str) -> None:
    """The classic silent lie: `strict` asked for inside `standard`, and everything of the home is read."""
    secret = actor.put(f"{actor.home}/diary.txt", "dear-diary\n")
    argv = ["sh", "-c", f"cat {secret}; touch ran"]
    lower = {"tier": tier, "accept": [outer]}
    asked = [(["cat", secret], {"tier": outer}), (argv, {"tier": tier}), (argv, lower), (argv, lower)]
    got, _ = inside(actor, outer, *asked, nests=False)
    assert got[0]["out"] == "dear-diary\n"  # the attack works in the box around
    assert got[1]["code"] == "tier_unreachable" and got[1]["missing"], got[1]
    for answer in got[2:]:
        assert (answer["decision"], answer["row"], answer["effective_tier"]) == ("passthrough", "D11", outer)
        assert answer["tier_downgrade"] is True and set(answer["missing"]) == set(got[1]["missing"])
        assert len(answer["warned"]) == 1 and f"accept {outer!r} (argument)" in answer["warned"][0]  # on every call
    actor.remove(f"{actor.workspace}/ran")
    refused, _ = inside(actor, outer, (argv, {"tier": tier}), nests=False)
    assert refused[0]["code"] == "tier_unreachable" and not actor.host(f"{actor.workspace}/ran").exists()


@requirement("decision.inside")
def test_a_tier_that_is_accepted_names_the_limits_and_the_network_that_do_not_hold_either(actor: Actor) -> None:
    wanted = {"tier": "strict", "accept": ["standard"], "net": "none", "limits": {"processes": 50}}
    (got,), _ = inside(actor, "standard", (["true"], wanted), nests=False, net="host")
    assert (got["row"], got["net"], got["limits"]) == ("D11", "host", []) and {"net.policy", "limits"} <= set(got["missing"]), got
    assert [name for name in got["missing"] if name not in got["warned"][0]] == [] and "standard promises but env.secrets" in got["warned"][0]
    (kept,), _ = inside(actor, "standard", (["true"], wanted), nests=False, net="none", limits={"processes": 50})
    assert not {"net.policy", "limits"} & set(kept["missing"]) and "net.policy" not in kept["warned"][0], kept


@requirement("nest.strict_in_standard")
def test_a_higher_tier_is_a_narrower_box_also_where_less_is_accepted(actor: Actor) -> None:
    secret = actor.put(f"{actor.home}/diary.txt", "dear-diary\n")
    got, _ = inside(actor, "standard", (["cat", secret], {"tier": "standard"}), (["cat", secret], {"tier": "strict"}),
                      (["cat", secret], {"tier": "strict", "accept": ["standard"]}))
    assert got[0]["out"] == "dear-diary\n"  # the attack works in the box around
    for answer in got[1:]:
        assert answer["status"] == 1 and answer["out"] == "", answer
        assert (answer["origin"], answer["requested_tier"], answer["effective_tier"]) == ("inside", "strict", "strict")
        assert answer["warned"] == []


@requirement("decision.inside")
@pytest.mark.parametrize(("option", "named"), [
    ({"read": ["/home/../srv/stockade-none"]}, "path /srv/stockade-none"), ({"write": ["/usr/share"]}, "write access to path /usr/share"),
    ({"net": "host"}, "this strict box does not have the host's network (it runs with net none)"), ({"pass_env": ["STK_NOT_THERE"]}, "variable STK_NOT_THERE"), ({"sockets": ["docker"]}, "socket docker")])
def test_what_the_box_does_not_have_is_refused_by_name(actor: Actor, option: dict[str, Any], named: str) -> None:
    got, _ = inside(actor, "strict", (["true"], {"tier": "strict", **option}), (["true"], {"tier": "strict"}))
    assert got[0].get("code") == "grant_unreachable" and named in got[0]["message"], got[0]
    assert got[1]["status"] == 0  # the twin: without it


@requirement("decision.inside")
def test_a_secret_that_the_asking_process_holds_is_not_within_reach_of_what_it_starts(actor: Actor) -> None:
    look = (["sh", "-c", "grep -as DEPLOY_TOKEN /proc/*/environ; true"], {"tier": "guarded"})
    (plain,), _ = inside(actor, "guarded", look)
    assert plain["row"] == "D7"  # it holds none, and needs no box of its own
    (held,), _ = inside(actor, "guarded", look, exported={"DEPLOY_TOKEN": "tell-nobody"})
    assert (held["row"], held["backend"], held["status"]) == ("D8", "namespaces", 0) and "tell-nobody" not in held["out"], held
    # It works where the program is one of the box around.
    bare = actor.run(["sh", "-c", f"export DEPLOY_TOKEN=tell-nobody; sh -c '{look[0][2]}'"], tier="guarded")
    assert "tell-nobody" in bare.stdout


@requirement("decision.inside")
def test_what_needs_a_state_home_is_refused_inside_when_it_is_named_and_said_when_it_is_not(actor: Actor) -> None:
    got, _ = inside(actor, "standard", (["true"], {"tier": "strict", "on_persistence": "quarantine"}),
                    (["true"], {"tier": "strict", "cache": "keep"}), (["true"], {"tier": "strict"}))
    assert [answer.get("code") for answer in got] == ["nested_unsupported", "nested_unsupported", None], got
    assert "quarantine" in got[0]["message"] and "cache" in got[1]["message"] and got[2]["status"] == 0, got


@requirement("decision.inside")
def test_what_the_box_allows_beyond_the_request_is_not_given_in_silence(actor: Actor) -> None:
    actor.make_dir(f"{actor.workspace}/sub")
    narrower: list[tuple[dict[str, Any], str]] = [
        ({"hide": [f"{actor.workspace}/sub"]}, "sub"), ({"limits": {"memory_bytes": 64 << 20}}, "memory_bytes"),
        ({"caller": "mcp_server", "cwd": "/", "write": [f"{actor.workspace}/sub"]}, f"write {actor.workspace}"),
        ({"read": []}, str(actor.stage.bin)), ({}, "variable STK_GRANTED")]
    asked = [(["true"], {"tier": "strict", **({"pass_env": ["STK_GRANTED"]} if option else {}), **option}) for option, _ in narrower]
    whole = (["true"], {"tier": "strict", "pass_env": ["STK_GRANTED"]})
    given = {"STK_GRANTED": "1"}
    got, _ = inside(actor, "strict", *asked, whole, nests=False, set_env=given)
    for answer, (option, word) in zip(got, narrower, strict=False):
        assert answer.get("code") == "tier_unreachable" and word in answer["message"], (option, answer)
    assert got[-1]["status"] == 0, got[-1]
    got, _ = inside(actor, "strict", *asked, set_env=given)
    for answer, (option, _) in zip(got, narrower, strict=True):
        assert (answer.get("status"), answer.get("origin")) == (0, "inside"), (option, answer)


@requirement("nest.strict_in_standard")
@pytest.mark.parametrize("tier", ["standard", "guarded"])
def test_a_run_inside_a_box_is_a_box_of_its_own(actor: Actor, tier: str) -> None:
    words = ["run", "--tier", "strict", "--net", "none", "--receipt", "fd:2", "--", "sh", "-c", "exit 7"]
    run = actor.run([PYTHON, "-I", "-B", "-c", CALL.format(lib=str(actor.stage.lib), words=words)], tier=tier)
    assert run.returncode == 7, run.stderr
    receipt = json.JSONDecoder().raw_decode(run.stderr[run.stderr.index("{"):])[0]
    assert (receipt["launch"]["requested_tier"], receipt["effective_tier"], receipt["launch"]["origin"]) == ("strict", "strict", "inside")


@requirement("decision.inside")
def test_the_command_line_says_in_one_line_what_it_cannot_do_inside(actor: Actor) -> None:
    code = CALL.format(lib=str(actor.stage.lib), words=["run", "--tier", "strict", "--write", "/usr/share", "--", "true"])
    run = actor.run([PYTHON, "-I", "-B", "-c", code], tier="standard")
    assert run.returncode == 125, run.stderr
    assert "grant_unreachable" in run.stderr and "Traceback" not in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


@requirement("fs.own_state")
@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_a_package_of_ones_own_cannot_be_changed_inside(actor: Actor, tier: str) -> None:
    """Installed by the caller, who may change it outside, as after ``pip install --user``."""
    lib = f"{actor.home}/own-lib"
    actor.sh(f"cp -r {actor.stage.lib} {lib} && chmod -R u+w {lib}")
    code = f"open({lib + '/stockade/__init__.py'!r}, 'a')"
    assert actor.call([PYTHON, "-I", "-c", code]).returncode == 0
    run = actor.run([PYTHON, "-I", "-B", "-c", code], tier=tier, lib=lib)
    actor.sh(f"rm -rf {lib}")
    assert run.returncode == 1 and "Read-only" in run.stderr, run.stderr


@requirement("decision.inside")
def test_explain_prints_the_row_that_fired_and_why_the_better_ones_did_not(actor: Actor) -> None:
    said = stockade(actor, "explain", "--tier", "strict", "true")
    assert "row D2 of docs/decision.md applies" in said.out and "strict was asked for, not off" in said.out
    code = CALL.format(lib=str(actor.stage.lib), words=["explain", "--json", "--tier", "strict", "true"])
    run = actor.run([PYTHON, "-I", "-B", "-c", code], tier="standard")
    decision = json.loads(run.stdout)["decision"]
    assert run.returncode == 0 and (decision["row"], decision["kind"]) == ("D8", "tighten")
    run = actor.run([PYTHON, "-I", "-B", "-c", code.replace("from", f"{DEAF}; from", 1)], tier="standard")
    decision = json.loads(run.stdout)["decision"]
    assert run.returncode == 1 and (decision["row"], decision["code"]) == ("D12", "tier_unreachable")
    why = {item["row"]: item["why"] for item in decision["passed_over"]}
    assert list(why) == [f"D{number}" for number in range(1, 12)]
    assert why["D7"] == "this standard box is below strict" and why["D11"].startswith("nobody accepts to lose fs.credentials")
