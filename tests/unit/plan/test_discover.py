"""Commands, interpreters and toolchains are found on the host; homes are never granted whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
    found = discover.command(str(tmp_path / "s" / "script"), cwd="/", search_path=f"{tmp_path}/lang/bin",
                             ground=discover.Ground())
    assert found.canonical == str(tmp_path / "s" / "script")
    assert str(tmp_path / "lang") in found.needs


def test_a_virtual_environment_brings_the_interpreter_that_made_it(tmp_path: Path) -> None:
    base = program(tmp_path / "py" / "bin" / "python3")
    (tmp_path / "py" / "lib").mkdir()
    venv = tmp_path / "w" / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(base)
    (venv / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    found = discover.command(str(venv / "bin" / "python"), cwd="/", search_path="", ground=discover.Ground())
    assert {str(venv), str(tmp_path / "py")} <= set(found.needs)


def test_neither_a_home_nor_its_local_prefix_is_granted_whole(tmp_path: Path) -> None:
    home = tmp_path / "home" / "u"
    program(home / ".local" / "bin" / "tool")
    (home / ".local" / "lib").mkdir()
    program(home / "bin" / "tool2")
    (home / "lib").mkdir()
    for name in (".local/bin/tool", "bin/tool2"):
        found = discover.command(str(home / name), cwd="/", search_path="", ground=discover.Ground([str(home)]))
        assert str(home) not in found.needs
        assert str(home / ".local") not in found.needs
        assert str(home / name) in found.needs


def test_path_entries_that_are_relative_homes_or_missing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    search = f".:relative::{tmp_path}/none:{tmp_path}:{tmp_path}/bin"
    found = discover.path_directories(search, discover.Ground([str(tmp_path)]))
    assert found == (os.path.realpath(tmp_path / "bin"),)


def test_a_fifo_in_place_of_a_script_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyvenv.cfg")
    assert discover.read_pyvenv(str(tmp_path / "pyvenv.cfg")) is None


def tree(tmp_path: Path) -> Path:
    """A write root, and beside it a prefix of the user that looks like any other."""
    base = program(tmp_path / "private" / "bin" / "python3")
    (tmp_path / "private" / "lib" / "python3.11").mkdir(parents=True)
    program(tmp_path / "private" / "node_modules" / "x" / "cli.js")
    (tmp_path / "w" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "w" / "direct").symlink_to(base)
    (tmp_path / "w" / "hop").symlink_to("direct")
    (tmp_path / "w" / "dir").symlink_to(base.parent)
    (tmp_path / "w" / "npm").symlink_to("../private/node_modules/x/cli.js")
    program(tmp_path / "w" / "script", f"#!{base} -u\n")
    program(tmp_path / "w" / "env", f"#!/usr/bin/env {base}\n")
    program(tmp_path / "w" / ".venv" / "bin" / "python")
    (tmp_path / "w" / ".venv" / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    return tmp_path / "w"


@pytest.mark.parametrize("argv0", ["direct", "hop", "dir/python3", "npm", "script", "env", ".venv/bin/python"])
def test_what_a_tree_names_outside_itself_is_not_shown(tmp_path: Path, argv0: str) -> None:
    root = str(tree(tmp_path))
    doubted = discover.command(f"./{argv0}", cwd=root, search_path="", ground=discover.Ground(tree=(root,)))
    assert not any(path.startswith(f"{tmp_path}/private") for path in doubted.needs)
    assert any(path.startswith(f"{tmp_path}/private") for path in doubted.doubted)
    known = discover.Ground(tree=(root,), known=lambda: (f"{tmp_path}/private",))
    assert any(path.startswith(f"{tmp_path}/private")
               for path in discover.command(f"./{argv0}", cwd=root, search_path="", ground=known).needs)
    plain = discover.command(f"./{argv0}", cwd=root, search_path="", ground=discover.Ground())
    assert any(path.startswith(f"{tmp_path}/private") for path in plain.needs)


def test_a_prefix_around_the_write_root_is_not_shown(tmp_path: Path) -> None:
    program(tmp_path / "p" / "bin" / "tool")
    (tmp_path / "p" / "lib").mkdir()
    found = discover.command("./tool", cwd=f"{tmp_path}/p/bin", search_path="",
                             ground=discover.Ground(tree=(f"{tmp_path}/p/bin",)))
    assert [path for path in found.needs if path.startswith(str(tmp_path))] == [f"{tmp_path}/p/bin/tool"]


def test_a_virtual_environment_outside_the_tree_is_the_users_own_word(tmp_path: Path) -> None:
    """Also when a script of the tree finds its python by PATH."""
    root = tree(tmp_path)
    venv = tmp_path / "venvs" / "v"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python3").symlink_to(tmp_path / "private" / "bin" / "python3")
    (venv / "pyvenv.cfg").write_text(f"home = {tmp_path}/private/bin\n")
    program(root / "manage", "#!/usr/bin/env python3\n")
    found = discover.command("./manage", cwd=str(root), search_path=f"{venv}/bin",
                             ground=discover.Ground(tree=(str(root),)))
    assert {str(venv), f"{tmp_path}/private"} <= set(found.needs)


def test_an_entry_of_path_that_the_tree_leads_elsewhere_is_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path)
    ground = discover.Ground(tree=(str(root),))
    assert discover.path_directories(f"{root}/dir:{root}/.venv/bin", ground) == (f"{root}/.venv/bin",)


def test_public_is_what_everybody_can_read_and_root_wrote(tmp_path: Path) -> None:
    assert discover.is_public("/usr/bin/env")
    assert not discover.is_public("/usr/bin/env", ["/usr/bin"])
    assert not discover.is_public("/etc/shadow")
    assert not discover.is_public(str(tmp_path))
    assert not discover.is_public(f"{tmp_path}/missing")
