"""Boxes that leave places that run code later, and boxes that are killed before they could say so."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.actors import Actor
from support.boxes import BoxRun, op, worked
from support.live import LiveBox

STATE = ".local/state/stockade"
OTHER_FILE_SYSTEM = "/var/tmp/state-home"


def leave(actor: Actor, root: str, script: str, *, caller: str = "repository", **kwargs: Any) -> BoxRun:
    """Run a shell script in a box that quarantines by default."""
    run = actor.run(["/bin/sh", "-ec", script], tier=kwargs.pop("tier", "guarded"), cwd=root, caller=caller, **kwargs)
    assert run.refused is None, run.raw
    return run


def plant_and_kill(actor: Actor, root: str, name: str = ".envrc", **kwargs: Any) -> str:
    """A box writes one file and its supervisor is killed; the name of the run."""
    with LiveBox(actor, tier="guarded", cwd=root, caller="repository", **kwargs) as box:
        worked(box.ask([op("create", path=f"{root}/{name}", text="evil\n", keep=True)]))
        run_id = str(box.records(until="launch")["launch"]["run_id"])
        box.process.send_signal(signal.SIGKILL)
        box.process.wait(20)
    assert actor.host(f"{root}/{name}").exists(), "the attack works: what the killed box wrote is there"
    return run_id


def rows(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Persistence changes by path."""
    return {row["path"]: row for row in items}


def listed(path: Path) -> list[dict[str, Any]]:
    """The lines of a list of what was moved."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def journals(actor: Actor, home: str | None = None) -> Path:
    """The directory of the notes of open boxes."""
    return actor.host(f"{home or f'{actor.home}/{STATE}'}/audit/open")


def records(actor: Actor) -> list[dict[str, Any]]:
    """Every record of the spool. Other tests leave lines in it that are none."""
    found = []
    for line in (actor.host(f"{actor.home}/{STATE}") / "audit/spool.jsonl").read_bytes().splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [record for record in found if isinstance(record, dict)]
