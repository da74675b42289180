"""The documents: what they show is run, what they link to exists.

Owns: the rule that a fenced `sh` or `python` block of a document works as it
stands, in a fresh home and a fresh repository; other blocks are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md")])
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#:]+)(?:#[^)]*)?\)")
BLOCKS = [
    (path, match[1], match[2]) for path in DOCUMENTS for match in FENCE.finditer(path.read_text(encoding="utf-8"))
]
IDS = [f"{path.name}:{index}" for index, (path, _, _) in enumerate(BLOCKS)]


@pytest.mark.parametrize(("path", "language", "block"), BLOCKS, ids=IDS)
def test_a_block_of_a_document_works(path: Path, language: str, block: str, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(mode=0o700)
    work.mkdir()
    bin_dir = Path(sys.executable).parent
    env = {"PATH": f"{bin_dir}:{os.environ.get('PATH', '/usr/bin:/bin')}", "HOME": str(home), "LANG": "C.UTF-8"}
    subprocess.run(["git", "init", "-q", str(work)], env=env, check=True)
    argv = ["sh", "-eu", "-c", block] if language == "sh" else [sys.executable, "-c", block]
    done = subprocess.run(
        argv, cwd=work, env=env, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{path.name}\n{block}\n{done.stdout}{done.stderr}"


def test_every_public_name_has_an_example() -> None:
    import stockade

    examples = "\n".join(block for path, language, block in BLOCKS if path.name == "python.md" and language == "python")
    assert [name for name in stockade.__all__ if f"stockade.{name}" not in examples] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    dead = [target for target in LINK.findall(text) if not (path.parent / target).exists()]
    assert not dead


def test_every_step_number_of_the_path_stands_once_in_the_code() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "stockade").rglob("*.py"))
    counts = {number: len(re.findall(rf"# \({number}\)[: ]", text)) for number in range(1, 11)}
    assert counts == dict.fromkeys(range(1, 11), 1)


def test_every_launcher_step_stands_in_the_launcher() -> None:
    files = (ROOT / "launcher" / "src").rglob("*.rs")
    comments = "\n".join(
        line for path in files for line in path.read_text(encoding="utf-8").splitlines() if "//" in line
    )
    lists = re.findall(r"\bsteps? ((?:\d+(?:, | and )?)+)", comments, re.IGNORECASE)
    named = {int(number) for steps in lists for number in re.findall(r"\d+", steps)}
    missing = sorted(set(range(1, 15)) - named)
    assert not missing


def test_every_step_of_the_path_names_a_file_that_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"^\d+\. .*`([a-z_/]+\.py)`", text, re.MULTILINE)
    assert len(named) == 10
    assert [name for name in named if not (ROOT / "src" / "stockade" / name).exists()] == []
