"""Puts the static launcher into a wheel and names on it the platforms that can use it.

Owns: which of two wheels is built. On Linux it holds the launcher; elsewhere, or with
STOCKADE_WHEEL=pure, it holds none, and every request is answered with a typed refusal.
Fails closed: where a launcher is wanted and cannot be built there is no wheel. An editable
install leaves the build to `make build`, so that `pip install -e .` needs no Rust.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LAUNCHER = "src/stockade/_bin/stockade-launch"
KINDS = ("launcher", "pure")
# Those of launcher/seccomp; a system call filter for another one nobody has reviewed.
ARCHITECTURES = ("x86_64", "aarch64")


def kind(wanted: str, system: str) -> str:
    """Return which wheel is built. Args: wanted: value of STOCKADE_WHEEL; system: sys.platform."""
    if wanted and wanted not in KINDS:
        raise SystemExit(f"stockade: value_invalid: STOCKADE_WHEEL: got {wanted!r}, expected {' or '.join(KINDS)}")
    return wanted or ("launcher" if system == "linux" else "pure")


def tag(machine: str) -> str:
    """Return the tag of a wheel that holds a launcher for this architecture.

    The launcher needs neither a C library nor Python, so it runs wherever a program of the oldest
    of both C libraries does; the kernel is what `stockade doctor` looks at.
    Source: PEP 600 (manylinux), PEP 656 (musllinux); PEP 425 for the dots.
    """
    if machine not in ARCHITECTURES:
        raise SystemExit(
            f"stockade: no_backend: build of the launcher: got the architecture {machine!r}, "
            f"expected {' or '.join(ARCHITECTURES)} (hint: STOCKADE_WHEEL=pure builds a wheel that refuses every request)"
        )
    return f"py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}"


class LauncherHook(BuildHookInterface[Any]):
    """Puts the static launcher beside the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the launcher and say which platforms the wheel is for."""
        if version == "editable":
            return
        if kind(os.environ.get("STOCKADE_WHEEL", ""), sys.platform) == "pure":
            build_data["tag"] = "py3-none-any"
            return
        build_data["pure_python"] = False
        build_data["tag"] = tag(platform.machine())
        # Not among the artifacts of pyproject.toml: a launcher of an earlier build would get into a pure wheel.
        build_data["force_include"][str(self._launcher())] = "stockade/_bin/stockade-launch"

    def _launcher(self) -> Path:
        root = Path(self.root)
        done = subprocess.run(["sh", str(root / "scripts/build_launcher.sh")], cwd=root, check=False)
        if done.returncode != 0:
            raise SystemExit(done.returncode)  # the script has said why; a traceback would bury its line
        return root / LAUNCHER
