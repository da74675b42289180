"""The tools of one test run, each fetched from its registry when the first test asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import skip_for_gap
from support.builders import Stage
from tools import table
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


@pytest.fixture(scope="session")
def rust(stage: Stage) -> Tool:
    """The Rust toolchain of the test run, where every account can read it; linked, not copied, where that goes."""
    sysroot = Path(_fetch(["rustc", "--print", "sysroot"]).strip())
    host = next(line[6:] for line in _fetch(["rustc", "-vV"]).splitlines() if line.startswith("host: "))
    prefix = stage.root / "tools" / "rust"
    for part in ("bin/cargo", "bin/rustc", "lib", f"lib/rustlib/{host}"):
        source = sysroot / part
        for path in sorted(source.rglob("*")) if source.name == host else source.glob("*.so*") if source.is_dir() else [source]:
            target = prefix / path.relative_to(sysroot)
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(path, target)
    return Tool(read=(str(prefix),), path=(str(prefix / "bin"),))


@pytest.fixture(scope="session")
def go() -> Tool:
    """The Go toolchain of the host."""
    root = _fetch(["go", "env", "GOROOT"]).strip()
    return Tool(path=(f"{root}/bin",), env={"GOFLAGS": "-buildvcs=false"})


@pytest.fixture(scope="session")
def debian() -> Callable[..., Tool]:
    """See that a command of a Debian package is there."""
    def install(command: str, package: str) -> Tool:
        if shutil.which(command) is None:
            skip_for_gap("no_debian_tools")
            _fetch(["apt-get", "install", "-y", "-q", "--no-install-recommends", package])
        return Tool()
    return install


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def _fetch(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the tools did and what it cost."""
    if made := table.lines():
        terminalreporter.section("tools in boxes")
        for line in made:
            terminalreporter.write_line(line)


def pytest_sessionfinish() -> None:
    """Leave the table for programs."""
    table.write()
