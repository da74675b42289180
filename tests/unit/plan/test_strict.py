"""The root of a strict box: no row that shows nothing, none for a program that is not there."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from stockade.plan import strict
from stockade.plan.witness import Witness
from stockade.rules.load import load_list
from unit.compiling import compiled, rows


class Looker:
    """The one part of a request that the walk over a directory needs."""

    witness = Witness()


def test_configuration_of_a_program_that_is_not_installed_is_left_out(place: Path) -> None:
    table = rows(compiled(place / "work", env={**os.environ, "PATH": "/usr/bin:/bin"}))
    named = [entry for entry in load_list("system") if entry.bin and "*" not in entry.path]
    assert named
    for entry in named:
        installed = any(shutil.which(name, path=":".join(strict.SYSTEM_BIN)) or os.path.exists(name)
                        for name in entry.bin)
        if not installed:
            assert entry.path not in table


def test_every_directory_of_etc_that_is_shown_holds_something(place: Path) -> None:
    shown = [target for target, row in rows(compiled(place / "work"), "bind").items()
             if target.startswith("/etc/") and row["source"] == target and os.path.isdir(target)]
    assert shown
    for target in shown:
        assert any(os.path.islink(os.path.join(top, name)) or os.path.getsize(os.path.join(top, name))
                   for top, folders, files in os.walk(target) for name in (*files, *folders))


@pytest.mark.parametrize(("make", "nothing"), [
    (lambda d: None, True), (lambda d: (d / "a" / "b").mkdir(parents=True), True),
    (lambda d: (d / "lock").write_text(""), True), (lambda d: (d / "x.conf").write_text("k"), False),
    (lambda d: (d / "link").symlink_to("/usr"), False),
    (lambda d: (d / "1" / "2" / "3" / "4").mkdir(parents=True), False),
])
def test_a_directory_without_content_is_known_as_such(tmp_path: Path, make: object, nothing: bool) -> None:
    make(tmp_path)  # type: ignore[operator]
    assert strict._says_nothing(str(tmp_path), Looker()) is nothing  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "nothing"), [("", True), ("# a\n\n  # b\n", True), ("# a\nlabel ::1\n", False)])
def test_a_file_of_comments_says_nothing(text: str, nothing: bool) -> None:
    assert strict._only_comments(text) is nothing


def test_toolchains_of_the_accounts_other_home_are_shown_only_where_something_leads(
        place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "account"
    for home in (place, other):
        (home / ".cargo" / "bin").mkdir(parents=True)
    entry = pwd.getpwuid(os.getuid())
    monkeypatch.setattr("pwd.getpwuid", lambda uid: pwd.struct_passwd((*entry[:5], str(other), entry[6])))
    env = {**os.environ, "PATH": "/usr/bin:/bin"}
    assert {str(place / ".cargo"), str(other / ".cargo")} & set(rows(compiled(place / "work", env=env))) == {
        str(place / ".cargo")}
    led = rows(compiled(place / "work", env={**env, "PATH": f"{other}/.cargo/bin:/usr/bin:/bin"}))
    assert f"{other}/.cargo" in led
    named = rows(compiled(place / "work", env={**env, "CARGO_HOME": f"{other}/.cargo"}))
    assert f"{other}/.cargo" in named
