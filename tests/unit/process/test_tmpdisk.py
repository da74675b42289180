"""Removing the private /tmp on disk, whatever hostile code left in it."""

from __future__ import annotations

import os
from pathlib import Path

from stockade.process import tmpdisk


def filled(base: Path) -> Path:
    """A left-over directory, as ``make`` names it, with its lock."""
    path = base / f"{tmpdisk.PREFIX}01ABC"
    path.mkdir()
    (base / f"{path.name}{tmpdisk.LOCK}").write_text("")
    return path


def left(base: Path) -> list[str]:
    return sorted(os.listdir(base))


def test_locked_directories_and_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "file").write_text("x")
    base = tmp_path / "run"
    base.mkdir()
    path = filled(base)
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "b" / "file").write_text("x")
    (path / "a" / "link").symlink_to(outside)
    (path / "link").symlink_to(outside)
    os.mkfifo(path / "a" / "fifo")
    (path / "a" / "b").chmod(0)
    (path / "a").chmod(0)
    tmpdisk._collect(str(base))
    assert left(base) == []
    assert (outside / "file").exists() and outside.stat().st_mode & 0o777 == 0o750


def test_a_tree_deeper_than_any_stack_is_removed(tmp_path: Path) -> None:
    path = filled(tmp_path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    tmpdisk._collect(str(tmp_path))
    assert left(tmp_path) == []


def test_what_a_living_maker_holds_stays(tmp_path: Path) -> None:
    path, lock = tmpdisk._locked(str(tmp_path))
    os.mkdir(path)
    tmpdisk._collect(str(tmp_path))
    assert os.path.isdir(path)
    os.close(lock)
    tmpdisk._collect(str(tmp_path))
    assert left(tmp_path) == []
