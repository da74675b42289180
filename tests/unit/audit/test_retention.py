"""What is too old goes, the log says what went, and nobody else can take it away like that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.audit.log import Log
from stockade.audit.retention import prune
from stockade.audit.segments import numbers
from stockade.audit.verify import verify

DAY_S = 86_400


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """A log of several segments, each a day older than the next."""
    log = Log(str(tmp_path), segment_bytes=10_000)
    for number in range(400):
        log.append([{"type": "app.test", "number": number}])
    log.close()
    paths = sorted((tmp_path / "log").glob("0*.jsonl"))
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (time.time() - age * DAY_S - 60, time.time() - age * DAY_S - 60))
    assert len(paths) > 4
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
            if count > 2:
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
    old = first.stat()
    first.write_bytes(first.read_bytes()[:-5])
    os.utime(first, (old.st_mtime, old.st_mtime))
    log = Log(str(audit), segment_bytes=10_000)
    assert prune(directory, log, DAY_S) == 0
    log.close()
    assert verify(directory).damage is not None
