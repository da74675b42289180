"""A log from elsewhere gets a verdict, of whatever owner, whatever somebody made of it, and while it changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from stockade.audit import verify as module
from stockade.audit.chain import Link, opened, sealed
from stockade.audit.heads import Head, parse, read
from stockade.audit.keys import signer
from stockade.audit.log import Log
from stockade.audit.query import Filter, backwards, events
from stockade.audit.retention import prune
from stockade.audit.verify import Verdict, verify
from stockade.cli import auditcheck
from stockade.errors import Error

WHEN = "2026-11-30T12:00:00.000000000Z"


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[int]:
    """The open directory of a copy of six segments."""
    log = Log(str(tmp_path), segment_bytes=2000)
    for number in range(40):
        log.append([{"type": "app.test", "number": number, "ts": WHEN}])
    log.close()
    directory = os.open(tmp_path / "log", os.O_RDONLY)
    yield directory
    os.close(directory)


def whole_with(directory: int, path: Path, lines: list[bytes]) -> Verdict:
    """What verify says of a log of these lines alone."""
    for old in path.glob("0*.jsonl"):
        old.unlink()
    (path / "00000001.jsonl").write_bytes(b"".join(lines))
    return verify(directory)


def test_a_copy_of_another_owner_that_cannot_be_written_is_checked(copy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "log").iterdir():
        path.chmod(0o400)
    (tmp_path / "log").chmod(0o500)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert verify(copy).damage is None and verify(copy).records > 40
    assert len(list(events(copy, Filter(kind="app.test")))) == len([event for event in backwards(copy) if event["type"] == "app.test"]) == 40
    assert read(copy)
    (tmp_path / "log").chmod(0o700)


CRAFTED: list[dict[str, Any]] = [
    {"type": "audit.pruned", "detail": {}}, {"type": "audit.pruned", "detail": {"ends": {}}}, {"type": "audit.pruned", "detail": {"ends": [{}, 1, []]}},
    {"type": "audit.torn", "detail": {}}, {"type": "audit.torn", "detail": []}, {"type": ["audit.pruned"], "detail": {"ends": [{"last_seq": []}]}},
    {"type": None, "tiers": [], "actor": 7, "ts": {}, "reasons": 5, "request": "x", "plan": 3, "source": {"spool": 3}},
]


@pytest.mark.parametrize("event", CRAFTED)
def test_a_record_of_another_form_is_no_fault_of_the_reader(copy: int, tmp_path: Path, event: dict[str, Any]) -> None:
    first, link = sealed({"type": "app.test"}, Link())
    second, _ = sealed(event, link)
    assert whole_with(copy, tmp_path / "log", [first, second]).damage is None
    assert whole_with(copy, tmp_path / "log", [first, first[:30] + b"#torn\n", second]).damage is not None
    (tmp_path / "log" / "00000001.jsonl").rename(tmp_path / "log" / "00000002.jsonl")
    assert verify(copy).damage is not None
    assert not list(events(copy, Filter(tier="strict", app="x", plan="y", since="2020", downgrade=True)))


BROKEN = [b"[" * 100_000, b'{"hash":"' + b"0" * 64 + b'","prev":"' + b"0" * 64 + b'","seq":' + b"9" * 5000 + b"}", b"", b"\x00" * 100, b"\xff\xfe", b"{}",
          b'{"a":' * 50_000, b'{"hash":1,"prev":2,"seq":3}', b'{"hash":"","prev":' + b"1" * 64 + b',"seq":2}', b"null", b"#torn", b'{"seq":1e400}',
          b'{"detail":{"hash":"x"},"hash":{},"prev":"' + b"0" * 64 + b'","seq":2}']


@pytest.mark.parametrize("line", BROKEN)
@pytest.mark.parametrize("end", [b"\n", b"#torn\n", b""])
def test_a_line_that_is_no_record_is_damage_and_no_fault_of_the_reader(copy: int, tmp_path: Path, line: bytes, end: bytes) -> None:
    first, link = sealed({"type": "app.test"}, Link())
    second, _ = sealed({"type": "app.test"}, link)
    if line + end:
        assert whole_with(copy, tmp_path / "log", [first, line + end]).damage is not None
    assert whole_with(copy, tmp_path / "log", [first, line + (end or b"\n"), second]).damage is not None
    assert whole_with(copy, tmp_path / "log", [line + (end or b"\n"), first]).damage is not None
    list(events(copy, Filter()))
    list(backwards(copy))
    for text in (line, line + end):
        parse(text)


SPELLINGS = {
    "a blank": b'{"a": 1,', "a blank at the end": b'{"a":1 ,', "words before it": b'garbage{"a":1,', "words alone": b"garbage,", "a key twice": b'{"a":1,"a":1,',
    "another order": b'{"b":1,"a":1,', "an escape": b'{"a":"\\u0061",', "a slash": b'{"a":"\\/",', "a float": b'{"a":1.0,', "a power": b'{"a":1e3,',
    "minus nothing": b'{"a":-0,', "a large number": b'{"a":9007199254740993,', "a NaN": b'{"a":NaN,', "a tab": b'{"a":"\t",', "a list not ended": b'{"a":[1,',
}


@pytest.mark.parametrize("what", SPELLINGS)
@pytest.mark.parametrize("behind", [0, 1])
def test_another_spelling_is_no_record_also_with_a_hash_that_fits(copy: int, tmp_path: Path, what: str, behind: int) -> None:
    first, link = sealed({"a": 1}, Link())
    before, after = SPELLINGS[what], b'"prev":"%s","seq":2}' % link.hash.encode()
    own = sha256(link.hash.encode() + before + after).hexdigest()
    line = before + b'"hash":"%s",' % own.encode() + after + b"\n"
    more = [sealed({"a": 2}, Link(seq=2, hash=own))[0]][:behind]
    damage = whole_with(copy, tmp_path / "log", [first, line, *more]).damage
    assert damage is not None and (damage.kind, damage.seq, damage.line) == ("edited", 2, 2)


def test_a_log_that_is_pruned_while_it_is_read_is_read_to_its_end(copy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(str(tmp_path), segment_bytes=2000)
    found = events(copy, Filter())
    back = backwards(copy)
    assert next(found)["seq"] == 1 and next(back)["seq"] > 40
    real, calls = module.read_segment, iter(range(100))

    def pruned_on_the_way(directory: int, number: int) -> int | None:
        if next(calls) == 1:
            assert prune(directory, log, 0) > 3
        return real(directory, number)

    monkeypatch.setattr(module, "read_segment", pruned_on_the_way)
    verdict = verify(copy)
    assert verdict.damage is None and verdict.pruned > 0
    assert list(found)[-1]["type"] == "audit.pruned"
    assert list(back)
    log.close()


def test_many_heads_are_told_apart_without_comparing_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Head, "__eq__", None)
    found = [Head(seq=seq, hash="ab" * 32, ts=WHEN, key="0" * 16, sig="00") for seq in range(1, 3000)]
    assert len(auditcheck._told_apart(found, None).others) == 2999


@pytest.mark.known_gap("no_cryptography")
def test_heads_of_pruned_records_go_with_them(copy: int, tmp_path: Path) -> None:
    log = Log(str(tmp_path), segment_bytes=2000, signer=signer(str(tmp_path / "keys")))
    for number in range(20):
        log.append([{"type": "app.test", "number": number, "ts": WHEN}], critical=True)
    before = read(copy)
    prune(copy, log, 0)
    log.close()
    verdict, after = verify(copy, {head.seq: head.hash for head in read(copy)}), read(copy)
    assert verdict.damage is None and verdict.pruned > 0
    assert [head for head in before if head.seq > verdict.pruned] == after[:-1] and len(after) < len(before)


def test_damage_behind_what_was_pruned_counts_the_records_that_are_there(copy: int, tmp_path: Path) -> None:
    log = Log(str(tmp_path), segment_bytes=2000)
    prune(copy, log, 0)
    for number in range(5):
        log.append([{"type": "app.test", "number": number}])
    log.close()
    path = max((tmp_path / "log").glob("0*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b"number", b"numbed")]))
    there = sum(len(path.read_bytes().splitlines()) for path in (tmp_path / "log").glob("0*.jsonl"))
    assert verify(copy).records == there - 1


def test_a_last_line_of_a_segment_that_was_written_anew_is_named_where_it_is(copy: int, tmp_path: Path) -> None:
    path = tmp_path / "log" / "00000001.jsonl"
    rest = path.read_bytes().splitlines(keepends=True)[:-1]
    before = opened(rest[-1].rstrip(b"\n"))
    assert before is not None
    path.write_bytes(b"".join(rest) + sealed({"type": "app.forged"}, Link(seq=before.seq, hash=before.hash))[0])
    damage = verify(copy).damage
    assert damage is not None and (damage.kind, damage.segment, damage.line, damage.seq) == ("edited", 1, len(rest) + 1, before.seq + 1)


def test_a_record_that_is_being_written_is_no_torn_tail(copy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = max((tmp_path / "log").glob("0*.jsonl"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert verify(copy).damage == module.Damage(kind="torn_tail", seq=verify(copy).last.seq + 1, segment=int(path.stem), line=whole.count(b"\n"))
    real = module.is_torn

    def goes_on(line: bytes, *, ended: bool) -> bool:
        path.write_bytes(whole)
        return real(line, ended=ended)

    monkeypatch.setattr(module, "is_torn", goes_on)
    assert verify(copy).damage is None


def test_two_heads_of_one_record_that_do_not_agree_are_damage(copy: int) -> None:
    last = verify(copy).last
    good, other = Head(seq=last.seq, hash=last.hash, ts=WHEN), Head(seq=last.seq, hash="ab" * 32, ts=WHEN)
    assert verify(copy, auditcheck._marks([good, good])).damage is None
    for heads in ([good, other], [other, good], [good, other, good], [other, good, good]):
        assert verify(copy, auditcheck._marks(heads)).damage is not None


def test_heads_without_a_log_are_damage(copy: int, tmp_path: Path) -> None:
    marks = auditcheck._marks(read(copy))
    for path in (tmp_path / "log").glob("0*.jsonl"):
        path.unlink()
    damage = verify(copy, marks).damage
    assert damage is not None and (damage.kind, damage.seq) == ("truncated", 1)


@pytest.mark.parametrize("name", ["00000001.jsonl", "heads.jsonl"])
def test_a_file_that_no_writer_makes_is_not_read_into_memory(copy: int, tmp_path: Path, name: str) -> None:
    os.truncate(tmp_path / "log" / name, 1 << 33)
    with pytest.raises(Error) as caught:
        verify(copy, {head.seq: head.hash for head in read(copy)})
    assert caught.value.code == "audit_unavailable" and f"got {1 << 33} bytes" in caught.value.message


def test_a_head_is_due_also_where_the_clock_was_put_back(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    log.append([{"type": "app.test"}])
    os.utime(tmp_path / "log" / "heads.jsonl", (1 << 33, 1 << 33))
    other = Log(str(tmp_path))
    last = other.append([{"type": "app.test"}])
    directory = os.open(tmp_path / "log", os.O_RDONLY)
    assert read(directory)[-1].seq == last.seq
    os.close(directory)
    other.close()
    log.close()
