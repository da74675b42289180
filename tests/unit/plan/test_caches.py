"""Caches of a plan: where they lie, what lies below them, and how their tool is led there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stockade.plan import strict
from stockade.plan.want import Want
from stockade.rules.load import load_list
from unit.compiling import compiled, rows


def set_values(place: Path, profile: str, **options: Any) -> dict[str, str]:
    result = compiled(place / "work", args=[profile], profile=[profile], **options)
    return dict(result.plan["env"]["set"])


@pytest.mark.parametrize("tier", ["standard", "guarded", "strict"])
def test_a_tool_is_led_to_its_cache(place: Path, tier: str) -> None:
    assert set_values(place, "npm", tier=tier)["npm_config_cache"] == f"{place}/.npm"
    moved = set_values(place, "npm", tier=tier, env={**os.environ, "npm_config_cache": f"{place}/moved"})
    assert moved["npm_config_cache"] == f"{place}/moved"


def test_a_value_of_the_caller_and_a_relative_one_stay(place: Path) -> None:
    assert "npm_config_cache" not in set_values(place, "npm", set_env={"npm_config_cache": "/x"})
    assert "npm_config_cache" not in set_values(place, "npm", env={**os.environ, "npm_config_cache": "here"})
    assert "npm_config_cache" not in set_values(place, "npm", cache="off")


def test_a_plain_cache_has_nothing_of_the_users_below_it(place: Path) -> None:
    mine = place / "gradle"
    mine.mkdir()
    (mine / "gradle.properties").write_text("password=x")
    result = compiled(place / "work", args=["gradle"], profile=["gradle"], env={**os.environ, "GRADLE_USER_HOME": str(mine)})
    target = f"{place}/.cache/stockade-gradle"
    assert result.plan["env"]["set"]["GRADLE_USER_HOME"] == target
    assert rows(result, "cache")[target]["source"] is None and str(mine) not in rows(result, "cache")
    (place / ".npm").mkdir()
    npm = rows(compiled(place / "work", args=["npm"], profile=["npm"]), "cache")
    assert npm[f"{place}/.npm"]["source"] == f"{place}/.npm"


def test_what_is_left_out_of_a_system_directory_is_absent(tmp_path: Path) -> None:
    """Not unreadable: a tool may go on without its configuration, and stop where it may not read it."""
    entry = next(entry for entry in load_list("system") if entry.path == "/usr")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "npmrc").write_text("token")
    made = strict._system_rows(str(tmp_path), entry, Want.__new__(Want))
    assert [(row["kind"], row["target"]) for row in made] == [("bind", str(tmp_path)), ("tmpfs", f"{tmp_path}/etc")]
    assert "ro" in made[1]["attrs"] and not made[1]["create"]
    (tmp_path / "etc" / "other").write_text("")
    made = strict._system_rows(str(tmp_path), entry, Want.__new__(Want))
    assert (made[1]["kind"], made[1]["hide"]) == ("overlay", ["npmrc"])
