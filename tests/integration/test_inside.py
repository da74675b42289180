"""Our own command inside a box: it is there, starts boxes, and says in one line what it cannot do."""

from __future__ import annotations

import json

import pytest

from requirements import requirement
from support.actors import PYTHON, Actor

CALL = "import sys; sys.path.insert(0, {lib!r}); from stockade.cli import main; raise SystemExit(main({words!r}))"


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_a_run_inside_a_box_is_a_box_of_its_own(actor: Actor, tier: str) -> None:
    code = CALL.format(lib=str(actor.stage.lib), words=["run", "--tier", "strict", "--net", "none", "--receipt", "fd:2", "--", "sh", "-c", "exit 7"])
    run = actor.run([PYTHON, "-I", "-B", "-c", code], tier=tier)
    assert run.returncode == 7, run.stderr
    receipt = json.JSONDecoder().raw_decode(run.stderr[run.stderr.index("{"):])[0]
    assert (receipt["launch"]["requested_tier"], receipt["effective_tier"], receipt["launch"]["origin"]) == ("strict", "strict", "inside")


def test_what_cannot_be_had_inside_a_box_is_refused_in_one_line(actor: Actor) -> None:
    code = CALL.format(lib=str(actor.stage.lib), words=["run", "--tier", "off", "--", "true"])
    run = actor.run([PYTHON, "-I", "-B", "-c", code], tier="standard")
    assert run.returncode == 125, run.stderr
    assert "nested_unsupported" in run.stderr and "Traceback" not in run.stderr
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
