"""The command line as an account types it.

Owns: starting ``python -m stockade`` of the stage's copy as an actor. Nothing is imported: what
is tested is what a shell would see.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.actors import PYTHON, Actor


@dataclass(frozen=True, slots=True)
class Said:
    """How one command line ended and what it printed."""

    status: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one document on standard output."""
        return dict(json.loads(self.out))


def line(*words: str) -> list[str]:
    """The argv of a command line."""
    return [PYTHON, "-B", "-m", "stockade", *words]


def environment(actor: Actor, **more: str) -> dict[str, str]:
    """The actor's environment with the package on the import path."""
    return {**actor.env, "PYTHONPATH": str(actor.stage.lib), **more}


def stockade(actor: Actor, *words: str, stdin: bytes = b"", cwd: str | None = None, before: Sequence[str] = (),
             env: dict[str, str] | None = None, pass_fds: Sequence[int] = ()) -> Said:
    """Run one command line without a terminal."""
    done = actor.call([*before, *line(*words)], stdin=stdin, cwd=cwd, pass_fds=pass_fds,
                      env=environment(actor) if env is None else env)
    return Said(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def start(actor: Actor, *words: str, cwd: str | None = None, **popen: Any) -> subprocess.Popen[bytes]:
    """Start a command line and leave it running."""
    return actor.spawn(line(*words), cwd=cwd, env=environment(actor), **popen)


_MAIN = "import sys; sys.path.insert(0, {lib!r}); from stockade.cli import main; raise SystemExit(main(sys.argv[1:]))"


def inside(actor: Actor, *words: str) -> list[str]:
    """The argv of a command line that a program in a box types: no variable of the import path gets there."""
    return [PYTHON, "-I", "-B", "-c", _MAIN.format(lib=str(actor.stage.lib)), *words]
