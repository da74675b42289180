"""What the build backend makes of this tree: both wheels and the source archive.

Owns: building each once per test run, without the registries (the backend is part of the test
environment, the launcher is built already and cargo finds it fresh).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.builders import PACKAGE, Stage

ROOT = PACKAGE.parents[1]
WAIT_S = 600


def pip(*words: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the test environment's pip without an index."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    given = {**os.environ, **(env or {}), "PIP_NO_INDEX": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    return subprocess.run(argv, cwd=cwd, env=given, capture_output=True, text=True, timeout=WAIT_S, check=False)


def _made(stage: Stage, pattern: str) -> Path | None:
    found = sorted((stage.root / "dist").glob(pattern))
    return found[0] if found else None


def wheel(stage: Stage, kind: str = "launcher") -> Path:
    """The wheel of this platform, or with ``pure`` the one without a launcher."""
    pattern = "*-py3-none-any.whl" if kind == "pure" else "*linux*.whl"
    if _made(stage, pattern) is None:
        done = pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(stage.root / "dist"), str(ROOT),
                   env={"STOCKADE_WHEEL": kind})
        assert done.returncode == 0, done.stderr
    made = _made(stage, pattern)
    assert made is not None, sorted((stage.root / "dist").iterdir())
    made.chmod(0o644)
    return made


def sdist(stage: Stage) -> Path:
    """The source archive."""
    if _made(stage, "*.tar.gz") is None:
        argv = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(stage.root / "dist")]
        subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=WAIT_S)
    made = _made(stage, "*.tar.gz")
    assert made is not None
    return made
