"""What a tree says about itself widens no grant, and what it names cannot refuse its own box."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stockade.errors import Refused
from stockade.plan import inputs
from stockade.plan.trails import leads_out, trail
from stockade.rules.request import build_request
from stockade.rules.resolve import resolve
from unit.compiling import compiled, rows


def _git(cwd: Path, *args: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *args], cwd=cwd, check=True, capture_output=True)


def _linked(home: Path, top: Path) -> Path:
    top.mkdir(parents=True)
    _git(top, "init", "-q")
    _git(top, "commit", "-q", "--allow-empty", "-m", "x")
    _git(top, "worktree", "add", "-q", str(home / "linked"))
    return home / "linked"


def _writable(result: object) -> set[str]:
    return {target for target, row in rows(result).items() if row["kind"] == "bind" and "ro" not in row["attrs"]}  # type: ignore[arg-type]


def test_a_linked_work_tree_may_write_to_its_repository(place: Path) -> None:
    tree = _linked(place, place / "r")
    result = compiled(tree)
    assert {"@ws", f"{place}/r/.git"} <= _writable(result)
    assert {"path": f"{place}/r/.git/hooks", "read_only": True} in result.plan["guards"]
    assert not any("granted" in note for note in result.notes)


@pytest.mark.parametrize("where", [".password-store", ".config/stockade", ".aws/x"])
def test_a_repository_inside_a_protected_place_is_left_out_and_that_is_said(place: Path, where: str) -> None:
    tree = _linked(place, place / where)
    result = compiled(tree)
    assert not any(target.startswith(f"{place}/{where}") for target in _writable(result))
    assert any("word of the tree" in note for note in result.notes)


def test_a_hidden_repository_stays_hidden(place: Path) -> None:
    tree = _linked(place, place / "r")
    assert f"{place}/r/.git" not in _writable(compiled(tree, hide=[place / "r"]))


@pytest.mark.parametrize("target", ["private", "", ".ssh", ".local/state/stockade"])
def test_git_data_of_the_tree_neither_grants_nor_refuses(place: Path, target: str) -> None:
    work = place / "work"
    (place / "private").mkdir()
    _git(work, "init", "-q")
    (work / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (work / ".git" / "objects" / "info" / "alternates").write_text(f"{place}/{target}\n")
    keys = ("core.hooksPath", "include.path", "alias.x", "core.attributesFile")
    with (work / ".git" / "config").open("a") as config:
        for section, name in (key.split(".") for key in keys):
            config.write(f"[{section}]\n\t{name} = {place}/{target}\n")
    assert not {name for name in rows(compiled(work)) if name.startswith(f"{place}/")}


@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_link_in_a_write_root_leads_no_grant_out_of_it(place: Path, kind: str) -> None:
    (place / "precious").mkdir()
    (place / "work" / "build").symlink_to(place / "precious")
    for name in ("build", "build/.", "../work/build"):
        with pytest.raises(Refused) as caught:
            compiled(place / "work", **{kind: [place / "work" / name]})
        assert caught.value.code == "source_symlink"
    (place / "work" / "real").mkdir()
    (place / "work" / "inside").symlink_to("real")
    compiled(place / "work", **{kind: [place / "work" / "inside"]})
    (place / "outside").symlink_to(place / "precious")
    assert f"{place}/precious" in rows(compiled(place / "work", **{kind: [place / "outside"]}))


def test_a_socket_behind_a_link_of_the_tree_is_not_granted(place: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(place)
        listener.bind("s")
        (place / "work" / "s").symlink_to(place / "s")
        with pytest.raises(Refused) as caught:
            compiled(place / "work", sockets=[str(place / "work" / "s")])
    assert caught.value.code == "source_symlink"


def test_a_cache_that_the_tree_leads_elsewhere_is_no_cache(place: Path) -> None:
    (place / "private").mkdir()
    (place / "work" / "cache").symlink_to(place / "private")

    def caches(path: str) -> set[str]:
        env = {**os.environ, "npm_config_cache": path}
        resolved = resolve(build_request(["npm"], tier="strict", caller="repository", cwd=place / "work",
                                         profile=["npm"], env=env))
        return {item.path for item in inputs.caches(resolved, (f"{place}/work",))}

    assert f"{place}/private" in caches(f"{place}/private")
    assert f"{place}/private" not in caches(f"{place}/work/cache")


def test_a_trail_names_each_link_and_the_end(tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "up").symlink_to("../one/e/..")
    assert trail(f"{tmp_path}/one/./e//x") == ((f"{tmp_path}/one", f"{tmp_path}/two"), f"{tmp_path}/d/e/x")
    assert trail(f"{tmp_path}/d/up")[1] == f"{tmp_path}/d"
    assert leads_out(f"{tmp_path}/one/e", [f"{tmp_path}/d"]) is None
    (tmp_path / "loop").symlink_to("loop")
    assert trail(f"{tmp_path}/loop")[0][0] == f"{tmp_path}/loop"
    assert trail("/") == ((), "/")
