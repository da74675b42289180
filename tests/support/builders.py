"""Builds the hostile programs and the readable copy of the product, outside the tree.

Owns ``Stage``: one directory that every account can read, not below /tmp (private in a box) nor
below /root (unreadable for others). Removed at the end, also the stages of runs that died.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
PACKAGE = TESTS.parent / "src" / "stockade"
HOSTILE = TESTS / "hostile"
STEM = "stockade-tests-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Paths of the readable copies: ``lib`` holds the package, ``bin`` the hostile programs."""

    root: Path

    @property
    def lib(self) -> Path:
        """Directory to put first on the import path."""
        return self.root / "lib"

    @property
    def bin(self) -> Path:
        """Hostile programs and scripts."""
        return self.root / "bin"

    @property
    def launcher(self) -> Path:
        """The copied launcher binary."""
        return self.lib / "stockade" / "_bin" / "stockade-launch"


def make_stage() -> Stage:
    """Copy the package, build every program of ``tests/hostile``."""
    # An ordinary user has one place that is outside its home and kept; worlds show it again.
    base = Path("/opt" if os.geteuid() == 0 else "/var/tmp")
    _remove_dead(base)
    stage = Stage(root=base / f"{STEM}{os.getpid()}")
    stage.bin.mkdir(parents=True)
    _copy_package(stage)
    for source in sorted(HOSTILE.iterdir()):
        _build(source, stage.bin)
    for name in ("driver.py", "guard_race.py", "host_agent.py", "storm.py"):
        shutil.copy(TESTS / "support" / name, stage.bin / name)
    subprocess.run(["chmod", "-R", "a+rX,go-w", str(stage.root)], check=True)
    return stage


def _copy_package(stage: Stage) -> None:
    launcher = PACKAGE / "_bin" / "stockade-launch"
    if not launcher.is_file():
        raise FileNotFoundError(f"{launcher}: build the launcher first (make build)")
    shutil.copytree(PACKAGE, stage.lib / "stockade", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    stage.launcher.chmod(0o755)


def _build(source: Path, into: Path) -> None:
    target = into / source.stem
    if source.suffix == ".c":
        # Static: the program must start at strict without anything of the host.
        command = ["gcc", "-O1", "-static", "-Wall", "-Werror", "-pthread", "-o", str(target), str(source)]
    elif source.suffix == ".rs":
        command = ["rustc", "--edition", "2021", "-O", "-C", "target-feature=+crt-static", "-o", str(target), str(source)]
    else:
        shutil.copy(source, into / source.name)
        (into / source.name).chmod(0o755)
        return
    subprocess.run(command, check=True, cwd=into)


def _remove_dead(base: Path) -> None:
    for entry in base.glob(f"{STEM}*"):
        pid = entry.name.removeprefix(STEM)
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(entry, ignore_errors=True)
