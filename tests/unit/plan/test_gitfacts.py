"""What git would execute is found, and a tree cannot claim somebody else's repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from stockade.plan import gitfacts


def git(cwd: Path, *args: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always", *args],
                   cwd=cwd, check=True, capture_output=True,
                   env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"})


def repo(path: Path) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "-q")
    git(path, "commit", "-q", "--allow-empty", "-m", "x")
    return path


def names(found: tuple[str, ...], base: Path) -> set[str]:
    return {os.path.relpath(path, base) for path in found}


def test_hooks_and_config_of_a_plain_clone_are_points(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    found = gitfacts.find(str(top))
    assert found is not None
    assert {".git/hooks", ".git/config"} <= names(gitfacts.points(found), top)


def test_programs_that_the_config_names_are_points(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    (top / ".husky").mkdir()
    (top / "tools").mkdir()
    (top / "tools" / "clean.sh").write_text("x")
    (top / "more.cfg").write_text("[core]\n")
    git(top, "config", "core.hooksPath", ".husky")
    git(top, "config", "filter.x.clean", "tools/clean.sh %f")
    git(top, "config", "include.path", "../more.cfg")
    found = gitfacts.find(str(top))
    assert found is not None
    assert {".husky", "tools/clean.sh", "more.cfg"} <= names(gitfacts.points(found), top)


def test_a_linked_work_tree_leads_to_its_repository_and_guards_its_pointer(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    git(top, "worktree", "add", "-q", "../linked")
    found = gitfacts.find(str(tmp_path / "linked"))
    assert found is not None
    assert found.common_dir == str(top / ".git")
    points = gitfacts.points(found)
    assert str(tmp_path / "linked" / ".git") in points
    assert str(top / ".git" / "hooks") in points
    assert str(top / ".git" / "worktrees" / "linked" / "commondir") in points


def test_a_git_file_that_names_a_repository_which_does_not_point_back_is_not_believed(tmp_path: Path) -> None:
    top = repo(tmp_path / "victim")
    git(top, "worktree", "add", "-q", "../linked")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / ".git").write_text(f"gitdir: {top}/.git/worktrees/linked\n")
    assert gitfacts.find(str(hostile)) is None
    (hostile / ".git").write_text(f"gitdir: {top}/.git\n")
    assert gitfacts.find(str(hostile)) is None


def test_submodules_and_nested_module_names_are_found(tmp_path: Path) -> None:
    inner = repo(tmp_path / "inner")
    top = repo(tmp_path / "r")
    git(top, "submodule", "--quiet", "add", str(inner), "libs/sub")
    found = gitfacts.find(str(top))
    assert found is not None
    points = names(gitfacts.points(found), top)
    assert {".git/modules/libs/sub/config", ".git/modules/libs/sub/hooks", "libs/sub/.git"} <= points


def test_a_bare_repository_is_a_git_directory_itself(tmp_path: Path) -> None:
    bare = tmp_path / "b.git"
    bare.mkdir()
    git(bare, "init", "-q", "--bare")
    found = gitfacts.find(str(bare))
    assert found is not None
    assert {"hooks", "config"} <= names(gitfacts.points(found), bare)


def test_alternates_outside_are_named_for_reading(tmp_path: Path) -> None:
    source = repo(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--shared", str(source), "copy")
    found = gitfacts.find(str(tmp_path / "copy"))
    assert found is not None
    assert str(source / ".git" / "objects") in gitfacts.outside_paths(found)


def test_a_fifo_named_like_the_git_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".git")
    assert gitfacts.find(str(tmp_path)) is None
