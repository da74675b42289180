"""The records that Python writes: the launcher's form, whole or an error, kept as long as policy says."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from stockade.process import record, spool


def row(number: int, pad: int = 0) -> dict[str, object]:
    return {"schema": "stockade.receipt.v1", "record": "launch", "run_id": f"R{number}", "pad": "é" * pad}


@pytest.mark.parametrize("pad", [0, 1, 8, 9, 10, 80, 81, 150, 1650, 16_600])
def test_the_frame_counts_its_own_digits(pad: int) -> None:
    data = record.frame(row(1, pad))
    assert data.startswith(b"\n{") and data.endswith(b"}\n")
    assert json.loads(data)["len"] == len(data) - 2


def test_readers_find_what_was_written_and_the_file_is_private(tmp_path: Path) -> None:
    for number in range(3):
        record.append(str(tmp_path), row(number))
    assert list(spool.runs(tmp_path)) == ["R0", "R1", "R2"]
    assert (tmp_path / "spool.jsonl").stat().st_mode & 0o777 == 0o600


def test_many_writers_lose_nothing_while_the_file_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "ROTATE_BYTES", 4000)

    def write(writer: int) -> None:
        for number in range(100):
            record.append(str(tmp_path), row(writer * 1000 + number))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(spool.runs(tmp_path)) == 400
    assert len(spool.files(tmp_path)) > 2


@pytest.mark.parametrize("planted", ["link", "fifo", "directory", "nothing"])
def test_what_is_no_file_is_an_error(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "spool.jsonl"
    if planted == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif planted == "fifo":
        os.mkfifo(path)
    elif planted == "directory":
        path.mkdir()
    with pytest.raises(OSError):
        record.append(str(tmp_path if planted != "nothing" else tmp_path / "missing"), row(1))
    assert not (tmp_path / "elsewhere").exists()
