"""Whatever is done to the files of a log, with a head it is called whole only where it has every record as it was."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.audit.chain import opened
from stockade.audit.heads import read
from stockade.audit.log import Log
from stockade.audit.verify import verify
from stockade.errors import Error

ROUNDS = 25


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments in which writers were killed."""
    audit = tmp_path_factory.mktemp("audit")
    for part in range(8):
        log = Log(str(audit), segment_bytes=4000)
        for number in range(9):
            log.append([{"type": "app.test", "part": part, "number": number, "text": "a\u00e4\"\\ " * (number % 4)}] * (number % 3 + 1))
        log.close()
        if part % 2:
            with max((audit / "log").glob("0*.jsonl")).open("ab") as stream:
                stream.write(b'{"detail":{"half":"of a record' * (part - 1 or 1))
    log = Log(str(audit), segment_bytes=4000)
    log.append([{"type": "app.test"}], critical=True)
    log.close()
    return audit


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it to change."""
    shutil.copytree(written / "log", tmp_path / "log")
    yield tmp_path / "log"


def segments(log: Path) -> list[Path]:
    return sorted(log.glob("0*.jsonl"))


def records(log: Path) -> list[bytes]:
    """The lines that are records, of all segments."""
    lines = [line for path in segments(log) for line in path.read_bytes().split(b"\n")]
    return [line for line in lines if (found := opened(line)) is not None and found.whole]


def _flip(data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1:]


def _range(data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data))
    return start, min(len(data), start + random.choice((1, 2, 30, 400, 3000)))


def _without(data: bytes) -> bytes:
    start, end = _range(data)
    return data[:start] + data[end:]


def _twice(data: bytes) -> bytes:
    (start, end), at = _range(data), random.randrange(len(data))
    return data[:at] + data[start:end] + data[at:]


def _cut(data: bytes) -> bytes:
    return data[:random.randrange(len(data))]


def _by_line(change: Callable[[list[bytes]], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        change(lines)
        return b"".join(lines)

    return changed


def _lose(lines: list[bytes]) -> None:
    del lines[random.randrange(len(lines)):][:random.randrange(1, 4)]
    del lines[random.randrange(len(lines) or 1):random.randrange(len(lines) + 1)]


def _mark(lines: list[bytes]) -> None:
    """Make a line look like what a killed writer left."""
    at = random.randrange(len(lines))
    lines[at] = lines[at][:random.randrange(len(lines[at]))] + b"#torn\n"


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": _flip, "bytes taken out": _without, "bytes twice": _twice, "a cut": _cut, "lines taken out": _by_line(_lose),
    "lines in another order": _by_line(random.shuffle), "a line marked as torn": _by_line(_mark), "nothing left": lambda data: b"",
    "words at the end": lambda data: data + b"words\n", "zeros for the end": lambda data: data[:len(data) // 2] + bytes(len(data) // 2),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("which", ["any", "last"])
def test_no_change_of_a_file_is_called_whole_whatever_is_written_after_it(copied: Path, what: str, which: str) -> None:
    random.seed(f"{what} {which}")
    whole = {path: path.read_bytes() for path in copied.iterdir()}
    before, directory = records(copied), os.open(copied, os.O_RDONLY)
    marks = {head.seq: head.hash for head in read(directory)}
    assert verify(directory, marks).damage is None and max(marks) == len(before)
    for at in range(ROUNDS):
        path = segments(copied)[-1] if which == "last" else random.choice(segments(copied))
        path.write_bytes(CHANGES[what](path.read_bytes()))
        _go_on(copied, heads=at % 3 != 0)
        assert verify(directory, marks).damage is not None or records(copied)[:len(before)] == before, (what, at)
        for left in set(copied.iterdir()) - set(whole):
            left.unlink()
        for path, data in whole.items():
            path.write_bytes(data)
    os.close(directory)


def _go_on(log: Path, *, heads: bool) -> None:
    """What runs after it, also where the heads went too: the marks are those of an anchor."""
    if not heads:
        (log / "heads.jsonl").unlink()
    for _ in range(2):
        writer = Log(str(log.parent), segment_bytes=4000)
        try:
            writer.append([{"type": "app.test", "number": 99}])
        except Error as err:
            assert err.code == "audit_damaged"
        try:
            writer.close()
        except Error as err:
            assert err.code == "audit_damaged"


@pytest.mark.parametrize("what", ["removed", "swapped", "renamed", "twice"])
def test_no_change_of_names_is_called_whole(copied: Path, what: str) -> None:
    directory = os.open(copied, os.O_RDONLY)
    marks = {head.seq: head.hash for head in read(directory)}
    count = len(segments(copied))
    for at in range(count):
        paths, whole = segments(copied), {path: path.read_bytes() for path in copied.iterdir()}
        other = paths[(at + 1) % count]
        if what == "removed":
            paths[at].unlink()
        elif what == "swapped":
            paths[at].write_bytes(whole[other])
            other.write_bytes(whole[paths[at]])
        elif what == "renamed":
            paths[at].rename(other)
        else:
            (copied / f"{count + 1:08d}.jsonl").write_bytes(whole[paths[at]])
        _go_on(copied, heads=at % 2 == 0)
        assert verify(directory, marks).damage is not None, at
        for left in set(copied.iterdir()) - set(whole):
            left.unlink()
        for path, data in whole.items():
            path.write_bytes(data)
    os.close(directory)
