"""The reader of git configuration agrees with git, and stops where git stops."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.plan import gitconfig

SAMPLE = r"""
# comment
[core]
	hooksPath = .husky ; trailing comment
	bare
	editor = "vim -c \"set x\""	# note
[alias] st = "!f() { \
git status; }; f"
[filter "a.b \"q\""]
	CLEAN = tool\tx
[url.git]
x=
"""


def git_says(path: Path) -> list[tuple[str, str]]:
    out = subprocess.run(["git", "config", "-z", "--file", str(path), "--list"], capture_output=True, check=False,
                         env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
    if out.returncode != 0:
        return []
    pairs = [item.partition("\n") for item in out.stdout.decode("utf-8", "surrogateescape").split("\0") if item]
    return [(key, value if mark else "true") for key, mark, value in pairs]


def test_values_quotes_comments_and_continuations_are_read_as_git_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(SAMPLE)
    found = gitconfig.read(str(path))
    assert found.whole
    assert list(found.items) == git_says(path)
    assert found.last("core.hookspath") == ".husky"
    assert found.last("core.bare") == "true"


@pytest.mark.parametrize("text", ["[core\nx=1", '[a "b]\n', "[a]\nx = \"open\n", "[a]\nx = \\q\n", "[a]\n9! = 1\n"])
def test_text_that_git_rejects_is_reported_as_not_whole(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert not gitconfig.read(str(path)).whole
    assert git_says(path) == []


VALUE = st.text(st.sampled_from('ab c"\\;#=!/.'), max_size=10)


@settings(max_examples=25, deadline=None)
@given(value=VALUE)
def test_a_quoted_value_is_read_as_git_reads_it(value: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("git") / "config"
    path.write_text(f"[user]\n\tname = {value}\n")
    found = gitconfig.read(str(path))
    said = git_says(path)
    assert found.whole == bool(said)
    if said:
        assert list(found.items) == said


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.sampled_from('a=b "\\\\;#\n\n'), max_size=24))
def test_lines_that_go_on_and_comments_that_do_not_are_read_as_git_reads_them(
        text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("git") / "config"
    # No tab: newer releases of git keep it, older ones make it a space.
    path.write_text(f"[user]\nname = {text}\nlast = x\n")
    found, said = gitconfig.read(str(path)), git_says(path)
    assert found.whole == bool(said)
    if said:
        assert list(found.items) == said


def test_a_comment_hides_no_line_and_many_lines_cost_little(tmp_path: Path) -> None:
    found = gitconfig.parse("[core]\n# text \\\nfsmonitor = evil # more \\\nhooksPath = h\n")
    assert found.items == (("core.fsmonitor", "evil"), ("core.hookspath", "h"))
    before = time.process_time()
    gitconfig.parse("[a]\nx = " + "\\\n" * 200_000)
    assert time.process_time() - before < 2


@given(st.text(max_size=60))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    gitconfig.parse(text)


def test_a_missing_file_and_a_fifo_are_empty(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert gitconfig.read(str(tmp_path / "none")).items == ()
    assert gitconfig.read(str(fifo)).items == ()
