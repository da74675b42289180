"""Closed segments are compressed, and nobody who reads the log knows the difference."""

from __future__ import annotations

import gzip
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.audit import packing
from stockade.audit.chain import Link
from stockade.audit.log import Log
from stockade.audit.packing import pack
from stockade.audit.query import Filter, events
from stockade.audit.retention import compress, prune
from stockade.audit.segments import numbers, read_segment
from stockade.audit.verify import Verdict, verify
from stockade.errors import Error


def write(audit: Path, records: range) -> Link:
    log = Log(str(audit), segment_bytes=4000)
    try:
        for number in records:
            link = log.append([{"type": "app.test", "number": number, "ts": "2026-01-01T00:00:00.000000000Z"}])
        return link
    finally:
        log.close()


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    write(tmp_path, range(120))
    return tmp_path


@pytest.fixture
def directory(audit: Path) -> Iterator[int]:
    descriptor = os.open(audit / "log", os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def checked(directory: int, link: Link | None = None) -> Verdict:
    return verify(directory, {} if link is None else {link.seq: link.hash})


def told(directory: int) -> list[int]:
    return [event["number"] for event in events(directory, Filter()) if event["type"] == "app.test"]


def test_a_log_with_packed_segments_reads_as_before_and_goes_on(audit: Path, directory: int) -> None:
    before, plain = told(directory), numbers(directory)
    sizes = sum(path.stat().st_size for path in (audit / "log").glob("0*.jsonl"))
    assert compress(directory) == len(plain) - 1 >= 3
    assert numbers(directory) == plain and told(directory) == before == list(range(120))
    assert sorted(path.name for path in (audit / "log").glob("0*"))[-1].endswith(".jsonl")
    assert sum(path.stat().st_size for path in (audit / "log").glob("0*")) < sizes / 2
    assert {path.stat().st_mode & 0o777 for path in (audit / "log").glob("*.gz")} == {0o600}
    last = write(audit, range(120, 200))
    assert checked(directory, last).damage is None and told(directory) == list(range(200))
    assert compress(directory) >= 1 and compress(directory) == 0 and checked(directory, last).damage is None


def test_what_is_packed_is_gzip_that_others_read(audit: Path, directory: int) -> None:
    plain = (audit / "log" / "00000001.jsonl").read_bytes()
    compress(directory)
    assert gzip.decompress((audit / "log" / "00000001.jsonl.gz").read_bytes()) == plain


@pytest.mark.parametrize("seed", range(40))
def test_a_change_of_a_packed_segment_is_found_or_changes_nothing(audit: Path, directory: int, seed: int) -> None:
    last = write(audit, range(120, 122))
    compress(directory)
    chance, path = random.Random(seed), audit / "log" / "00000002.jsonl.gz"
    data, whole = path.read_bytes(), gzip.decompress(path.read_bytes())
    at = chance.randrange(len(data))
    path.write_bytes([data[:at], data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1:], data + b"more"][seed % 3])
    segment = read_segment(directory, 2)
    assert segment is not None
    left = os.pread(segment, 1 << 20, 0)
    os.close(segment)
    assert (checked(directory, last).damage is None) == (left == whole), (seed, at)


def test_one_that_was_killed_in_between_leaves_a_log_that_is_whole(audit: Path, directory: int) -> None:
    plain = (audit / "log" / "00000001.jsonl").read_bytes()
    pack(directory, "00000001.jsonl")
    (audit / "log" / "00000001.jsonl").write_bytes(plain)
    (audit / "log" / "00000002.jsonl.gz.123").write_bytes(b"part")
    assert checked(directory).damage is None and told(directory) == list(range(120))
    assert compress(directory) >= 2 and checked(directory).damage is None and told(directory) == list(range(120))


def test_a_writer_does_not_fill_the_place_of_an_open_segment_that_went(audit: Path, directory: int) -> None:
    last = write(audit, range(120, 121))
    compress(directory)
    (audit / "log" / f"{numbers(directory)[-1]:08d}.jsonl").unlink()
    packed = numbers(directory)[-1]
    with pytest.raises(Error) as caught:
        write(audit, range(200, 201))
    assert caught.value.code == "audit_damaged"
    assert numbers(directory)[-1] == packed + 1 and not (audit / "log" / f"{packed:08d}.jsonl").exists()
    assert checked(directory, last).damage is not None


def test_what_is_too_old_goes_packed_or_not(audit: Path, directory: int) -> None:
    compress(directory)
    log = Log(str(audit))
    gone = prune(directory, log, 1)
    log.close()
    assert gone >= 3 and list((audit / "log").glob("*.gz")) == [] and checked(directory).damage is None


def test_a_segment_that_unpacks_to_more_than_one_holds_is_read_no_further(
        audit: Path, directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 1 << 20)
    compress(directory)
    (audit / "log" / "00000001.jsonl.gz").write_bytes(zlib.compress(bytes(8 << 20), wbits=31))
    segment = read_segment(directory, 1)
    assert segment is not None and os.fstat(segment).st_size < 2 << 20
    os.close(segment)
    assert checked(directory).damage is not None
