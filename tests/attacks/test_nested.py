"""Boxes inside a box: they work, and whatever is asked for can only take away.

The attacked thing is the supervisor outside: hostile code inside writes its requests.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.actors import PYTHON, Actor

TIERS = ("standard", "guarded")


def asked(actor: Actor, jobs: list[dict[str, Any]], *, tier: str = "standard", **kwargs: Any) -> tuple[Any, list[Any]]:
    """Do jobs inside a box; the run and the answers."""
    stdin = json.dumps({"lib": str(actor.stage.lib), "jobs": jobs})
    run = actor.run([PYTHON, "-I", "-B", str(actor.stage.bin / "asks.py")], tier=tier, stdin=stdin, **kwargs)
    assert run.returncode == 0, run.stderr
    return run, json.loads(run.stdout)


def inner(actor: Actor, script: str, tier: str = "strict", **options: Any) -> dict[str, Any]:
    """A job: a shell script in a box inside."""
    made = {"tier": tier, "caller": "operator", "net": "none", "cwd": actor.workspace, **options}
    return {"do": "run", "argv": ["/bin/sh", "-c", script], "options": made}


@pytest.mark.parametrize("tier", TIERS)
def test_a_stricter_box_runs_inside_a_box_and_says_what_it_keeps(actor: Actor, tier: str) -> None:
    actor.put(f"{actor.elsewhere}/secret", "outer can read this\n")
    look = f"cat {actor.elsewhere}/secret"
    _, (outer, got, ok) = asked(actor, [
        {"do": "plain", "argv": ["/bin/sh", "-c", look]}, inner(actor, look), inner(actor, "echo $(id -u) > made; cat made")], tier=tier)
    assert outer["status"] == 0, "the outer box shows the file"
    assert got["status"] != 0 and "outer can read" not in got["out"]
    assert (ok["status"], ok["out"]) == (0, f"{actor.uid}\n"), ok
    launch = got["receipt"]["launch"]
    assert (launch["requested_tier"], got["active"], got["receipt"]["effective_tier"]) == ("strict", tier, "strict")
    assert launch["origin"] == "inside"


def test_a_read_only_place_of_the_outer_box_stays_so_whatever_the_inner_one_is_granted(actor: Actor) -> None:
    # /etc and the elsewhere directory are read-only outside; hooks are guarded.
    hook = f"{actor.workspace}/.git/hooks/pre-push"
    ask = [inner(actor, f"echo x > {actor.elsewhere}/new; echo x >> {hook}; mv .git .git2; true", tier="standard", write=[actor.elsewhere, actor.workspace])]
    before = actor.sh(f"cat {hook}")
    _, (got,) = asked(actor, ask, tier="guarded")
    assert actor.sh(f"cat {hook}") == before
    assert actor.sh(f"ls {actor.elsewhere}").split().count("new") == 0
    assert actor.sh("test -d .git && echo there") == "there\n"
    assert "code" in got or got["status"] == 0


def _fields(*rows: tuple[str, bytes]) -> list[list[Any]]:
    return [[ord(tag), value.hex()] for tag, value in rows]


def test_bytes_that_are_no_request_are_refused_and_the_box_goes_on(actor: Actor) -> None:
    good = _fields(("a", b"/bin/true"))
    jobs = [
        {"do": "raw", "plan": {}, "fields": good},
        {"do": "raw", "plan": {}, "fields": []},
        {"do": "raw", "plan": {}, "fields": _fields(("z", b""))},
        {"do": "raw", "plan": {}, "fields": good, "sealed": False},
        {"do": "raw", "plan": {}, "fields": good, "count": 3},
        {"do": "raw", "plan": {}, "fields": good, "more": ["/etc/passwd"]},
        {"do": "raw", "plan": {}, "fields": _fields(("a", b"/bin/true"), ("c", b"/../etc"))},
        inner(actor, "echo still here"),
    ]
    _, got = asked(actor, jobs)
    assert got[0] == "plan_invalid"
    assert got[1:7] == ["nest_invalid"] * 6
    assert got[7]["out"] == "still here\n", got[7]


def test_twenty_boxes_inside_each_other_or_a_typed_refusal(actor: Actor) -> None:
    code = (
        "import sys, json; sys.path.insert(0, {lib!r}); import stockade; n = int(sys.argv[1])\n"
        "if n == 0: print('bottom', len(stockade.active().chain)); raise SystemExit\n"
        "try:\n"
        "    done = stockade.run([{python!r}, '-I', '-B', '-c', sys.argv[2], str(n - 1), sys.argv[2]], tier='standard', caller='operator', net='none', cwd={cwd!r})\n"
        "except stockade.Refused as err: print('refused', err.code); raise SystemExit\n"
        "raise SystemExit(done.returncode)"
    ).format(lib=str(actor.stage.lib), python=PYTHON, cwd=actor.workspace)
    run = actor.run([PYTHON, "-I", "-B", "-c", code, "3", code], tier="standard")
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["bottom", "4"], (run.stdout, run.stderr)
