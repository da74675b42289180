"""Answers of the probe on disk: one for each place that asked.

Owns: the file ``host-probe.json`` of the state home. An answer belongs to the key of the facts it
was found under; callers that are confined in different ways have one each. Fails closed: a file
that cannot be read or has another form holds none; a refusal is never kept, because what stood in
the way may be gone and asking again costs some milliseconds. Read next: ``probe.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from stockade.decision import BackendVerdict
from stockade.errors import Error
from stockade.jsontext import dumps, loads
from stockade.paths import StateHome, atomic_write
from stockade.rules.files import read_checked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = "stockade.probe.v2"
# Each container or unit that shares the state home has a key of its own; the oldest goes.
MAX_KEPT = 16


def find(state: StateHome, key: str) -> tuple[int, tuple[BackendVerdict, ...]] | None:
    """Return the Landlock ABI and the verdicts that were found under this key, or None."""
    for row in _rows(state):
        if row.get("key") == key:
            try:
                return int(row["landlock_abi"]), tuple(_verdict(item) for item in row["backends"])
            except (KeyError, TypeError, ValueError, OverflowError):
                return None
    return None


def keep(state: StateHome, key: str, landlock_abi: int, backends: tuple[BackendVerdict, ...]) -> None:
    """Keep an answer; a disk that is full costs the next start a probe, nothing else."""
    rows = [_row(verdict) for verdict in backends]
    others = [row for row in _rows(state) if row.get("key") != key]
    data = {"schema": SCHEMA, "answers": [{"key": key, "landlock_abi": landlock_abi, "backends": rows},
                                          *others[:MAX_KEPT - 1]]}
    try:
        atomic_write(_path(state), dumps(data, sort_keys=True).encode())
    except OSError:
        return


def _path(state: StateHome) -> str:
    return f"{state.path}/host-probe.json"


def _rows(state: StateHome) -> list[Mapping[str, Any]]:
    try:
        # Bounded, and a regular file of ours: what else has the name must not hang or fill the memory of a start.
        data = loads(read_checked(_path(state), "state_home_invalid") or b"null")
    except (Error, ValueError, RecursionError):
        return []
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("answers"), list):
        return []
    return [row for row in data["answers"] if isinstance(row, dict)]


def _row(verdict: BackendVerdict) -> dict[str, Any]:
    return {"name": verdict.name, "keeps": sorted(verdict.keeps), "open_net": sorted(verdict.open_net),
            "namespaces": verdict.namespaces, "reason": verdict.reason, "remedy": verdict.remedy}


def _verdict(row: Mapping[str, Any]) -> BackendVerdict:
    return BackendVerdict(name=str(row["name"]), keeps=frozenset(row["keeps"]), open_net=frozenset(row["open_net"]),
                          namespaces=bool(row["namespaces"]), reason=str(row["reason"]), remedy=str(row["remedy"]))
