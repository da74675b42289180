"""A spool as launchers write it, and what the log has of it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from stockade.audit.verify import verify

WHEN = "2026-11-30T12:00:00.000000000Z"


def framed(record: dict[str, Any]) -> bytes:
    """A record as the launcher frames it."""
    body = json.dumps(record, separators=(",", ":"))[1:]
    length = next(n for n in range(len(body) + 8, len(body) + 16) if len(f'{{"len":{n},{body}') == n)
    return f'\n{{"len":{length},{body}\n'.encode()


def refused(number: int) -> dict[str, Any]:
    """The record of a launch that was refused."""
    return {"schema": "stockade.receipt.v1", "record": "refused", "run_id": f"{number:026d}", "ts": WHEN, "code": "userns_denied",
            "step": 2, "object": "box", "errno": 1, "errno_name": "EPERM", "message": "m", "hint": "h", "transient": False}


def spooled(audit: Path, numbers: range, name: str = "spool.jsonl") -> None:
    """Append records as launchers do."""
    audit.mkdir(exist_ok=True)
    with (audit / name).open("ab") as stream:
        for number in numbers:
            stream.write(framed(refused(number)))


def taken(audit: Path) -> list[int]:
    """Numbers of the records in the log, in its order."""
    files = [path.read_bytes() for path in sorted((audit / "log").glob("0*"))]
    lines = [line for data in files for line in (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).splitlines()]
    records = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    return [int(record["run_id"]) for record in records if record.get("type") == "spawn.decided"]


def whole(audit: Path) -> bool:
    """Whether the chain is."""
    directory = os.open(audit / "log", os.O_RDONLY)
    try:
        return verify(directory).damage is None
    finally:
        os.close(directory)


def log_bytes(audit: Path) -> int:
    """How much is in the log."""
    return sum(path.stat().st_size for path in (audit / "log").glob("0*.jsonl"))
