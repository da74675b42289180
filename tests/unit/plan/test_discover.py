"""Commands, interpreters and toolchains are found on the host; homes are never granted whole."""

from __future__ import annotations

import os
from pathlib import Path

from stockade.plan import discover


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_command_is_found_as_execvp_would(tmp_path: Path) -> None:
    program(tmp_path / "a" / "x")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_text("not executable")
    search = f"{tmp_path}/b:{tmp_path}/a"
    assert discover.find_command("x", "/", search) == f"{tmp_path}/a/x"
    assert discover.find_command("./a/x", str(tmp_path), "") == f"{tmp_path}/./a/x"
    assert discover.find_command("none", "/", search) is None


def test_every_hop_of_a_symlink_chain_is_needed(tmp_path: Path) -> None:
    real = program(tmp_path / "opt" / "tool-1" / "bin" / "t")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "t").symlink_to("../alt/t")
    (tmp_path / "alt").mkdir()
    (tmp_path / "alt" / "t").symlink_to(real)
    assert discover.hops(f"{tmp_path}/bin/t") == [f"{tmp_path}/bin/t", f"{tmp_path}/alt/t", str(real)]


def test_the_shebang_chain_is_followed_through_env(tmp_path: Path) -> None:
    program(tmp_path / "lang" / "bin" / "lang")
    (tmp_path / "lang" / "lib").mkdir()
    program(tmp_path / "s" / "script", "#!/usr/bin/env -S lang -x\n")
    found = discover.command(str(tmp_path / "s" / "script"), cwd="/", search_path=f"{tmp_path}/lang/bin")
    assert found.canonical == str(tmp_path / "s" / "script")
    assert str(tmp_path / "lang") in found.needs


def test_a_virtual_environment_brings_the_interpreter_that_made_it(tmp_path: Path) -> None:
    base = program(tmp_path / "py" / "bin" / "python3")
    (tmp_path / "py" / "lib").mkdir()
    venv = tmp_path / "w" / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(base)
    (venv / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    found = discover.command(str(venv / "bin" / "python"), cwd="/", search_path="")
    assert {str(venv), str(tmp_path / "py")} <= set(found.needs)


def test_neither_a_home_nor_its_local_prefix_is_granted_whole(tmp_path: Path) -> None:
    home = tmp_path / "home" / "u"
    program(home / ".local" / "bin" / "tool")
    (home / ".local" / "lib").mkdir()
    program(home / "bin" / "tool2")
    (home / "lib").mkdir()
    for name in (".local/bin/tool", "bin/tool2"):
        found = discover.command(str(home / name), cwd="/", search_path="", forbidden=[str(home)])
        assert str(home) not in found.needs
        assert str(home / ".local") not in found.needs
        assert str(home / name) in found.needs


def test_path_entries_that_are_relative_homes_or_missing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    search = f".:relative::{tmp_path}/none:{tmp_path}:{tmp_path}/bin"
    found = discover.path_directories(search, "/", frozenset({str(tmp_path)}))
    assert found == (os.path.realpath(tmp_path / "bin"),)


def test_a_fifo_in_place_of_a_script_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyvenv.cfg")
    assert discover.read_pyvenv(str(tmp_path / "pyvenv.cfg")) is None
