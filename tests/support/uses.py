"""Runs the operations of ``hostile/uses.py``, in a box and without one.

Owns: the two ways of starting it; what they answer is compared by the tests of ``Sandbox.check``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from support.actors import PYTHON, Actor
from support.boxes import Answers, BoxRun, Op, parse_answers


def boxed(actor: Actor, ops: Sequence[Op], *, tier: str, **kwargs: Any) -> BoxRun:
    """Run the operations in a box; the answers are there unless it was refused, or ended by its supervisor."""
    run = actor.run([PYTHON, str(actor.stage.bin / "uses.py")], tier=tier, stdin=json.dumps(ops), **kwargs)
    return run if run.refused or run.stderr.startswith("stockade: ended: ") else run.with_answers(ops)


def bare(actor: Actor, ops: Sequence[Op], *, cwd: str) -> Answers:
    """Run the operations without a box."""
    done = actor.call([PYTHON, str(actor.stage.bin / "uses.py")], stdin=json.dumps(ops).encode(), cwd=cwd)
    return parse_answers(done.stdout, done.stderr, ops)
