"""A reader of the spool whose files are cut, renamed, gone or forgotten takes each record once all the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.audit import spool
from stockade.audit.ingest import CHECKPOINT, ingest
from stockade.audit.log import Log
from stockade.errors import Error
from support.spooled import framed, refused, spooled, taken, whole

ULIDS = [f"01ARZ3NDEKTSV4RRFFQ69G5FA{letter}" for letter in "ABCDEF"]


def types(audit: Path) -> list[str]:
    """The types of all events, in order."""
    return [json.loads(line)["type"] for path in sorted((audit / "log").glob("0*.jsonl")) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("kept", range(1, 8))
def test_a_checkpoint_that_is_ahead_of_the_log_loses_no_record(tmp_path: Path, kept: int) -> None:
    spooled(tmp_path, range(6))
    log = Log(str(tmp_path))
    ingest(str(tmp_path), log)
    path = tmp_path / "log" / "00000001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    spooled(tmp_path, range(6, 8))
    ingest(str(tmp_path), Log(str(tmp_path)))
    assert taken(tmp_path) == list(range(8))


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b'{"seq":1}', b'{"seq":99,"hash":"x","positions":{}}', b'{"seq":1,"hash":1,"positions":[]}',
    b'{"seq":7,"hash":"","positions":{"0123456789abcdef":-5}}', b"[" * 100_000, b'{"seq":' + b"9" * 5000 + b"}", b"\xff",
])
def test_a_checkpoint_that_is_none_of_this_log_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    spooled(tmp_path, range(6))
    log = Log(str(tmp_path))
    ingest(str(tmp_path), log)
    (tmp_path / "log" / CHECKPOINT).write_bytes(content)
    assert ingest(str(tmp_path), log).records == 0
    assert taken(tmp_path) == list(range(6))


def test_the_records_are_on_the_disk_before_the_checkpoint_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, place = os.fdatasync, os.rename
    monkeypatch.setattr(os, "fdatasync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    monkeypatch.setattr(os, "rename", lambda *names, **where: (done.append(str(names[1])), place(*names, **where)))
    spooled(tmp_path, range(500))
    ingest(str(tmp_path), Log(str(tmp_path), segment_bytes=50_000))
    segments = {str(path) for path in (tmp_path / "log").glob("0*.jsonl")}
    assert segments <= set(done) and done[-1].endswith(CHECKPOINT), done


def test_a_rotation_at_any_moment_of_a_pass_takes_nothing_twice_and_nothing_out_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: dict[str, Callable[..., object]] = {name: getattr(spool, name) for name in ("opened", "rotated")}
    log, names, count = Log(str(tmp_path)), iter(f"01ARZ3NDEKTSV4RRFFQ69G{number:04d}" for number in range(1000)), 0

    def rotate_at(which: int, name: str, call: int, *, before: bool) -> None:
        """Write, rotate and write again around one call of this pass."""
        done = 0

        def wrapped(*words: object) -> object:
            nonlocal done, count
            done += 1
            hit = done == which
            if hit and before:
                rotate()
            found = real[name](*words)
            if hit and not before:
                rotate()
            return found

        def rotate() -> None:
            nonlocal count
            spooled(tmp_path, range(count, count + 2))
            (tmp_path / "spool.jsonl").rename(tmp_path / f"spool.jsonl.{next(names)}")
            spooled(tmp_path, range(count + 2, count + 4))
            count += 4

        monkeypatch.setattr(spool, name, wrapped)

    for name, which in (("opened", 1), ("rotated", 1), ("opened", 2), ("opened", 3)):
        for before in (True, False):
            spooled(tmp_path, range(count, count + 2))
            count += 2
            rotate_at(which, name, 1, before=before)
            ingest(str(tmp_path), log)
            monkeypatch.undo()
            ingest(str(tmp_path), log)
            assert taken(tmp_path) == list(range(count)), (name, which, before)
    (tmp_path / "log" / CHECKPOINT).unlink()
    assert ingest(str(tmp_path), log).records == 0 and whole(tmp_path)


def test_a_file_that_cannot_be_opened_just_now_is_not_read_from_its_start_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(str(tmp_path))
    for number, ulid in enumerate(ULIDS):
        spooled(tmp_path, range(number * 3, number * 3 + 3), f"spool.jsonl.{ulid}")
    ingest(str(tmp_path), log)
    spooled(tmp_path, range(18, 20))
    real = spool.opened
    for at in range(1, 8):
        calls = iter(range(1, 100))
        monkeypatch.setattr(spool, "opened", lambda path, calls=calls, at=at: real(path) if next(calls) != at else _no_descriptor())
        with pytest.raises(Error):
            ingest(str(tmp_path), log)
        monkeypatch.undo()
        # One that went away while it was looked for is not forgotten either.
        monkeypatch.setattr(spool, "opened", lambda path, at=at: None if path.endswith(ULIDS[at % 6]) else real(path))
        ingest(str(tmp_path), log)
        monkeypatch.undo()
    ingest(str(tmp_path), log)
    assert sorted(taken(tmp_path)) == list(range(20))


def _no_descriptor() -> None:
    raise Error("audit_unavailable", "audit log: spool: Too many open files (EMFILE)")


def test_files_that_begin_with_the_same_cut_line_are_two(tmp_path: Path) -> None:
    cut = framed(refused(99))[:-40] + b"\n"
    for number, ulid in enumerate(ULIDS):
        (tmp_path / f"spool.jsonl.{ulid}").write_bytes(cut + framed(refused(number)))
    found = ingest(str(tmp_path), Log(str(tmp_path)))
    assert (found.records, found.damaged) == (6, 6)
    assert taken(tmp_path) == list(range(6)) and whole(tmp_path)


@pytest.mark.parametrize("records", [0, 1])
def test_the_cut_end_of_a_file_that_was_rotated_is_said_once(tmp_path: Path, records: int) -> None:
    log = Log(str(tmp_path))
    path = tmp_path / f"spool.jsonl.{ULIDS[0]}"
    path.write_bytes(b"".join(framed(refused(number)) for number in range(records)) + framed(refused(9))[:-30])
    # Somebody may be in the middle of it.
    assert ingest(str(tmp_path), log).damaged == 0
    os.utime(path, (1, 1))
    assert ingest(str(tmp_path), log).damaged == 1
    assert ingest(str(tmp_path), log).damaged == 0
    assert types(tmp_path)[-1] == "audit.damaged" and taken(tmp_path) == list(range(records))
