"""A home to compile plans for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with secrets and a work tree, under a state home of its own."""
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519").write_text("key")
    (home / ".ssh" / "config").write_text("Host x\n")
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text("secret")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("STOCKADE_HOME", str(tmp_path / "state"))
    for name in ("SSH_AUTH_SOCK", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    yield home
