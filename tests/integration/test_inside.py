"""Our own command inside a box: it is there, and says in one line what it cannot do."""

from __future__ import annotations

import pytest

from support.actors import PYTHON, Actor

CALL = "import sys; sys.path.insert(0, {lib!r}); from stockade.cli import main; raise SystemExit(main({words!r}))"


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_a_run_inside_a_box_is_refused_in_one_line(actor: Actor, tier: str) -> None:
    code = CALL.format(lib=str(actor.stage.lib), words=["run", "--tier", "strict", "--", "true"])
    run = actor.run([PYTHON, "-I", "-B", "-c", code], tier=tier)
    assert run.returncode == 125, run.stderr
    assert "nested_unsupported" in run.stderr and "Traceback" not in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("tier", ["strict"])
def test_the_package_can_be_read_and_not_changed_inside(actor: Actor, tier: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(actor.stage.lib)!r}); import stockade; open(stockade.__file__, 'a')"
    run = actor.run([PYTHON, "-I", "-B", "-c", code], tier=tier)
    assert run.returncode == 1 and ("Read-only" in run.stderr or "Permission denied" in run.stderr), run.stderr
