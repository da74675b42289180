"""What is too old goes, the log says what went, and nobody else can take it away like that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.audit.ingest import CHECKPOINT, ingest
from stockade.audit.log import Log
from stockade.audit.retention import prune
from stockade.audit.segments import numbers
from stockade.audit.verify import verify
from support.spooled import framed, refused, spooled, taken, whole

DAY_S = 86_400


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """A log of several segments, each a day older than the next."""
    log = Log(str(tmp_path), segment_bytes=10_000)
    for age in range(5, -1, -1):
        then = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime(time.time() - age * DAY_S - 60))
        log.append([{"type": "app.test", "number": number, "ts": then} for number in range(60 if age else 5)])
    log.close()
    paths = sorted((tmp_path / "log").glob("0*.jsonl"))
    for path in paths:
        os.utime(path, (1, 1))  # of a copy: what counts is what the records say
    assert len(paths) == 6
    return tmp_path


@pytest.fixture
def directory(audit: Path) -> Iterator[int]:
    """Its open directory."""
    opened = os.open(audit / "log", os.O_RDONLY)
    yield opened
    os.close(opened)


def test_old_segments_go_and_the_range_is_named(audit: Path, directory: int) -> None:
    whole, before = verify(directory), numbers(directory)
    log = Log(str(audit), segment_bytes=10_000)
    assert prune(directory, log, 2 * DAY_S) == len(before) - 2
    assert prune(directory, log, 2 * DAY_S) == 0
    verdict = verify(directory)
    assert verdict.damage is None and verdict.pruned > 0
    assert verdict.pruned + verdict.records == verdict.last.seq == whole.last.seq + 1
    last = log.append([{"type": "app.test"}])
    log.close()
    after = verify(directory)
    assert (after.last, after.damage, after.pruned) == (last, None, verdict.pruned)


def test_the_open_segment_stays_whatever_its_age(audit: Path, directory: int) -> None:
    log = Log(str(audit), segment_bytes=10_000)
    last = numbers(directory)[-1]
    prune(directory, log, 0)
    log.close()
    assert numbers(directory)[0] == last and verify(directory).damage is None


def test_a_segment_that_somebody_removed_is_damage_also_after_pruning(audit: Path, directory: int) -> None:
    log = Log(str(audit), segment_bytes=10_000)
    prune(directory, log, 3 * DAY_S)
    log.close()
    first = numbers(directory)[0]
    (audit / "log" / f"{first:08d}.jsonl").unlink()
    damage = verify(directory).damage
    assert damage is not None and (damage.kind, damage.seq) == ("missing_segment", 1)


def test_a_killed_pruner_leaves_a_whole_log(audit: Path, directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(str(audit), segment_bytes=10_000)
    pid = os.fork()
    if pid == 0:
        count = 0

        def unlink(name: str, *, dir_fd: int) -> None:
            nonlocal count
            count += 1
            if count > 4:  # of two segments the plain and the packed name
                os._exit(0)
            real(name, dir_fd=dir_fd)

        real = os.unlink
        monkeypatch.setattr(os, "unlink", unlink)
        prune(directory, log, DAY_S)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    verdict = verify(directory)
    assert verdict.damage is None and verdict.pruned > 0 and numbers(directory)[0] == 3
    prune(directory, log, DAY_S)
    log.close()
    assert verify(directory).damage is None and numbers(directory)[0] > 3


def test_damage_stays_to_be_seen(audit: Path, directory: int) -> None:
    first = audit / "log" / "00000001.jsonl"
    first.write_bytes(first.read_bytes()[:-5])
    log = Log(str(audit), segment_bytes=10_000)
    assert prune(directory, log, DAY_S) == 0
    log.close()
    assert verify(directory).damage is not None


def _spooled_over_months(tmp_path: Path, segment_bytes: int = 20_000) -> Log:
    """A log of several segments, all of a spool that is there still, and all of it old."""
    spooled(tmp_path, range(90), "spool.jsonl.01ARZ3NDEKTSV4RRFFQ69G5FAA")
    log = Log(str(tmp_path), segment_bytes=segment_bytes)
    for _ in range(5):
        spooled(tmp_path, range(90, 120))
        ingest(str(tmp_path), log)
    return log


def test_what_was_pruned_is_not_taken_from_the_spool_again_without_a_checkpoint(tmp_path: Path) -> None:
    log = _spooled_over_months(tmp_path)
    before = len(taken(tmp_path))
    assert ingest(str(tmp_path), log, keep_s=10**9).records == 0 and len(taken(tmp_path)) == before
    ingest(str(tmp_path), log, keep_s=0)
    left = taken(tmp_path)
    assert len(left) < before
    (tmp_path / "log" / CHECKPOINT).unlink()
    assert ingest(str(tmp_path), log).records == 0 and taken(tmp_path) == left and whole(tmp_path)


def test_no_file_of_the_spool_goes_before_the_log_has_it(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    names = [f"spool.jsonl.01ARZ3NDEKTSV4RRFFQ69G5FA{letter}" for letter in "ABCD"]
    for number, name in enumerate(names[:3]):
        spooled(tmp_path, range(number * 5, number * 5 + 5), name)
        os.utime(tmp_path / name, (1, 1))
    with (tmp_path / names[0]).open("ab") as stream:
        stream.write(b"\n")  # of a launcher that looked whether it can write
    os.utime(tmp_path / names[0], (1, 1))
    spooled(tmp_path, range(15, 20), names[3])
    spooled(tmp_path, range(20, 25))
    os.utime(tmp_path / "spool.jsonl", (1, 1))
    assert ingest(str(tmp_path), log, keep_s=1000).records == 25
    assert {path.name for path in tmp_path.iterdir()} == {"log", "spool.jsonl", *names}
    with (tmp_path / names[1]).open("ab") as stream:
        stream.write(framed(refused(25)))
    os.utime(tmp_path / names[1], (1, 1))
    assert ingest(str(tmp_path), log, keep_s=1000).records == 1
    assert {path.name for path in tmp_path.iterdir()} == {"log", "spool.jsonl", names[1], names[3]}
    assert ingest(str(tmp_path), log, keep_s=1000).records == 0
    assert {path.name for path in tmp_path.iterdir()} == {"log", "spool.jsonl", names[3]}
    assert sorted(taken(tmp_path)) == list(range(26)) and whole(tmp_path)
