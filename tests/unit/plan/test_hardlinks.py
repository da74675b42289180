"""Other names of a protected file are found within a budget, or the search says that it stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade.plan import hardlinks


def test_an_alias_deep_in_a_write_root_is_found(tmp_path: Path) -> None:
    secret = tmp_path / "home" / "key"
    secret.parent.mkdir()
    secret.write_text("s")
    root = tmp_path / "w"
    (root / "a" / "b").mkdir(parents=True)
    os.link(secret, root / "a" / "b" / "notes")
    (root / "other").write_text("o")
    wanted = hardlinks.multiply_linked([str(secret)])
    found = hardlinks.search(wanted, [str(root)])
    assert found.finished
    assert found.aliases == {str(secret): (str(root / "a" / "b" / "notes"),)}


def test_a_file_with_one_link_costs_no_search(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s")
    assert hardlinks.multiply_linked([str(tmp_path / "key"), str(tmp_path / "none")]) == {}


def test_a_search_that_runs_out_of_budget_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardlinks, "MAX_ENTRIES", 5)
    (tmp_path / "key").write_text("s")
    os.link(tmp_path / "key", tmp_path / "alias")
    for number in range(10):
        (tmp_path / str(number)).write_text("")
    wanted = hardlinks.multiply_linked([str(tmp_path / "key")])
    assert not hardlinks.search(wanted, [str(tmp_path)]).finished


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("s")
    os.link(outside / "key", outside / "alias")
    root = tmp_path / "w"
    root.mkdir()
    (root / "link").symlink_to(outside)
    wanted = hardlinks.multiply_linked([str(outside / "key")])
    assert hardlinks.search(wanted, [str(root)]).aliases == {}
