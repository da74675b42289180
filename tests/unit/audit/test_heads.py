"""Heads are signed with a key that is made once, whole, and tell what no chain can tell of itself."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stockade.audit.chain import Link, sealed
from stockade.audit.heads import Head, Signer, is_signed_by, parse, read
from stockade.audit.keys import PRIVATE, PUBLIC, public_key, signer
from stockade.audit.log import Log
from stockade.audit.verify import Verdict, verify
from stockade.errors import Error

SIGNS = pytest.mark.known_gap("no_cryptography")
SOURCE = Path(__file__).parents[3] / "src"
# An interpreter that looks for packages nowhere: what it imports is its own library and this source.
BARE = [sys.executable, "-I", "-S", "-B", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n"]
WHEN = "2026-11-30T12:00:00.000000000Z"
FORK = multiprocessing.get_context("fork")


def checked(audit: Path, marks: dict[int, str]) -> Verdict:
    """What verify says with heads."""
    directory = os.open(audit / "log", os.O_RDONLY)
    try:
        return verify(directory, marks)
    finally:
        os.close(directory)


def all_heads(audit: Path) -> list[Head]:
    """The heads of a log."""
    directory = os.open(audit / "log", os.O_RDONLY)
    try:
        return read(directory)
    finally:
        os.close(directory)


def _made(keys: str, answers: multiprocessing.SimpleQueue[str]) -> None:
    found = signer(keys)
    answers.put(found.name if found else "")


@SIGNS
def test_many_processes_make_one_key(tmp_path: Path) -> None:
    answers: multiprocessing.SimpleQueue[str] = FORK.SimpleQueue()
    keys = str(tmp_path / "keys")
    makers = [FORK.Process(target=_made, args=(keys, answers)) for _ in range(8)]
    for one in makers:
        one.start()
    names = {answers.get() for _ in makers}
    for one in makers:
        one.join(20)
    assert len(names) == 1 and "" not in names
    assert sorted(os.listdir(keys)) == [PRIVATE, PUBLIC]
    assert {os.stat(f"{keys}/{name}").st_mode & 0o777 for name in os.listdir(keys)} == {0o600}


@SIGNS
def test_a_head_is_good_for_its_own_content_and_key_alone(tmp_path: Path) -> None:
    first, other = signer(str(tmp_path / "a")), signer(str(tmp_path / "b"))
    assert first and other
    head = first.head(Link(seq=7, hash="ab" * 32), WHEN)
    assert parse(head.line().rstrip(b"\n")) == head
    assert is_signed_by(head, first.public) and not is_signed_by(head, other.public)
    table = json.loads(head.line())
    for name, value in (("seq", 8), ("hash", "cd" * 32), ("ts", "2027"), ("key", other.name), ("sig", head.sig[:-1] + ("0" if head.sig[-1] == "1" else "1")),
                        ("sig", None), ("sig", "zz")):
        changed = parse(json.dumps({**table, name: value}).encode())
        assert changed and not is_signed_by(changed, first.public), name


@SIGNS
@pytest.mark.parametrize("what", ["half", "open", "link", "long"])
def test_a_key_that_is_not_whole_or_not_private_is_refused_and_stays(tmp_path: Path, what: str) -> None:
    keys = tmp_path / "keys"
    signer(str(keys))
    path = keys / PRIVATE
    if what == "half":
        path.write_bytes(path.read_bytes()[:10])
    elif what == "long":
        path.write_bytes(b"x" * 40)
    elif what == "open":
        path.chmod(0o640)
    else:
        path.rename(keys / "real")
        path.symlink_to(keys / "real")
    before = path.lstat()
    with pytest.raises(Error) as caught:
        signer(str(keys))
    assert caught.value.code == "audit_key_invalid"
    assert path.lstat().st_ino == before.st_ino


def _log(tmp_path: Path, count: int, by: Signer | None = None) -> Link:
    log = Log(str(tmp_path), signer=by)
    last = log.append([{"type": "app.test", "number": number} for number in range(count)])
    log.close()
    return last


def test_a_log_that_was_cut_at_a_record_is_told_by_its_head_alone(tmp_path: Path) -> None:
    last = _log(tmp_path, 20)
    path = tmp_path / "log" / "00000001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-5]))
    assert checked(tmp_path, {}).damage is None
    found = checked(tmp_path, {last.seq: last.hash}).damage
    assert found is not None and (found.kind, found.seq) == ("truncated", last.seq - 4)


def test_a_chain_that_was_written_anew_is_told_by_a_head_alone(tmp_path: Path) -> None:
    last = _log(tmp_path, 20)
    path = tmp_path / "log" / "00000001.jsonl"
    link, lines = Link(), []
    for number in range(last.seq):
        line, link = sealed({"type": "app.forged", "number": number}, link)
        lines.append(line)
    path.write_bytes(b"".join(lines))
    assert checked(tmp_path, {}).damage is None
    found = checked(tmp_path, {last.seq: last.hash}).damage
    assert found is not None and (found.kind, found.seq) == ("edited", last.seq)


def _bare(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has no package but ours."""
    return subprocess.run([*BARE[:-1], BARE[-1] + code, *words], capture_output=True, text=True, check=False, timeout=60)


