"""The spool comes into the log in order, each record once, whoever is killed on the way."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from stockade.audit.events import of_record
from stockade.audit.ingest import CHECKPOINT, ingest
from stockade.audit.log import Log
from stockade.audit.spool import lines
from support.live import wait_until
from support.spooled import WHEN, framed, log_bytes, refused, spooled, taken, whole

FORK = multiprocessing.get_context("fork")


def test_each_record_comes_once_also_over_rotation_and_without_a_checkpoint(tmp_path: Path) -> None:
    log = Log(str(tmp_path), segment_bytes=20_000)
    spooled(tmp_path, range(300))
    assert ingest(str(tmp_path), log).records == 300
    spooled(tmp_path, range(300, 310))
    (tmp_path / "spool.jsonl").rename(tmp_path / "spool.jsonl.01ARZ3NDEKTSV4RRFFQ69G5FAV")
    spooled(tmp_path, range(310, 400))
    (tmp_path / "log" / CHECKPOINT).unlink()
    assert ingest(str(tmp_path), log).records == 100
    assert ingest(str(tmp_path), log).records == 0
    (tmp_path / "log" / CHECKPOINT).write_bytes(b'{"seq": 3')
    assert ingest(str(tmp_path), log).records == 0
    assert taken(tmp_path) == list(range(400)) and whole(tmp_path)


def test_a_file_that_gets_the_inode_and_name_of_another_is_read_from_its_start(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    spooled(tmp_path, range(50))
    ingest(str(tmp_path), log)
    (tmp_path / "spool.jsonl").write_bytes(b"".join(framed(refused(number)) for number in range(50, 60)))
    assert ingest(str(tmp_path), log).records == 10
    assert taken(tmp_path) == list(range(60))


def test_a_record_that_was_cut_is_said_once_and_hides_none(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    spooled(tmp_path, range(2))
    cut = framed(refused(7))[:-30]
    with (tmp_path / "spool.jsonl").open("ab") as stream:
        stream.write(cut)
    assert (ingest(str(tmp_path), log).records, ingest(str(tmp_path), log).damaged) == (2, 0)
    spooled(tmp_path, range(2, 4))
    found = ingest(str(tmp_path), log)
    assert (found.records, found.damaged) == (2, 1)
    assert taken(tmp_path) == [0, 1, 2, 3] and whole(tmp_path)


def _take_for_ever(audit: str) -> None:
    log = Log(audit)
    while True:
        ingest(audit, log)


def test_readers_that_are_killed_take_nothing_twice_and_leave_nothing_out(tmp_path: Path) -> None:
    count = 0
    for _ in range(12):
        spooled(tmp_path, range(count, count + 700))
        count += 700
        readers = [FORK.Process(target=_take_for_ever, args=(str(tmp_path),)) for _ in range(2)]
        goal = log_bytes(tmp_path) + random.randrange(1, 200_000)  # less than these records have
        for one in readers:
            one.start()
        wait_until(lambda goal=goal: log_bytes(tmp_path) >= goal, "a reader is at it")
        for one in readers:
            os.kill(one.pid or 0, signal.SIGKILL)
            one.join(20)
    ingest(str(tmp_path), Log(str(tmp_path)))
    assert taken(tmp_path) == list(range(count)) and whole(tmp_path)


@pytest.mark.parametrize("record", [
    {"record": "launch", "origin": "inside", "run_id": "x", "ts": WHEN, "data": "d"}, {"record": "strange"}, {"record": "end"}, {},
    {"record": "refused", "origin": "inside", "code": "c"}, {"record": "launch", "promises": 7},
    {**refused(1), "step": 10**400}, {**refused(1), "step": 1.5}, {**refused(1), "object": "\ud800"}, {**refused(1), "ts": 5},
    {**refused(1), "step": ["x" * 1000] * 1100}, {**refused(1), "step": "\x01" * 180_000},
])
def test_what_is_no_record_of_a_supervisor_never_becomes_one(tmp_path: Path, record: dict[str, Any]) -> None:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "spool.jsonl").write_bytes(framed({"schema": "stockade.receipt.v1", **record}))
    assert ingest(str(tmp_path), Log(str(tmp_path))).records == 1
    lines = (tmp_path / "log" / "00000001.jsonl").read_bytes().splitlines()
    event = json.loads(lines[-1])
    inside = record.get("origin") == "inside"
    spooled = (tmp_path / "spool.jsonl").read_bytes().strip(b"\n")
    if event["type"] == "audit.unknown":
        assert event["detail"] == {"bytes": len(spooled), "sha256": hashlib.sha256(spooled).hexdigest()}
    assert event["type"] in ("inside.record", "audit.unknown") and (event["origin"] == "inside") == inside, event


def test_another_reader_at_work_is_waited_for_and_then_said(tmp_path: Path) -> None:
    import fcntl

    log = Log(str(tmp_path))
    spooled(tmp_path, range(3))
    held = os.open(tmp_path / "log" / "ingest.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert ingest(str(tmp_path), log, timeout_s=0.05).busy
    # One that is soon done is waited for.
    release = threading.Timer(0.2, os.close, [held])
    release.start()
    assert ingest(str(tmp_path), log, timeout_s=20).records == 3
    release.join(20)


HOSTILE = {
    "a length of 5,000 digits": b'\n{"len":' + b"9" * 5000 + b"}\n", "a deep list": framed({"record": "refused", "x": 1}).replace(b'"x":1', b'"x":' + b"[" * 200_000),
    "no text at all": b"\x00" * 5000 + b"\n", "a line of 3 MiB": framed({"record": "inside", "origin": "inside", "data": "x" * (3 << 20)}),
    "bytes that are no UTF-8": b'\n{"len":12,"\xff"}\n',
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_line_of_the_spool_stops_those_behind_it(tmp_path: Path, what: str) -> None:
    log = Log(str(tmp_path))
    spooled(tmp_path, range(2))
    with (tmp_path / "spool.jsonl").open("ab") as stream:
        stream.write(HOSTILE[what])
    spooled(tmp_path, range(2, 4))
    ingest(str(tmp_path), log)
    assert taken(tmp_path) == [0, 1, 2, 3] and whole(tmp_path)
    assert ingest(str(tmp_path), log).records == 0


def test_the_uid_of_an_event_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spool.jsonl").write_bytes(framed({
        "record": "declined", "ts": WHEN, "caller": "agent", "pid": 7, "argv0": "x", "cwd": "/", "requested_tier": "auto", "code": "policy_denied",
        "message": "m", "reasons": [], "missing": [], "transient": False}))
    monkeypatch.setattr(os, "geteuid", lambda: 4242)  # of whoever reads it: root, say
    events = [of_record(line.record or {}, line.text, line.uid) for line in lines(str(tmp_path), {})]
    assert [event["actor"]["uid"] for event in events] == [os.getuid()]
