"""What git would execute is found, and a tree cannot claim somebody else's repository."""

from __future__ import annotations

import os
import subprocess
import time
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
    assert {".git/hooks", ".git/config"} <= names(gitfacts.points(found).paths, top)


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
    assert {".husky", "tools/clean.sh", "more.cfg"} <= names(gitfacts.points(found).paths, top)


def test_a_linked_work_tree_leads_to_its_repository_and_guards_its_pointer(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    git(top, "worktree", "add", "-q", "../linked")
    found = gitfacts.find(str(tmp_path / "linked"))
    assert found is not None
    assert found.common_dir == str(top / ".git")
    points = gitfacts.points(found).paths
    assert str(tmp_path / "linked" / ".git") in points
    assert str(top / ".git" / "hooks") in points
    assert str(top / ".git" / "worktrees" / "linked" / "commondir") in points


def _commits(tree: Path, *roots: Path) -> str | None:
    found = gitfacts.find(str(tree))
    assert found is not None
    return gitfacts.commits_outside(found, tuple(map(str, roots or (tree,))))


def test_the_repository_of_a_linked_work_tree_or_submodule_is_believed(tmp_path: Path) -> None:
    top, inner = repo(tmp_path / "r"), repo(tmp_path / "inner")
    git(top, "worktree", "add", "-q", "../linked")
    git(top, "submodule", "--quiet", "add", str(inner), "libs/sub")
    git(tmp_path / "linked", "submodule", "--quiet", "add", str(inner), "other")
    assert _commits(tmp_path / "linked") == str(top / ".git")
    assert _commits(top / "libs" / "sub") == str(top / ".git" / "modules" / "libs" / "sub")
    assert _commits(tmp_path / "linked" / "other") == str(top / ".git" / "worktrees" / "linked" / "modules" / "other")
    assert _commits(top) is None


def test_a_git_file_that_names_a_repository_which_does_not_point_back_is_not_believed(tmp_path: Path) -> None:
    top = repo(tmp_path / "victim")
    git(top, "worktree", "add", "-q", "../linked")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for target in (top / ".git" / "worktrees" / "linked", top / ".git"):
        (hostile / ".git").write_text(f"gitdir: {target}\n")
        assert _commits(hostile) is None


def test_both_ends_inside_the_tree_prove_nothing(tmp_path: Path) -> None:
    """Even when the directory named in the end is a repository."""
    top = repo(tmp_path / "victim")
    fake = tmp_path / "hostile" / "fake"
    fake.mkdir(parents=True)
    (tmp_path / "hostile" / ".git").write_text("gitdir: fake\n")
    (fake / "gitdir").write_text("../.git\n")
    (fake / "HEAD").write_text("ref: refs/heads/main\n")
    for target in (top / ".git", tmp_path):
        (fake / "commondir").write_text(f"{target}\n")
        assert _commits(tmp_path / "hostile") is None
    (fake / "commondir").unlink()
    (fake / "gitdir").unlink()
    for name in ("objects", "refs"):
        (fake / name).mkdir()
    (fake / "config").write_text("[core]\n\tworktree = ..\n")
    assert _commits(tmp_path / "hostile") is None


def test_an_end_inside_another_write_root_proves_nothing(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    git(top, "worktree", "add", "-q", "../linked")
    assert _commits(tmp_path / "linked", tmp_path / "linked", top / ".git" / "worktrees") is None


def test_a_directory_that_is_no_repository_is_not_believed_to_be_one(tmp_path: Path) -> None:
    """The worktree's side is all there; HEAD, objects and refs of the repository are not."""
    tree, link = tmp_path / "tree", tmp_path / "precious" / "worktrees" / "x"
    tree.mkdir()
    link.mkdir(parents=True)
    (tree / ".git").write_text(f"gitdir: {link}\n")
    (link / "gitdir").write_text(f"{tree}/.git\n")
    (link / "commondir").write_text("../..\n")
    assert _commits(tree) is None


def test_the_directory_of_a_git_file_is_guarded_though_it_does_not_point_back(tmp_path: Path) -> None:
    tree = tmp_path / "r"
    tree.mkdir()
    git(tree, "init", "-q", f"--separate-git-dir={tree}/store", ".")
    found = gitfacts.find(str(tree))
    assert found is not None
    assert {".git", "store/config", "store/hooks"} <= names(gitfacts.points(found).paths, tree)


def test_submodules_and_nested_module_names_are_found(tmp_path: Path) -> None:
    inner = repo(tmp_path / "inner")
    top = repo(tmp_path / "r")
    git(top, "submodule", "--quiet", "add", str(inner), "libs/sub")
    found = gitfacts.find(str(top))
    assert found is not None
    points = names(gitfacts.points(found).paths, top)
    assert {".git/modules/libs/sub/config", ".git/modules/libs/sub/hooks", "libs/sub/.git"} <= points


def test_a_bare_repository_is_a_git_directory_itself(tmp_path: Path) -> None:
    bare = tmp_path / "b.git"
    bare.mkdir()
    git(bare, "init", "-q", "--bare")
    found = gitfacts.find(str(bare))
    assert found is not None
    assert {"hooks", "config"} <= names(gitfacts.points(found).paths, bare)


def test_alternates_are_named_and_nothing_else_of_the_tree_is(tmp_path: Path) -> None:
    source = repo(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--shared", str(source), "copy")
    found = gitfacts.find(str(tmp_path / "copy"))
    assert found is not None
    assert gitfacts.borrowed(found) == (str(source / ".git" / "objects"),)


def test_paths_with_blanks_includes_and_arguments_of_interpreters_are_points(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    (top / "h k" / "q").mkdir(parents=True)
    for name in ("fsm", "clean.sh", "inner.sh", "deep.sh", "README.md"):
        (top / name).write_text("x")
    (top / "run").write_text("#!/bin/sh\n")
    (top / "one.cfg").write_text('[core]\n\tfsmonitor = ./fsm\n[include]\n\tpath = two.cfg\n')
    (top / "two.cfg").write_text('[filter "x"]\n\tclean = sh clean.sh %f\n[alias]\n\ta = "!f() { sh -c \'sh inner.sh\'; }; f"\n'
                                 '\tb = "!cat README.md; echo run"\n')
    git(top, "config", "core.hooksPath", "h k/q")
    git(top, "config", "includeIf.gitdir:/nowhere.path", "../one.cfg")
    git(top, "config", "diff.external", "env X=1 python3 -u deep.sh")
    found = gitfacts.find(str(top))
    assert found is not None
    points = gitfacts.points(found)
    guarded = names(points.paths, top)
    assert {"h k/q", "fsm", "clean.sh", "inner.sh", "deep.sh", "run", "one.cfg", "two.cfg"} <= guarded
    assert "README.md" not in guarded
    assert str(top / "two.cfg") in [os.path.normpath(path) for path in points.files]


def test_includes_that_go_round_or_name_devices_end(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    os.mkfifo(top / "pipe")
    (top / ".git" / "config").write_text("[include]\n\tpath = config\n\tpath = ../pipe\n\tpath = /dev/zero\n"
                                         "\tpath = ../.git/config\n\tpath = a\0b\n")
    found = gitfacts.find(str(top))
    assert found is not None
    assert ".git/config" in names(gitfacts.points(found).paths, top)


def test_relative_settings_of_the_user_mean_every_work_tree(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    (top / ".githooks").mkdir()
    (tmp_path / ".gitconfig").write_text("[core]\n\thooksPath = .githooks\n")
    found = gitfacts.find(str(top))
    assert found is not None
    assert ".githooks" in names(gitfacts.points(found, str(tmp_path), [f"{tmp_path}/.gitconfig"]).paths, top)


def test_a_fifo_named_like_the_git_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".git")
    assert gitfacts.find(str(tmp_path)) is None


def test_more_configuration_than_anybody_writes_is_cut_and_said(tmp_path: Path) -> None:
    top = repo(tmp_path / "r")
    for text in ("[alias]\n" + "\ta = b\n" * 5000, "[x]\n" + "\ty = z\n" * 90_000, "[include]\n" + "".join(
            f"\tpath = c{index}\n" for index in range(100))):
        for index in range(100):
            (top / ".git" / f"c{index}").write_text("")
        (top / ".git" / "config").write_text(text)
        before = time.process_time()
        found = gitfacts.find(str(top))
        assert found is not None
        assert gitfacts.points(found).cut
        assert time.process_time() - before < 2
