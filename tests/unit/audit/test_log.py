"""The log under many writers, killed writers and a host that does not take the bytes."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.audit.chain import Link
from stockade.audit.log import Log
from stockade.audit.verify import Verdict, verify
from stockade.errors import Error
from support.live import wait_until
from support.spooled import log_bytes

SPAWN = multiprocessing.get_context("fork")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """An empty log."""
    made = Log(str(tmp_path))
    yield made
    made.close()


def checked(audit: Path) -> Verdict:
    """What verify says."""
    directory = os.open(audit / "log", os.O_RDONLY)
    try:
        return verify(directory)
    finally:
        os.close(directory)


def _write(audit: Path, writer: int, count: int) -> None:
    log = Log(str(audit), segment_bytes=100_000)
    for number in range(count):
        log.append([{"type": "app.test", "writer": writer, "number": number}])


def test_eight_processes_lose_nothing_and_keep_one_chain_while_segments_change(tmp_path: Path) -> None:
    writers = [SPAWN.Process(target=_write, args=(tmp_path, writer, 300)) for writer in range(8)]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
        assert one.exitcode == 0
    segments = len(list((tmp_path / "log").glob("0*.jsonl")))
    verdict = checked(tmp_path)
    assert (verdict.damage, verdict.records) == (None, 8 * 300 + segments)
    assert segments > 3


def test_children_of_a_writer_have_a_lock_of_their_own(tmp_path: Path, log: Log) -> None:
    log.append([{"type": "app.test"}])

    def write(writer: int) -> None:
        for number in range(200):
            log.append([{"type": "app.test", "writer": writer, "number": number}])

    writers = [SPAWN.Process(target=write, args=(writer,)) for writer in range(4)]
    for one in writers:
        one.start()
    write(9)
    for one in writers:
        one.join(60)
        assert one.exitcode == 0
    assert (checked(tmp_path).damage, checked(tmp_path).records) == (None, 2 + 5 * 200)


def test_a_write_that_was_cut_at_any_byte_is_named_and_the_chain_goes_on(tmp_path: Path, log: Log) -> None:
    log.append([{"type": "app.test", "number": 1}])
    path = tmp_path / "log" / "00000001.jsonl"
    whole = path.stat().st_size
    log.append([{"type": "app.test", "number": 2}, {"type": "app.test", "number": 3}])
    data = path.read_bytes()
    first = data.index(b"\n", whole) + 1
    for cut in range(whole + 1, len(data)):
        path.write_bytes(data[:cut])
        (tmp_path / "log" / "heads.jsonl").unlink()  # which comes later, on the disk too
        # Without its newline alone a record is one.
        kept = 2 + (cut >= first - 1) + (cut >= len(data) - 1)
        other = Log(str(tmp_path))
        last = other.append([{"type": "app.test", "number": 4}])
        other.close()
        torn = cut not in (first - 1, first, len(data) - 1)
        assert last.seq == kept + 1 + torn, cut
        verdict = checked(tmp_path)
        assert (verdict.damage, verdict.torn, verdict.records) == (None, int(torn), last.seq), cut


def test_a_repair_that_was_cut_is_repaired_too(tmp_path: Path, log: Log) -> None:
    log.append([{"type": "app.test", "number": 1}])
    path = tmp_path / "log" / "00000001.jsonl"
    with path.open("ab") as stream:
        stream.write(b'{"half":')
    torn = path.stat().st_size
    log.append([{"type": "app.test", "number": 2}])
    data = path.read_bytes()
    for cut in range(torn + 1, data.index(b"\n", torn + 1) + 1):
        path.write_bytes(data[:cut])
        (tmp_path / "log" / "heads.jsonl").unlink()
        other = Log(str(tmp_path))
        other.append([{"type": "app.test", "number": 3}])
        other.close()
        assert checked(tmp_path).damage is None, cut


def test_killed_writers_leave_a_log_that_goes_on(tmp_path: Path) -> None:
    for _ in range(15):
        writer = SPAWN.Process(target=_write, args=(tmp_path, 1, 1_000_000))
        goal = log_bytes(tmp_path) + random.randrange(1, 60_000)
        writer.start()
        wait_until(lambda goal=goal: log_bytes(tmp_path) >= goal, "the writer writes")
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(20)
    log = Log(str(tmp_path))
    log.append([{"type": "app.test", "number": 0}])
    log.close()
    verdict = checked(tmp_path)
    assert verdict.damage is None and verdict.records > 100


def test_a_stuck_holder_of_the_lock_is_an_error_in_time(tmp_path: Path, log: Log) -> None:
    held = os.open(tmp_path / "log" / "lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    begun = time.monotonic()
    with pytest.raises(Error) as caught:
        log.append([{"type": "app.test"}], timeout_s=0.2)
    assert caught.value.code == "audit_unavailable" and time.monotonic() - begun < 2
    os.close(held)
    assert log.append([{"type": "app.test"}]).seq > 0


def test_an_event_without_a_canonical_spelling_leaves_nothing_of_its_batch(tmp_path: Path, log: Log) -> None:
    last = log.append([{"type": "app.test"}])
    for bad in ({"x": 1.5}, {"x": 1 << 60}, {"x": {1: 2}}, {"x": "\ud800"}, {"x": "y" * (1 << 20)}, {"x": b""}):
        with pytest.raises(Error) as caught:
            log.append([{"type": "app.test"}, bad])
        assert caught.value.code == "audit_invalid"
    assert log.append([{"type": "app.test"}]) .seq == last.seq + 1
    assert checked(tmp_path).damage is None


@pytest.mark.parametrize("planted", ["link", "fifo", "directory"])
def test_what_was_planted_under_the_name_of_a_segment_is_refused(tmp_path: Path, log: Log, planted: str) -> None:
    path = tmp_path / "log" / "00000001.jsonl"
    if planted == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif planted == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(Error) as caught:
        log.append([{"type": "app.test"}])
    assert caught.value.code == "audit_unavailable"
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_an_error_and_leaves_no_half_of_a_record(tmp_path: Path, log: Log) -> None:
    import resource

    log.append([{"type": "app.test"}])
    size = (tmp_path / "log" / "00000001.jsonl").stat().st_size

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            Log(str(tmp_path)).append([{"type": "app.test", "pad": "x" * 1000}])
        except Error as err:
            os._exit(0 if err.code == "audit_unavailable" else 1)
        os._exit(2)

    writer = SPAWN.Process(target=limited)
    writer.start()
    writer.join(20)
    assert writer.exitcode == 0
    assert (tmp_path / "log" / "00000001.jsonl").stat().st_size == size
    log.append([{"type": "app.test"}])
    assert checked(tmp_path) == Verdict(records=3, last=checked(tmp_path).last)


def test_the_first_record_follows_nothing(tmp_path: Path, log: Log) -> None:
    assert log.append([]) == Link(seq=1, hash=checked(tmp_path).last.hash)
