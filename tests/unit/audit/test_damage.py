"""Every kind of damage at random places of a real log is found, and called by its name."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.audit.chain import Link, sealed
from stockade.audit.log import Log
from stockade.audit.verify import Verdict, verify
from stockade.errors import Error

RECORDS = 10_000
SEEDS = range(12)
Lines = list[bytes]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of five segments, as it was written."""
    audit = tmp_path_factory.mktemp("audit")
    log = Log(str(audit), segment_bytes=400_000)
    for first in range(0, RECORDS, 50):
        log.append([{"type": "app.test", "number": number, "pad": "x" * (number % 60)} for number in range(first, first + 50)])
    log.close()
    assert len(list((audit / "log").glob("0*.jsonl"))) > 3
    return audit / "log"


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it to damage."""
    for path in written.glob("0*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def checked(path: Path) -> Verdict:
    """What verify says of a directory."""
    directory = os.open(path, os.O_RDONLY)
    try:
        return verify(directory)
    finally:
        os.close(directory)


def _flip(lines: Lines, at: int) -> int:
    byte = random.randrange(len(lines[at]) - 1)
    new = lines[at][byte] ^ (1 << random.randrange(7))
    lines[at] = lines[at][:byte] + bytes([ord("~") if new == 10 else new]) + lines[at][byte + 1:]
    return at


def _drop(lines: Lines, at: int) -> int:
    del lines[at]
    return at


def _twice(lines: Lines, at: int) -> int:
    lines.insert(at + 1, lines[at])
    return at + 1


def _strange(lines: Lines, at: int) -> int:
    lines.insert(at, sealed({"type": "app.strange"}, Link(seq=at, hash="0" * 64))[0])
    return at


def _swap(lines: Lines, at: int) -> int:
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    return at


def _anew(lines: Lines, at: int) -> int:
    """Written anew with a hash that fits: only the link of the next one tells."""
    import json

    record = json.loads(lines[at])
    bare = {key: value for key, value in record.items() if key not in ("hash", "prev", "seq")}
    lines[at] = sealed({**bare, "number": -1}, Link(seq=record["seq"] - 1, hash=record["prev"]))[0]
    return at


KINDS: dict[str, tuple[str, Callable[[Lines, int], int]]] = {
    "a flipped bit": ("edited", _flip), "a record taken out": ("dropped", _drop), "a record twice": ("inserted", _twice),
    "a record of somebody else": ("inserted", _strange), "two in another order": ("reordered", _swap),
    "one written anew": ("edited", _anew),
}


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """A log of one segment whose end is to be damaged."""
    log = Log(str(tmp_path))
    for number in range(8):
        log.append([{"type": "app.test", "number": number}])
    log.close()
    return tmp_path


def gone_on(audit: Path) -> str:
    """What a further writer is told: empty where it has written."""
    log = Log(str(audit))
    try:
        log.append([{"type": "app.test", "number": 99}])
    except Error as err:
        return err.code
    finally:
        log.close()
    return ""


@pytest.mark.parametrize("line", [-1, -2])
def test_no_writer_hides_a_flipped_bit_at_the_end(ended: Path, line: int) -> None:
    path = ended / "log" / "00000001.jsonl"
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    start = len(b"".join(lines[:line]))
    for at in range(start, start + len(lines[line])):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
        told = gone_on(ended)
        assert told == "audit_damaged" or line == -2, at
        assert checked(ended / "log").damage is not None, at


ENDS: dict[str, Callable[[bytes], bytes]] = {
    "an object that is no record": lambda last: b'{"a":1}\n', "one without a newline": lambda last: b'{"a":1}',
    "a changed record without a newline": lambda last: last[:-1].replace(b"number", b"numbed"),
    "a part that ends like a line": lambda last: last[:40] + b"\n", "an empty line": lambda last: last + b"\n",
    "a record and something": lambda last: last[:-1] + b"x", "a record with the end of a part": lambda last: last[:-1] + b"#torn\n",
    "words": lambda last: last + b"words\n", "two parts": lambda last: last[:30] + b"\n" + last[:50],
}


@pytest.mark.parametrize("what", ENDS)
def test_no_writer_goes_on_behind_what_no_killed_one_can_have_left(ended: Path, what: str) -> None:
    path = ended / "log" / "00000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + ENDS[what](lines[-1]))
    size = path.stat().st_size
    assert gone_on(ended) == "audit_damaged" and path.stat().st_size == size
    assert checked(ended / "log").damage is not None


def test_an_undamaged_log_is_whole(copied: Path) -> None:
    verdict = checked(copied)
    segments = len(list(copied.iterdir()))
    assert (verdict.damage, verdict.records) == (None, RECORDS + segments)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", KINDS)
def test_damage_is_found_and_called_by_its_name(copied: Path, what: str, seed: int) -> None:
    random.seed(seed)
    kind, damage = KINDS[what]
    path = random.choice(sorted(copied.iterdir())[:-1])
    lines = path.read_bytes().splitlines(keepends=True)
    first = checked(copied).records and int(_seq(lines[0]))
    at = damage(lines, random.randrange(1, len(lines) - 2))
    path.write_bytes(b"".join(lines))
    found = checked(copied).damage
    assert found is not None and (found.kind, found.seq) == (kind, first + at), found


def _seq(line: bytes) -> int:
    import json

    return int(json.loads(line)["seq"])


@pytest.mark.parametrize("which", [0, 1, -2])
def test_a_segment_that_is_gone_is_named(copied: Path, which: int) -> None:
    paths = sorted(copied.iterdir())
    lost = _seq(paths[which].read_bytes().split(b"\n")[0])
    paths[which].unlink()
    found = checked(copied).damage
    assert found is not None and (found.kind, found.seq) == ("missing_segment", lost), found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_at_any_byte_of_the_last_record_is_a_torn_tail(copied: Path, seed: int) -> None:
    random.seed(seed)
    path = sorted(copied.iterdir())[-1]
    data = path.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(data[:random.randrange(last + 1, len(data))])
    found = checked(copied).damage
    assert found is not None and found.kind == "torn_tail", found
