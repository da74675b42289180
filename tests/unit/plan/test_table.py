"""Rows find their mount points: made on private file systems, never on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from stockade.errors import Refused
from stockade.plan import rows
from stockade.plan.table import Table


def finished(*items: rows.Row) -> list[rows.Row]:
    table = Table()
    table.add(rows.tmpfs("/", size_bytes=1), *items)
    return table.finish()


def test_parents_on_a_private_file_system_are_made_for_a_deep_target() -> None:
    done = finished(rows.bind("/usr", "/a/b/c"))
    assert [row["target"] for row in done] == ["/", "/a", "/a/b", "/a/b/c"]
    assert done[-1]["create"] is True


def test_nothing_is_created_below_a_bind_of_the_host(tmp_path: Path) -> None:
    inner = tmp_path / "in"
    inner.mkdir()
    done = finished(rows.bind(str(tmp_path)), rows.bind("/usr", str(inner)))
    assert done[-1]["target"] == str(inner)
    assert done[-1]["create"] is False
    assert not any(row["kind"] == "dir" and row["target"].startswith(str(tmp_path) + "/") for row in done)


def test_a_mount_point_that_neither_exists_nor_can_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        finished(rows.bind(str(tmp_path)), rows.bind("/usr", str(tmp_path / "none")))
    assert caught.value.code == "mount_point_missing"


def test_an_overlay_carries_the_directories_that_something_is_mounted_on(tmp_path: Path) -> None:
    done = finished(rows.overlay(str(tmp_path), hide=["x"], dirs=()), rows.tmpfs(str(tmp_path / "a" / "b"), size_bytes=1))
    overlay = next(row for row in done if row["kind"] == "overlay")
    assert overlay["dirs"] == ["a/b"]


def test_a_private_directory_below_a_shown_one_needs_no_name_on_the_host(tmp_path: Path) -> None:
    """pnpm's home is a toolchain; its store, a cache below it, may not be there yet."""
    done = finished(rows.bind(str(tmp_path)), rows.tmpfs(str(tmp_path / "store"), size_bytes=1))
    shown = next(row for row in done if row["target"] == str(tmp_path))
    assert shown == rows.overlay(str(tmp_path), hide=(), dirs=["store"], create=True)
    assert list(tmp_path.iterdir()) == []
    for writable in (rows.bind(str(tmp_path), attrs=rows.SAFE), rows.bind(str(tmp_path), "/elsewhere")):
        with pytest.raises(Refused):
            finished(writable, rows.tmpfs(f"{writable['target']}/store", size_bytes=1))


def test_of_two_rows_on_one_target_the_later_stays() -> None:
    done = finished(rows.bind("/usr", "/x"), rows.bind("/etc", "/x"))
    assert [row["source"] for row in done if row["target"] == "/x"] == ["/etc"]


def test_a_deeper_row_comes_after_a_shallower_one_and_the_seal_last() -> None:
    done = finished(rows.seal("/"), rows.bind("/usr", "/a/b"), rows.tmpfs("/a", size_bytes=1))
    assert [(row["kind"], row["target"]) for row in done] == [
        ("tmpfs", "/"), ("tmpfs", "/a"), ("bind", "/a/b"), ("seal", "/")]


def test_parents_lie_strictly_between() -> None:
    assert rows.parents("/a/b/c", "/") == ["/a", "/a/b"]
    assert rows.parents("/a/b/c", "/a") == ["/a/b"]
    assert rows.parents("/a", "/") == []


def test_nothing_is_made_inside_a_directory_that_a_grant_shows() -> None:
    done = finished(rows.file("/etc/passwd", "x"), rows.symlink("/etc/a/b", "x"), rows.bind("/etc"))
    assert [row["kind"] for row in done] == ["tmpfs", "bind"]
