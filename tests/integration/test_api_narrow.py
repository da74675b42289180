"""Attacks on ``Sandbox.narrow``: what the wider sandbox protects is protected in the narrower one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stockade
from stockade.process import prepare

FILE = "echo x > %s && echo WROTE"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("STOCKADE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    prepare.forget()
    yield
    prepare.forget()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "repo"
    for name in (".git/hooks", ".git/objects", ".git/refs", "sub/deep", "hk", "other"):
        (path / name).mkdir(parents=True)
    (path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (path / ".git/config").write_text("[core]\n\thooksPath = hk\n")
    (path / "hk/pre-commit").write_text("#!/bin/sh\n")
    (path / ".env").write_text("TOKEN=secret\n")
    (path / "sub/file").write_text("text\n")
    return path


def sh(sandbox: stockade.Sandbox, script: str, **options: Any) -> str:
    return str(sandbox.run(["sh", "-c", script], capture_output=True, text=True, **options).stdout)


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_only_the_named_part_can_be_written_and_the_rest_is_read(repo: Path, tier: str) -> None:
    wide = stockade.Sandbox(tier=tier, caller="repository", cwd=repo)
    less = wide.narrow(write=[repo / "sub"])
    assert "WROTE" in sh(wide, FILE % "other/a")
    assert "WROTE" not in sh(less, FILE % "other/b") and not (repo / "other/b").exists()
    assert "WROTE" in sh(less, FILE % "sub/c")
    assert sh(less, "ls") == sh(wide, "ls")


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_nothing_can_be_written_when_no_root_is_left(repo: Path, tier: str) -> None:
    less = stockade.Sandbox(tier=tier, caller="repository", cwd=repo).narrow(write=[])
    assert "WROTE" not in sh(less, FILE % "sub/c")
    assert sh(less, "cat sub/file") == "text\n"


def test_an_auto_sandbox_cannot_be_taken_out_of_its_box(repo: Path) -> None:
    for tier in ("off", "standard"):
        with pytest.raises(stockade.ConfigError):
            stockade.Sandbox(cwd=repo).narrow(tier=tier)


@pytest.mark.parametrize("tier", ["guarded", "strict"])
@pytest.mark.parametrize("inner", ["hk", ".git/hooks", ".git"])
def test_a_guarded_place_is_no_narrower_root(repo: Path, tier: str, inner: str) -> None:
    wide = stockade.Sandbox(tier=tier, caller="repository", cwd=repo)
    # The twin: from the wide sandbox the hooks cannot be written.
    for name in ("hk/pre-commit", ".git/config"):
        assert "WROTE" not in sh(wide, FILE % name)
    less = wide.narrow(write=[repo / inner])
    try:
        for name in ("hk/pre-commit", ".git/config", ".git/hooks/pre-commit"):
            assert "WROTE" not in sh(less, FILE % name)
    except stockade.Refused as refused:
        assert refused.code == "write_root_refused"
    assert (repo / "hk/pre-commit").read_text() == "#!/bin/sh\n"


def test_guards_of_the_repository_stay_when_a_directory_above_them_is_left(repo: Path) -> None:
    (repo / ".git/config").write_text("[core]\n\thooksPath = sub/deep\n")
    (repo / "sub/deep/pre-commit").write_text("#!/bin/sh\n")
    less = stockade.Sandbox(tier="strict", caller="repository", cwd=repo).narrow(write=[repo / "sub"])
    assert "WROTE" not in sh(less, FILE % "sub/deep/pre-commit")
    assert "WROTE" not in sh(less, "mv sub/deep sub/gone && mkdir sub/deep && echo WROTE")
    assert "WROTE" in sh(less, FILE % "sub/ok")


@pytest.mark.parametrize("key", ["read", "write"])
def test_a_masked_file_does_not_appear_by_being_named(repo: Path, key: str) -> None:
    wide = stockade.Sandbox(tier="strict", caller="repository", cwd=repo)
    assert "secret" not in sh(wide, "cat .env")
    less = wide.narrow(**{key: [repo / ".env"]})
    with pytest.raises(stockade.Refused) as caught:
        sh(less, "cat .env")
    assert caught.value.code == "write_root_refused"
    assert "secret" not in sh(wide.narrow(write=[]), "cat .env")


def test_reads_and_roots_together_leave_only_what_is_named(repo: Path) -> None:
    wide = stockade.Sandbox(tier="strict", caller="repository", cwd=repo)
    less = wide.narrow(read=[repo / "sub"], write=[repo / "sub/deep"])
    assert sh(less, f"ls {repo}").split() == ["sub"]
    assert "WROTE" in sh(less, f"echo x > {repo}/sub/deep/x && echo WROTE")
    assert "WROTE" not in sh(less, f"echo x > {repo}/sub/x && echo WROTE")


def test_a_launch_line_of_a_narrowed_sandbox_is_narrow(repo: Path) -> None:
    import subprocess

    line = stockade.Sandbox(tier="strict", caller="repository", cwd=repo).narrow(write=[]).wrap(
        ["sh", "-c", FILE % "sub/c"])
    done = subprocess.run(line.argv, env=dict(line.env), capture_output=True, text=True, check=False)
    assert "WROTE" not in done.stdout and not (repo / "sub/c").exists()