def test_without_the_package_a_head_has_no_signature_and_no_key_is_made(tmp_path: Path) -> None:
    done = _bare(
        "from stockade.audit.keys import signer; from stockade.audit.log import Log\n"
        "by = signer(sys.argv[1] + '/keys'); log = Log(sys.argv[1], signer=by)\n"
        "log.append([{'type': 'app.test'}], critical=True); log.close(); print(by)", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "None\n"), done
    heads = [json.loads(line) for line in (tmp_path / "log" / "heads.jsonl").read_text().splitlines()]
    assert heads and all(head["sig"] is None and head["key"] is None for head in heads)
    assert not (tmp_path / "keys").exists()
    assert checked(tmp_path, {head["seq"]: head["hash"] for head in heads}).damage is None


@SIGNS
def test_without_the_package_a_signed_log_is_not_called_whole(tmp_path: Path) -> None:
    _log(tmp_path, 3, signer(str(tmp_path / "keys")))
    words = ("audit", "verify", str(tmp_path / "log"), "--key", str(tmp_path / "keys" / PUBLIC))
    with_it = subprocess.run([sys.executable, "-B", "-m", "stockade", *words], env={**os.environ, "PYTHONPATH": str(SOURCE)},
                             capture_output=True, text=True, check=False, timeout=60)
    assert (with_it.returncode, with_it.stdout.splitlines()[0]) == (0, "whole: 4 records"), with_it
    assert with_it.stdout.splitlines()[1] == "  1 head signed by this key, the newest at record 4"
    done = _bare("from stockade.cli import main; raise SystemExit(main(sys.argv[1:]))", *words)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("stockade: audit_unsigned: "), done


@SIGNS
def test_a_public_key_that_is_gone_is_written_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    first = signer(str(keys))
    (keys / PUBLIC).unlink()
    again = signer(str(keys))
    assert first and again and first.public == again.public == public_key(str(keys / PUBLIC))


def _cut(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "log" / "00000001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize("kept", [1, 4, 18, 19])
def test_a_critical_record_is_not_said_to_have_a_head_where_the_log_was_cut(tmp_path: Path, kept: int) -> None:
    last = _log(tmp_path, 20)
    _cut(tmp_path, kept)
    log = Log(str(tmp_path))
    with pytest.raises(Error) as caught:
        log.append([{"type": "app.test"}], critical=True)
    assert caught.value.code == "audit_damaged"
    with pytest.raises(Error):
        log.close()
    assert checked(tmp_path, {last.seq: last.hash}).damage is not None


def test_a_writer_that_ends_behind_another_one_is_no_damage(tmp_path: Path) -> None:
    first, second = Log(str(tmp_path), segment_bytes=1000), Log(str(tmp_path), segment_bytes=1000)
    for number in range(30):
        first.append([{"type": "app.test", "number": number}])
        second.append([{"type": "app.test", "number": number}], critical=True)
    first.close()
    second.close()
    assert checked(tmp_path, {head.seq: head.hash for head in all_heads(tmp_path)}).damage is None


def test_no_head_is_on_the_disk_before_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirty: set[str] = set()
    write, sync, name = os.write, os.fdatasync, lambda fd: os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))

    def written(fd: int, data: bytes) -> int:
        assert not (name(fd) == "heads.jsonl" and dirty), dirty
        dirty.update({name(fd)} - {"heads.jsonl"})
        return write(fd, data)

    monkeypatch.setattr(os, "write", written)
    monkeypatch.setattr(os, "fdatasync", lambda fd: (dirty.discard(name(fd)), sync(fd)))
    monkeypatch.setattr("stockade.audit.heads.EVERY_S", 0)
    log = Log(str(tmp_path), segment_bytes=1000)
    for number in range(20):
        log.append([{"type": "app.test", "number": number}], critical=number % 3 == 0)
    log.close()
    assert len(all_heads(tmp_path)) >= 20


@pytest.mark.parametrize("fails", ["fdatasync", "write of the head"])
def test_a_critical_record_that_is_not_kept_is_an_error_that_says_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    log = Log(str(tmp_path))
    log.append([{"type": "app.test"}])
    write = os.write

    def no_disk(fd: int) -> None:
        raise OSError(5, "EIO")

    def short(fd: int, data: bytes) -> int:
        return write(fd, data[:20] if os.readlink(f"/proc/self/fd/{fd}").endswith("heads.jsonl") else data)

    with monkeypatch.context() as patched:
        patched.setattr(os, *(("fdatasync", no_disk) if fails == "fdatasync" else ("write", short)))
        with pytest.raises(Error) as caught:
            log.append([{"type": "app.test"}], critical=True)
        assert caught.value.code == "audit_unavailable" and "the records are written" in caught.value.message
        with pytest.raises(Error):
            log.close()
    assert not [fd for fd in os.listdir("/proc/self/fd") if _path(fd).startswith(f"{tmp_path}/")]
    again = Log(str(tmp_path))
    last = again.append([{"type": "app.test"}], critical=True)
    again.close()
    assert last.seq == 4 and [head.seq for head in all_heads(tmp_path)][-1] == 4
    assert checked(tmp_path, {head.seq: head.hash for head in all_heads(tmp_path)}).damage is None


def _path(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
