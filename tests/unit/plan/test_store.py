"""The plan store: whole files, checked content, pins that keep."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stockade.errors import ConfigError
from stockade.plan import store
from stockade.plan.canonical import canonical

PLAN = canonical({"schema": "stockade.plan.v1", "n": 1})


def test_a_stored_plan_is_read_only_and_named_by_its_digest(tmp_path: Path) -> None:
    name = store.put(tmp_path, PLAN)
    path = tmp_path / f"{name}.json"
    assert path.read_bytes() == PLAN
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert store.put(tmp_path, PLAN) == name
    assert os.listdir(tmp_path) == [path.name]


def test_a_stored_file_with_other_content_is_replaced(tmp_path: Path) -> None:
    name = store.put(tmp_path, PLAN)
    path = tmp_path / f"{name}.json"
    path.chmod(0o600)
    path.write_bytes(b"{}")
    store.put(tmp_path, PLAN)
    assert path.read_bytes() == PLAN


def test_a_symbolic_link_in_place_of_a_plan_is_replaced_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(PLAN)
    name = store.put(tmp_path, PLAN)
    path = tmp_path / f"{name}.json"
    path.unlink()
    path.symlink_to(target)
    store.put(tmp_path, PLAN)
    assert not path.is_symlink()


def test_digest_prefix_and_pin_find_a_plan_and_a_wrong_name_is_an_error(tmp_path: Path) -> None:
    name = store.put(tmp_path, PLAN, pin="build")
    assert store.resolve(tmp_path, name) == name
    assert store.resolve(tmp_path, name[:10]) == name
    assert store.resolve(tmp_path, "build") == name
    assert store.get(tmp_path, "build")["n"] == 1
    with pytest.raises(ConfigError) as caught:
        store.get(tmp_path, "biuld")
    assert "build" in str(caught.value)


@pytest.mark.parametrize("pin", ["", "../x", "a/b", ".hidden", "x" * 65])
def test_a_pin_that_could_name_another_file_is_refused(tmp_path: Path, pin: str) -> None:
    with pytest.raises(ConfigError):
        store.put(tmp_path, PLAN, pin=pin)


def test_old_plans_are_collected_and_pinned_ones_stay(tmp_path: Path) -> None:
    kept = store.put(tmp_path, PLAN, pin="mine")
    gone = store.put(tmp_path, canonical({"n": 2}))
    later = os.stat(tmp_path / f"{gone}.json").st_mtime + store.KEEP_S + 10
    assert store.gc(tmp_path, now_s=later) == (gone,)
    assert [item.digest for item in store.listing(tmp_path)] == [kept]
    store.unpin(tmp_path, "mine")
    assert store.gc(tmp_path, now_s=later) == (kept,)
