"""Repositories below a write root are found at any depth, and a walk that was cut says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade.errors import Refused
from stockade.plan import nested
from unit.compiling import compiled, promise, rows


def _repository(path: Path) -> Path:
    for name in ("objects", "refs", "hooks"):
        (path / ".git" / name).mkdir(parents=True)
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (path / ".git" / "config").write_text("")
    return path


def _locked(result: object) -> set[str]:
    return {row["path"] for row in result.plan["guards"] if row["read_only"]}  # type: ignore[attr-defined]


DEEP = ("r1", "a/b/c", "node_modules/p", "target/debug/x", "1/2/3/4/5/6/7")


@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_repositories_at_any_depth_are_guarded(place: Path, tier: str) -> None:
    for name in DEEP:
        _repository(place / "work" / name)
    bare = place / "work" / "deep" / "bare.git"
    for name in ("objects", "refs", "hooks"):
        (bare / name).mkdir(parents=True)
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    result = compiled(place / "work", tier=tier)
    assert {f"@ws/{name}/.git/{point}" for name in DEEP for point in ("hooks", "config")} <= _locked(result)
    assert "@ws/deep/bare.git/hooks" in _locked(result)
    assert {"path": "@ws/a/b/c/.git", "read_only": False} in result.plan["guards"]
    assert "r1/.git/commondir" in result.plan["persistence"][0]["names"]
    assert promise(result, "fs.persistence") is None


@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_a_walk_that_was_cut_is_no_promise(place: Path, monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    monkeypatch.setattr(nested, "MAX_ENTRIES", 10)
    for index in range(20):
        (place / "work" / f"d{index}").mkdir()
    with pytest.raises(Refused, match="too large") as caught:
        compiled(place / "work", tier=tier)
    assert (caught.value.code, caught.value.missing) == ("promise_not_kept", ("fs.persistence",))
    assert "accept fs.persistence" in str(caught.value.remedy)
    result = compiled(place / "work", tier=tier, accept=["fs.persistence"])
    row = next(row for row in result.plan["promises"] if row["id"] == "fs.persistence")
    assert (row["state"], row["reason"]) == ("not_kept", "write_root_too_large")
    assert any("too large" in note for note in result.notes)
    assert not compiled(place / "work", tier="standard").plan["guards"]


def test_more_repositories_than_mounts_can_guard_end_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "MAX_REPOSITORIES", 3)
    for index in range(5):
        _repository(tmp_path / f"r{index}")
    assert not nested.survey(str(tmp_path)).finished


def test_a_locked_directory_of_our_own_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The box runs as the same user and may unlock it."""
    (tmp_path / "d").mkdir()
    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("/d"):
            raise PermissionError(13, "denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert not nested.survey(str(tmp_path)).finished
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert nested.survey(str(tmp_path)).finished


def test_points_are_looked_for_by_name_outside_generated_directories_alone(tmp_path: Path) -> None:
    for name in ("src/deep", "node_modules/p", "1/2/3/4/5"):
        (tmp_path / name).mkdir(parents=True)
    found = {os.path.relpath(path, tmp_path) for path, _ in nested.survey(str(tmp_path)).named}
    assert {".", "src", "src/deep", "1", "1/2", "1/2/3"} == found


@pytest.mark.parametrize("tier", ["guarded", "strict"])
def test_a_point_that_is_a_link_is_guarded_as_link_and_as_object(place: Path, tier: str) -> None:
    work = _repository(place / "work")
    (work / ".git" / "hooks").rename(work / "hk")
    (work / ".git" / "hooks").symlink_to("../hk")
    (work / "vs").mkdir()
    (work / "env").mkdir()
    (work / "env" / "rc").write_text("")
    (work / ".envrc").symlink_to("hop")
    (work / "hop").symlink_to("env/rc")
    (work / ".vscode").symlink_to(work / "vs")
    (work / "cfg" / "mise").mkdir(parents=True)
    (work / ".config").symlink_to("cfg")
    (work / ".mcp.json").symlink_to("nowhere")
    names = (".git/hooks", "hk", ".envrc", "hop", "env/rc", ".vscode", "vs", ".config", "cfg/mise", ".mcp.json")
    assert {f"@ws/{name}" for name in names} <= _locked(compiled(work, tier=tier))


def test_a_git_directory_behind_a_link_is_guarded_with_the_link(place: Path) -> None:
    work = _repository(place / "work")
    (work / ".git").rename(work / "store")
    (work / ".git").symlink_to("store")
    assert {"@ws/.git", "@ws/store/hooks", "@ws/store/config"} <= _locked(compiled(work))


def test_a_point_whose_name_is_not_text_is_said_and_no_promise_is_made(place: Path) -> None:
    (place / "work" / os.fsdecode(b"\xff.code-workspace")).write_text("")
    with pytest.raises(Refused, match="not UTF-8"):
        compiled(place / "work")
    result = compiled(place / "work", accept=["fs.persistence"])
    assert promise(result, "fs.persistence") == "not_kept"
    assert any("not UTF-8" in note for note in result.notes)
    assert rows(result)
