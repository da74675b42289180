"""Which mounts lie on the way to what a request names, and what a launcher's end by a signal means."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stockade.errors import LaunchFailed
from stockade.process import attend, reach


def _crossed(path: object, *points: object) -> list[str]:
    return list(reach.crossed(str(path), {str(point) for point in points}))


def test_a_mount_is_found_on_the_way_below_links_and_dots(tmp_path: Path) -> None:
    away = tmp_path / "away"
    (away / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("other/../away/sub")
    (tmp_path / "other").mkdir()
    (tmp_path / "absolute").symlink_to(away)
    for path in ("away", "away/sub/x", "link/x", "absolute", "other/../away", "./away//sub"):
        assert _crossed(tmp_path / path, away) == [str(away)], path
    for path in ("other", "awayward", "missing/away/../x"):
        assert _crossed(tmp_path / path, away) == [], path


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert _crossed(tmp_path / "a" / "x", tmp_path / "away") == []


@pytest.mark.parametrize("odd", [{"read": 5}, {"cwd": 5}, {"env": [("HOME", "x")]}, {"read": ["a\0b"]}, {"read": None, "cwd": "~"}])
def test_what_is_no_path_is_left_to_the_request(odd: dict[str, Any]) -> None:
    reach.check_named(odd)


@pytest.mark.parametrize(("status", "ends"), [(-signal.SIGINT, True), (-signal.SIGTERM, True), (-signal.SIGSEGV, False), (-signal.SIGKILL, False), (1, False)])
def test_only_a_signal_that_somebody_sends_ends_the_command_line_alike(status: int, ends: bool) -> None:
    error = LaunchFailed("launch_failed", "launcher: got no record", returncode=status)
    box: Any = SimpleNamespace(decided=False)
    ended = attend._not_started(error, box)
    assert (ended.status == status, ended.error is None) == (ends, ends)
