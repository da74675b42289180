"""Distributions made by hand, as an installer leaves them: modules, metadata, RECORD, console script.

Owns: one directory that stands for site-packages with its bin. Nothing is fetched or built.
"""

from __future__ import annotations

import hashlib
import sys
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

SCRIPT = "#!{python} -I\nimport os, sys\nprint('ran', sorted(os.environ), sys.argv[1:])\n"
MODULE = """
def derive():
    return [{script!r}, "serve"], {{"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}}
"""


@dataclass(frozen=True)
class Dist:
    """One installed distribution: where it lies, and the line that its ``derive()`` returns."""

    site: Path
    script: Path
    module: Path
    info: Path

    @property
    def argv(self) -> list[str]:
        return [str(self.script), "serve"]

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def install(root: Path, name: str = "acme_gate", module: str = MODULE) -> Dist:
    """Install a distribution with the console script of its own name below ``root``."""
    site, script = root / "lib", root / "bin" / name
    info = site / f"{name}-1.0.dist-info"
    for directory in (info, script.parent):
        directory.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    code = site / f"{name}.py"
    code.write_text(module.format(script=str(script)))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[console_scripts]\n{name} = {name}:main\n\n[stockade.first_party]\nserve = {name}:derive\n")
    record(Dist(site=site, script=script, module=code, info=info))
    return Dist(site=site, script=script, module=code, info=info)


def record(dist: Dist) -> None:
    """Write RECORD for the files as they are now."""
    rows = []
    for path in (dist.module, dist.info / "METADATA", dist.info / "entry_points.txt", dist.script):
        digest = urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        name = path.relative_to(dist.site) if path.is_relative_to(dist.site) else f"../bin/{path.name}"
        rows.append(f"{name},sha256={digest},{path.stat().st_size}\n")
    (dist.info / "RECORD").write_text("".join(rows) + f"{dist.info.name}/RECORD,,\n")
