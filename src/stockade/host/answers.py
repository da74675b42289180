"""Answers of the probe on disk: one for each place that asked.

Owns: the file ``host-probe.json`` of the state home, and for how long an answer in it holds. An answer belongs
to the key of the facts it was found under; callers that are confined in different ways have one each.
Fails closed: a file that cannot be read or has another form holds none. Where one backend was refused and
another is there, the answer holds for a while, because what stood in the way may be gone; where none is
there nothing is kept at all. A start that the kernel refuses all the same drops the file
(``launcher/src/answers.rs``). Read next: ``probe.py``.
"""

from __future__ import annotations

import os
from time import time

from stockade.errors import Error
from stockade.frozen import NamedTuple
from stockade.jsontext import dumps, loads
from stockade.light import Mapping, Sequence
from stockade.paths import StateHome, atomic_write
from stockade.rules.circumstances import BackendVerdict
from stockade.rules.files import read_checked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = "stockade.probe.v2"
# Each container or unit that shares the state home has a key of its own; the oldest goes.
MAX_KEPT = 16
# Every start without namespaces would pay for a probe; one in ten minutes looks whether they are back.
HOLD_S = 600
# Refusals of a start by which the kernel takes an answer back; no path of the request is at fault.
OF_THE_HOST = frozenset({
    "userns_denied", "map_denied", "namespace_denied", "mount_denied", "overlay_denied", "proc_denied", "dev_denied",
    "pivot_denied", "nnp_denied", "keyring_denied", "caps_denied", "landlock_unavailable", "landlock_denied",
    "seccomp_denied", "promise_not_kept"})


class Kept(NamedTuple):
    """An answer: the Landlock ABI, the verdicts, and when the host was asked."""

    landlock_abi: int
    backends: tuple[BackendVerdict, ...]
    asked_s: float


def find(state: StateHome, key: str) -> Kept | None:
    """Return the answer that was found under this key and still holds, or None."""
    for row in _rows(state):
        if row.get("key") == key:
            try:
                backends, asked_s = tuple(_verdict(item) for item in row["backends"]), row.get("asked_s")
                found = Kept(int(row["landlock_abi"]), backends, float(asked_s or 0))
                return found if holds(backends, asked_s) else None
            except (KeyError, TypeError, ValueError, OverflowError):
                return None
    return None


def version(state: StateHome) -> tuple[int, int, int] | None:
    """Return what changes whenever somebody keeps or drops an answer; None: there is no file."""
    try:
        info = os.lstat(_path(state))
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def holds(backends: Sequence[BackendVerdict], asked_s: float | None) -> bool:
    """Tell whether an answer of that time may be given now: always, unless the strongest backend was refused.

    After a clock that went back such an answer holds no more.
    """
    if not backends or not backends[0].code:
        return True
    return isinstance(asked_s, int | float) and 0 <= time() - asked_s < HOLD_S


def keep(state: StateHome, key: str, landlock_abi: int, backends: tuple[BackendVerdict, ...]) -> None:
    """Keep an answer; a disk that is full costs the next start a probe, nothing else."""
    rows = [_row(verdict) for verdict in backends]
    others = [row for row in _rows(state) if row.get("key") != key]
    mine = {"key": key, "landlock_abi": landlock_abi, "backends": rows, "asked_s": int(time())}
    data = {"schema": SCHEMA, "answers": [mine, *others[:MAX_KEPT - 1]]}
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
            "namespaces": verdict.namespaces, "code": verdict.code, "reason": verdict.reason, "remedy": verdict.remedy,
            "obstacle": verdict.obstacle, "step": verdict.step, "object": verdict.object, "errno": verdict.errno,
            "commands": list(verdict.commands), "sysctl": verdict.sysctl}


def _verdict(row: Mapping[str, Any]) -> BackendVerdict:
    code, obstacle, what, number = (str(row.get(name, "")) for name in ("code", "obstacle", "object", "errno"))
    sysctl = row.get("sysctl")
    return BackendVerdict(name=str(row["name"]), keeps=frozenset(row["keeps"]), open_net=frozenset(row["open_net"]),
                          namespaces=bool(row["namespaces"]), code=code, reason=str(row["reason"]),
                          remedy=str(row["remedy"]), obstacle=obstacle, step=row.get("step"), object=what, errno=number,
                          commands=tuple(map(str, row.get("commands", ()))),
                          sysctl=(str(sysctl[0]), str(sysctl[1])) if sysctl else None)
