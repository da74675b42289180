"""Who looks whether the log would go on is told what a writer would be told, and writes nothing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.audit.health import fault
from stockade.audit.keys import public_key
from stockade.audit.log import Log
from stockade.errors import Error


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """A log of three segments with heads."""
    log = Log(str(tmp_path), segment_bytes=1000)
    for number in range(12):
        log.append([{"type": "app.test", "number": number}], critical=True)
    log.close()
    return tmp_path


def last(audit: Path) -> Path:
    """The open segment."""
    return max((audit / "log").glob("0*.jsonl"))


def files(audit: Path) -> dict[str, bytes]:
    """All that is there."""
    return {path.name: path.read_bytes() for path in (audit / "log").iterdir() if path.is_file()}


def test_a_log_that_goes_on_has_no_fault(audit: Path, tmp_path: Path) -> None:
    before = files(audit)
    assert fault(str(audit)) is None and files(audit) == before
    with last(audit).open("ab") as stream:
        stream.write(b'{"torn":')
    assert fault(str(audit)) is None
    (tmp_path / "new").mkdir()
    assert fault(str(tmp_path / "new")) is None and not list((tmp_path / "new").iterdir())
    Log(str(tmp_path / "new")).close()
    assert fault(str(tmp_path / "new")) is None


FAULTS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "a changed end": ("audit_damaged", "verify", lambda audit: last(audit).write_bytes(last(audit).read_bytes().replace(b"number", b"numbed"))),
    "an end that is gone": ("audit_damaged", "verify", lambda audit: last(audit).write_bytes(last(audit).read_bytes()[:-1].rpartition(b"\n")[0] + b"\n")),
    "a planted link": ("audit_unavailable", "move away", lambda audit: (audit / "log/00000099.jsonl").symlink_to(audit)),
    "a directory": ("audit_unavailable", "move away", lambda audit: (audit / "log/00000099.jsonl").mkdir()),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_keeps_a_writer_from_going_on_is_told_with_what_helps(audit: Path, what: str) -> None:
    code, hint, spoil = FAULTS[what]
    spoil(audit)
    found = fault(str(audit))
    assert found is not None and found.code == code and hint in found.hint, found
    log = Log(str(audit), segment_bytes=1000)
    with pytest.raises(Error) as caught:
        log.append([{"type": "app.test"}], critical=True)
    assert caught.value.code == code and hint in caught.value.hint


def test_a_lock_that_is_held_is_told(audit: Path) -> None:
    held = os.open(audit / "log" / "lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    found = fault(str(audit), 0.02)
    os.close(held)
    assert found is not None and "got none in 0.02 s, expected one" in found.message and "lock" in found.hint
    assert fault(str(audit)) is None


@pytest.mark.parametrize("content", [b"", b"zz" * 32, b"ab" * 31, b"ab" * 33, b"\xff" * 64, b"ab " * 32, b"\x00"])
def test_a_public_key_of_another_form_is_told_without_a_word_of_python(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.pub"
    path.write_bytes(content)
    with pytest.raises(Error) as caught:
        public_key(str(path), "give another")
    assert caught.value.message.endswith("expected 64 hexadecimal characters") and caught.value.hint == "give another"


def test_a_directory_is_no_public_key(tmp_path: Path) -> None:
    with pytest.raises(Error) as caught:
        public_key(str(tmp_path))
    assert caught.value.message.endswith("Is a directory (EISDIR)") and "Errno" not in caught.value.message
