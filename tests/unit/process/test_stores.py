"""Which caches go when they are too large together, within which time, and what is never touched."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from stockade.process import sizes, stores
from stockade.process.erase import erase
from stockade.process.storelock import hold, in_use, one_at_a_time

PLENTY_S = 60.0


def cached(base: Path, name: str, *, kib: int = 64, files: int = 4, used: int = 1000) -> Path:
    place = base / name / "npm" / "upper" / "deep" / "er"
    place.mkdir(parents=True)
    for index in range(files):
        (place / f"file{index}").write_bytes(os.urandom(kib * 1024 // files))
    os.utime(base / name, (used, used))
    return base / name


def left(base: Path) -> list[str]:
    return sorted(stores.identities(str(base)))


def test_the_least_recently_used_goes_until_the_rest_fits(tmp_path: Path) -> None:
    for name, used in (("old", 1000), ("older", 500), ("new", 3000), ("newer", 4000)):
        cached(tmp_path, name, used=used)
    assert stores.look(str(tmp_path), 200 << 10, spare="new", budget_s=PLENTY_S) == ["older"]
    assert left(tmp_path) == ["new", "newer", "old"]
    assert stores.look(str(tmp_path), 1, spare="new", budget_s=PLENTY_S) == ["old", "newer"]
    assert left(tmp_path) == ["new"], "the cache of this start stays, however large"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".looked", ".sizes.json", "new"]


def test_no_limit_removes_nothing(tmp_path: Path) -> None:
    cached(tmp_path, "a")
    assert stores.look(str(tmp_path), 0, spare="", budget_s=PLENTY_S) == [] and left(tmp_path) == ["a"]


def test_a_cache_that_is_locked_stays_and_the_next_one_goes(tmp_path: Path) -> None:
    locked = cached(tmp_path, "locked", used=1)
    cached(tmp_path, "free", used=2)
    fd = os.open(locked, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        assert in_use(str(locked)) and not in_use(str(tmp_path / "free"))
        assert stores.look(str(tmp_path), 1, spare="", budget_s=PLENTY_S) == ["free"]
        assert (locked / "npm/upper/deep/er/file0").exists()
    finally:
        os.close(fd)
    assert stores.look(str(tmp_path), 1, spare="", budget_s=PLENTY_S) == ["locked"]


def test_links_are_neither_counted_nor_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(os.urandom(1 << 20))
    base = tmp_path / "caches"
    place = cached(base, "a", kib=4, files=1)
    for name, target in (("dir", outside), ("file", outside / "precious"), ("up", base)):
        (place / "npm" / name).symlink_to(target)
    (base / "linked").symlink_to(outside)
    assert left(base) == ["a"]
    size = sizes.measured(str(base), stores.identities(str(base)))["a"]
    assert 4 << 10 <= size.counted_bytes < 64 << 10
    assert stores.look(str(base), 1, spare="", budget_s=PLENTY_S) == ["a"]
    assert (outside / "precious").stat().st_size == 1 << 20 and (base / "linked").is_symlink()


@pytest.mark.parametrize("swapped", ["big", "big/deep"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_directory_that_became_a_link_before_it_was_counted_is_not_followed(tmp_path: Path, swapped: str, inside: bool) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    for name in ("precious", "deep/precious"):
        (outside / name).write_bytes(os.urandom(1 << 20))
    base = tmp_path / "caches"
    place = base / "a"
    (place / "big" / "deep").mkdir(parents=True)
    place.joinpath("big", "deep", "file").write_bytes(os.urandom(4096))
    os.utime(place, (1, 1))
    for _ in range(swapped.count("/") + 1):
        stores.look(str(base), 1 << 40, spare="", budget_s=0)  # one directory a look
    assert sizes.read(str(base))["a"].todo == (swapped,)
    # Any component of what is still to be counted may be the link.
    target = place / (swapped if inside else "big")
    target.rename(tmp_path / "away")
    target.symlink_to(outside / "deep" if target.name == "deep" else outside)
    size = sizes.measured(str(base), {"a": 1})["a"]
    assert size.settled and size.counted_bytes < 64 << 10


def test_a_tree_deeper_than_a_path_is_counted_as_far_as_a_path_goes(tmp_path: Path) -> None:
    place = cached(tmp_path, "a", kib=64)
    at = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(30):
        os.mkdir("n" * 250, dir_fd=at)
        inner = os.open("n" * 250, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    size = sizes.measured(str(tmp_path), stores.identities(str(tmp_path)))["a"]
    assert size.settled and size.counted_bytes >= 64 << 10
    assert stores.remove(str(tmp_path), "a")
    stores.sweep(str(tmp_path), lambda done: None)
    assert not list(tmp_path.glob(".gone-*"))


def test_a_file_of_several_names_counts_once(tmp_path: Path) -> None:
    place = cached(tmp_path, "a", kib=400, files=1) / "npm"
    os.link(place / "upper/deep/er/file0", place / "again")
    size = sizes.measured(str(tmp_path), stores.identities(str(tmp_path)))["a"]
    assert 390 << 10 < size.counted_bytes < 500 << 10


def test_counting_stops_in_time_and_goes_on_at_the_next_look(tmp_path: Path) -> None:
    place = cached(tmp_path, "a", kib=4, files=1)
    for index in range(50):
        (place / f"dir{index}").mkdir()
        (place / f"dir{index}" / "file").write_bytes(os.urandom(4096))
    os.utime(place, (1, 1))
    looks, counted = 0, [0]
    while looks < 200:
        stores.look(str(tmp_path), 1 << 40, spare="", budget_s=0)  # one directory a look
        size = sizes.read(str(tmp_path))["a"]
        counted.append(size.counted_bytes)
        looks += 1
        if size.settled:
            break
        assert os.stat(tmp_path / ".looked").st_mtime == 0, "a look that was not whole: the next start goes on"
    assert size.settled and 40 < looks < 70 and counted == sorted(counted) and counted[-1] >= 51 * 4096
    assert size.counted_bytes == sizes.measured(str(tmp_path), {"a": 1})["a"].counted_bytes


def test_what_was_used_since_is_counted_again(tmp_path: Path) -> None:
    place = cached(tmp_path, "a", kib=4)
    first = sizes.measured(str(tmp_path), stores.identities(str(tmp_path)))["a"]
    (place / "more").write_bytes(os.urandom(1 << 20))
    os.utime(place, (1, 1))
    assert sizes.measured(str(tmp_path), stores.identities(str(tmp_path)))["a"] == first, "nothing was walked"
    later = time.time() + 5
    os.utime(place, (later, later))
    assert sizes.measured(str(tmp_path), stores.identities(str(tmp_path)))["a"].counted_bytes > 1 << 20


def test_removal_stops_in_time_and_is_finished_later(tmp_path: Path) -> None:
    place = cached(tmp_path, "a")
    for index in range(300):
        (place / f"dir{index}").mkdir()
    assert stores.remove(str(tmp_path), "a") and left(tmp_path) == []
    gone = next(path for path in tmp_path.iterdir() if path.name.startswith(".gone-"))
    assert not erase(str(gone), deadline=time.monotonic() - 1)
    assert gone.exists()
    stores.sweep(str(tmp_path), lambda done: None)
    assert not gone.exists()


def test_two_looks_at_once_are_one(tmp_path: Path) -> None:
    cached(tmp_path, "a")
    with one_at_a_time(str(tmp_path)) as alone:
        assert alone
        assert stores.look(str(tmp_path), 1, spare="", budget_s=PLENTY_S) == [] and left(tmp_path) == ["a"]


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"counted_bytes": 1}}', "\x00"])
def test_a_spoilt_note_of_sizes_is_made_anew(tmp_path: Path, text: str) -> None:
    cached(tmp_path, "a")
    (tmp_path / ".sizes.json").write_text(text)
    assert sizes.measured(str(tmp_path), stores.identities(str(tmp_path)))["a"].counted_bytes >= 64 << 10


def test_a_name_that_was_made_anew_between_open_and_lock_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another remover takes the old directory away, and a box starts in a new one, just before the lock."""
    cached(tmp_path, "a")
    flock, held = fcntl.flock, []

    def meanwhile(fd: int, how: int) -> None:
        if not held:
            held.append(os.open(tmp_path / "a", os.O_RDONLY | os.O_DIRECTORY))
            (tmp_path / "a").rename(tmp_path / ".gone-other")
            live = os.open(cached(tmp_path, "a"), os.O_RDONLY | os.O_DIRECTORY)
            held.append(live)
            flock(live, fcntl.LOCK_SH)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    assert not stores.remove(str(tmp_path), "a")
    assert in_use(str(tmp_path / "a")) and (tmp_path / "a/npm/upper/deep/er/file0").exists()
    for fd in held:
        os.close(fd)
    assert stores.remove(str(tmp_path), "a") and left(tmp_path) == [], "the twin: nobody uses it any more"


