"""Write roots: which are mounts, what is refused, what of the home is compared."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stockade.errors import Refused
from unit.compiling import compiled, promise, rows


def test_a_root_inside_another_is_no_mount_of_its_own(place: Path) -> None:
    (place / "work" / "file").write_text("x")
    table = rows(compiled(place / "work", write=[place / "work", place / "work" / "file"]))
    assert "@ws" in table and "@ws/file" not in table


def test_parents_of_a_guard_are_pinned_up_to_the_outer_root(place: Path) -> None:
    (place / "work" / "inner" / ".vscode").mkdir(parents=True)
    result = compiled(place / "work", write=[place / "work", place / "work" / "inner"])
    guards = {row["path"]: row["read_only"] for row in result.plan["guards"]}
    assert guards == {"@ws/inner": False, "@ws/inner/.vscode": True}


def test_a_root_below_a_read_only_point_keeps_its_mount(place: Path) -> None:
    (place / "work" / ".vscode" / "state").mkdir(parents=True)
    result = compiled(place / "work", write=[place / "work", place / "work" / ".vscode" / "state"])
    assert "@ws/.vscode/state" in rows(result)


@pytest.mark.known_gap("no_root_caller")
def test_a_root_of_another_owner_keeps_its_own_id_map(place: Path) -> None:
    (place / "work" / "theirs").mkdir()
    os.chown(place / "work", 1000, 1000)
    os.chown(place / "work" / "theirs", 2000, 2000)
    table = rows(compiled(place / "work", as_user=False, write=[place / "work", place / "work" / "theirs"]))
    assert table["@ws/theirs"]["owner"] == [2000, 2000]


def test_points_of_the_home_inside_a_root_are_compared_by_their_name_in_it(place: Path) -> None:
    (place / ".claude").mkdir()
    result = compiled(place / "work", tier="guarded", write=[place / "work", place / ".claude"])
    names = next(row["names"] for row in result.plan["persistence"] if row["root"] == f"{place}/.claude")
    assert "settings.json" in names and any(name.startswith("hooks") for name in names)


def test_a_library_directory_cannot_be_written(place: Path) -> None:
    site = place / "lib" / "site-packages"
    (site / "dep").mkdir(parents=True)
    for root in (site, site / "dep"):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(site))
            with pytest.raises(Refused) as caught:
                compiled(place / "work", write=[place / "work", root])
        assert caught.value.code == "own_install"


def test_a_root_that_the_caller_imports_from_gives_its_import_path_away(place: Path) -> None:
    scripts = place / "scripts"
    (scripts / "out").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(scripts), *sys.path])
        with pytest.raises(Refused) as caught:
            compiled(place / "work", write=[place / "work", scripts])
        assert caught.value.missing == ("fs.own_state",)
        result = compiled(place / "work", write=[place / "work", scripts], accept=["fs.own_state"])
        assert promise(result, "fs.own_state") == "waived"
        # A directory below it that holds no loaded package, and the workspace itself.
        assert promise(compiled(place / "work", write=[place / "work", scripts / "out"]), "fs.own_state") is None
        assert promise(compiled(scripts, write=[scripts]), "fs.own_state") is None
