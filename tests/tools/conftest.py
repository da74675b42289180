"""The tools of one test run, each fetched from its registry when the first test asks for it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

import pytest

from support.builders import Stage
from tools.support import Tool

WAIT_S = 300


@pytest.fixture(scope="session")
def npm_tool(stage: Stage) -> Callable[..., Tool]:
    """Fetch a command of the npm registry."""
    def fetch(*packages: str) -> Tool:
        prefix = stage.root / "tools" / packages[0].replace("/", "_")
        if not prefix.exists():
            prefix.mkdir(parents=True)
            _fetch(["npm", "install", "--silent", "--no-save", "--prefix", str(prefix), *packages])
        return Tool(read=(str(prefix),), path=(str(prefix / "node_modules" / ".bin"),))
    return fetch


@pytest.fixture(scope="session")
def python_tool(stage: Stage) -> Callable[..., Tool]:
    """Fetch a command of the Python index."""
    def fetch(*packages: str) -> Tool:
        prefix = stage.root / "tools" / packages[0]
        if not prefix.exists():
            _fetch(["/usr/bin/python3", "-m", "venv", str(prefix)])
            _fetch([str(prefix / "bin" / "pip"), "install", "-q", *packages])
        return Tool(read=(str(prefix),), path=(str(prefix / "bin"),))
    return fetch


def _fetch(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])