def test_what_another_remover_took_is_removed(tmp_path: Path) -> None:
    assert stores.remove(str(tmp_path), "a") and not in_use(str(tmp_path / "a"))
    fd = hold(str(cached(tmp_path, "a")))
    assert fd is not None
    os.close(fd)


def test_one_directory_of_many_names_is_counted_over_several_looks(tmp_path: Path) -> None:
    place = tmp_path / "a" / "many"
    place.mkdir(parents=True)
    for index in range(3 * sizes.BATCH + 7):
        (place / f"f{index}").write_bytes(b"x")
    os.utime(tmp_path / "a", (1, 1))
    counted = []
    for _ in range(9):
        stores.look(str(tmp_path), 1 << 40, spare="", budget_s=0)
        size = sizes.read(str(tmp_path))["a"]
        counted.append(size.counted_bytes)
        if size.settled:
            break
    assert size.settled and not size.more and 3 <= len(set(counted)) <= 5, "one batch a look"
    assert counted[-1] == sum(path.stat().st_blocks * 512 for path in place.iterdir())


@pytest.mark.parametrize(("bound", "most"), [("NAMES_MAX", 100), ("LEFT_MAX", 40)])
def test_what_is_beyond_counting_goes_first_and_the_note_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    for name, used in (("huge", 3000), ("old", 1000)):
        cached(tmp_path, name, kib=4, files=1)
        for index in range(120 if name == "huge" else 0):
            (tmp_path / name / f"d{index}").mkdir()
        os.utime(tmp_path / name, (used, used))
    assert stores.look(str(tmp_path), 1 << 30, spare="", budget_s=PLENTY_S) == [], "120 names are within the bounds"
    (tmp_path / ".sizes.json").unlink()
    monkeypatch.setattr(sizes, bound, most)
    stores.look(str(tmp_path), 0, spare="", budget_s=PLENTY_S)
    size = sizes.read(str(tmp_path))["huge"]
    assert size.settled and size.more and sum(map(len, size.todo)) <= most
    assert stores.look(str(tmp_path), 1 << 30, spare="", budget_s=PLENTY_S) == ["huge"]


def test_past_the_deadline_one_identity_is_begun_and_the_others_wait(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        cached(tmp_path, name)
    stores.look(str(tmp_path), 1, spare="", budget_s=0)
    assert len(sizes.read(str(tmp_path))) == 1
    for _ in range(40):
        stores.look(str(tmp_path), 1 << 40, spare="", budget_s=0)
    assert len(sizes.read(str(tmp_path))) == 3 and os.stat(tmp_path / ".looked").st_mtime > 0


def test_erasing_looks_at_the_clock_within_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    for index in range(400):
        (tmp_path / "a" / f"f{index}").write_bytes(b"")
        (tmp_path / "a" / "deep" / f"d{index}").mkdir()
    now = iter(range(100_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    rounds = 0
    while not erase(str(tmp_path / "a"), deadline=next(now) + 51):
        rounds += 1
        assert rounds < 60
    assert rounds > 16, "about fifty names a round"
    assert not (tmp_path / "a").exists()
