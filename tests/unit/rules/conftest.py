"""The world of the tests of requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from stockade.paths import OUR_VARIABLES
from unit.rules.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World(tmp_path.resolve())
    for name in OUR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(found.home))
    return found
