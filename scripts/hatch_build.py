"""Builds the launcher into a wheel and names the platform on it.

Fails closed: no launcher, no wheel. An editable install leaves the build to
`make build`, so that `pip install -e .` needs no Rust.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LAUNCHER = Path("src/stockade/_bin/stockade-launch")


class LauncherHook(BuildHookInterface[Any]):
    """Puts the static launcher beside the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the launcher and mark the wheel as bound to this platform."""
        if version == "editable":
            return
        root = Path(self.root)
        subprocess.run(["sh", str(root / "scripts/build_launcher.sh")], cwd=root, check=True)
        if not (root / LAUNCHER).is_file():
            raise RuntimeError(f"launcher_missing: build of '{LAUNCHER}': got no file, expected the static launcher")
        build_data["pure_python"] = False
        # Static and free of Python: any CPython 3 on this architecture can use it.
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
