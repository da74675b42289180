"""What an event of the log is, and which one a record of a launcher becomes.

Owns: the fields of an event (``schemas/audit-event.v1.json``) and the words of type and outcome. What a box said is
an event of type ``inside.record`` and origin ``inside`` and never becomes another. Fails closed: a record of a kind
that is not known, or that no line of the log can hold, becomes ``audit.unknown`` with its digest, and is not dropped.
Read next: ``ingest.py``, ``redact.py``.
"""

from __future__ import annotations

import re

from stockade.audit.chain import MAX_LINE_BYTES
from stockade.audit.redact import clipped, redacted
from stockade.canonicaljson import encode
from stockade.ids import digest, timestamp, ulid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = "stockade.audit-event.v1"
# How a row of the decision table is called where it was carried out: ``stockade.decision``.
CARRIED_OUT = {"wrap": "wrapped", "tighten": "tightened", "delegate": "delegated", "passthrough": "passthrough",
               "unconfined": "unconfined", "downgrade": "downgraded"}
_TIERS = ("requested_tier", "active_tier", "tier_known", "effective_tier", "tier_downgrade")
_END = ("exit_code", "signal", "limit_hit", "wall_ms", "cpu_ms", "max_rss_bytes", "guard_lost", "net_denied")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", re.ASCII)
MAX_INSIDE = 4096
# What the chain adds to an event, and where it was in the spool, is less.
_MAX_BYTES = MAX_LINE_BYTES - 1024


def made(kind: str, outcome: str, ts: str, **fields: Any) -> dict[str, Any]:
    """Return an event with every field of the model; those that were not given are null."""
    return {"schema": SCHEMA, "ts": ts, "id": ulid(), "type": kind, "outcome": outcome, "run_id": None, "actor": None,
            "request": None, "tiers": None, "plan": None, "backend": None, "reasons": [], "origin": "outside",
            "detail": None, "source": None, **fields}


def of_record(record: dict[str, Any], line: bytes, uid: int) -> dict[str, Any]:
    """Return the event of a launcher's record (``schemas/receipt.v1.json``), without its place in the chain.

    Args: line: of the spool, which the record was read from; uid: of whoever wrote it.
    """
    make = _MAKERS.get(str(record.get("record")))
    if record.get("origin") == "inside":
        make = _inside
    try:
        event = make(record) if make else None
        if event is not None and len(encode(event)) <= _MAX_BYTES:
            return {**event, "actor": event["actor"] and {**event["actor"], "uid": uid}}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    return _unknown(record, line)


def _launch(record: dict[str, Any]) -> dict[str, Any]:
    promises, missing, supervisor = record["promises"], record["missing"], record["supervisor"]
    states = {state: [row["id"] for row in promises if row["state"] == state]
              for state in ("kept", "not_kept", "waived")}
    outcome = "downgraded" if record["tier_downgrade"] else CARRIED_OUT[record["decision"] or "wrap"]
    return made(
        "spawn.started", outcome, _ts(record["ts"]), run_id=record["run_id"], plan=record["plan"],
        backend=record["backend"], actor=_actor(record, supervisor and supervisor["pid"]), request=_request(record),
        tiers=_tiers(record, kept=states["kept"], missing=states["not_kept"], waived=states["waived"]),
        reasons=sorted({row["reason"] for row in promises
                        if row["reason"] and row["state"] != "kept" and row["id"] in missing}),
        detail={"profiles": record["profiles"], "net": record["net"], "kernel": record["kernel"], "row": record["row"]},
    )  # fmt: skip


def _end(record: dict[str, Any]) -> dict[str, Any]:
    done = record["outcome"] == "exited"
    changed = [row["path"] for row in record["persistence"]]
    return made(
        "spawn.finished", "completed" if done else "failed", _ts(record["ts"]), run_id=record["run_id"],
        reasons=[] if done else [record["outcome"]],
        detail={**{name: record.get(name) for name in _END}, "persistence": [_text(path) for path in changed],
                "degraded": [_text(str(item)) for item in record["degraded"]]},
    )  # fmt: skip


def _refused(record: dict[str, Any]) -> dict[str, Any]:
    detail = {name: record[name] for name in ("step", "errno_name", "transient")}
    return made("spawn.decided", "refused", _ts(record["ts"]), run_id=record["run_id"], reasons=[record["code"]],
                detail={**detail, "object": _text(record["object"])})


def _decided(record: dict[str, Any]) -> dict[str, Any]:
    """What a launcher is about to start: of what the box will keep nothing is said yet."""
    return made(
        "spawn.decided", CARRIED_OUT[record["decision"] or "wrap"], _ts(record["ts"]), run_id=record["run_id"],
        plan=record["plan"], backend=record["backend"], actor=_actor(record, record["pid"]),
        request=_request(record), tiers=_tiers(record), detail={"row": record["row"]})


def _actor(record: dict[str, Any], pid: int | None) -> dict[str, Any]:
    return {"caller": record["caller"], "app": None, "session": None, "uid": None, "pid": pid, "site": None}


def _request(record: dict[str, Any]) -> dict[str, Any]:
    return {"argv0": _text(record["argv0"]), "argv": None, "cwd": _text(record["cwd"]),
            "tier": record["requested_tier"]}


def _tiers(record: dict[str, Any], **lists: list[str]) -> dict[str, Any]:
    return {**{name: record.get(name) for name in _TIERS}, "kept": [], "missing": [], "waived": [], **lists}


def _declined(record: dict[str, Any]) -> dict[str, Any]:
    """A request that was refused before a launcher was asked: it has no run."""
    return made(
        "spawn.decided", "refused", _ts(record["ts"]), reasons=[record["code"]], actor=_actor(record, record["pid"]),
        request=_request(record), tiers=_tiers(record, missing=record["missing"]),
        detail={"message": _text(record["message"]), "why": [_text(line) for line in record["reasons"]],
                "transient": record["transient"]},
    )  # fmt: skip


def _inside(record: dict[str, Any]) -> dict[str, Any]:
    return made("inside.record", "completed", _ts(record["ts"]), run_id=record["run_id"], origin="inside",
                detail={"data": clipped(redacted(record["data"]), MAX_INSIDE)})


def _unknown(record: dict[str, Any], line: bytes) -> dict[str, Any]:
    origin = "inside" if record.get("origin") == "inside" else "outside"
    detail = {"bytes": len(line), "sha256": digest(line)}
    return made("audit.unknown", "failed", timestamp(), origin=origin, detail=detail)


_MAKERS = {"decided": _decided, "declined": _declined, "launch": _launch, "end": _end, "refused": _refused,
           "inside": _inside}


def _ts(value: str) -> str:
    """The time of a record with nine digits behind the point. Raises: ValueError: it is none."""
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError(value)
    return f"{found[1]}.{found[2] or '':0<9}Z"


def _text(value: str) -> str:
    return clipped(redacted(value))
