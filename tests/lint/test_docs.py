"""The documents: what they show is run, what they link to exists.

Owns: the rules that a fenced `sh` or `python` block of a document works as it
stands for a reader who has a home and a project already, and that it leaves both
as they are; other blocks are not run. A block that writes makes a throw-away
home and project in its first line, and the text before it says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.trees import changes, snapshot

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md")])
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#:]+)(?:#[^)]*)?\)")
BLOCKS = [
    (path, match[1], match[2], path.read_text(encoding="utf-8")[: match.start()])
    for path in DOCUMENTS
    for match in FENCE.finditer(path.read_text(encoding="utf-8"))
]
IDS = [f"{path.name}:{index}" for index, (path, *_) in enumerate(BLOCKS)]
# What a reader may have under the names that documents use; a block must neither need nor touch it.
HOME_FILES = (
    ".ssh/id_ed25519", ".aws/credentials", ".npmrc", ".bashrc", ".docker/config.json", ".config/stockade/config.toml",
    ".config/stockade/profiles/greet.toml", ".config/greet/text", ".cache/greet/runs", ".local/state/other/state",
    "note.txt", "planted.txt",
)  # fmt: skip
WORK_FILES = (
    ".envrc", ".git/hooks/pre-commit", "Makefile", "app.py", "client.json", "greet", "key.txt", "kept", "granted",
    "main.c", "notes.txt", "out", "out.txt", "package.json", "package-lock.json", "program", "result.txt", "server.py",
)  # fmt: skip
OWN_STATE = ".local/state/stockade"
THROW_AWAY = {
    "sh": 'export HOME="$(mktemp -d)"; unset XDG_CONFIG_HOME; mkdir ~/work && cd ~/work',
    "python": 'import os, tempfile; home = os.environ["HOME"] = tempfile.mkdtemp(); '
    'os.mkdir(home + "/work"); os.chdir(home + "/work")',
}


def _reader(at: Path) -> tuple[Path, Path, dict[str, str]]:
    """Make the home and the project of a reader, full of files that are dear to him."""
    home, work, temp = at / "home", at / "work", at / "tmp"
    for path in (*(home / name for name in HOME_FILES), *(work / name for name in WORK_FILES)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('schema = "profile.v1"\n' if path.parent.name == "profiles" else "# mine\n")
    home.chmod(0o700)
    temp.mkdir()
    paths = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    env = {"PATH": paths, "HOME": str(home), "TMPDIR": str(temp), "LANG": "C.UTF-8"}
    env["XDG_CONFIG_HOME"] = f"{home}/.config"
    subprocess.run(["git", "init", "-q", str(work)], env=env, check=True)
    return home, work, env


def _run(language: str, block: str, at: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a block as a reader would; return how it ended and which files of his are not as they were."""
    home, work, env = _reader(at)
    before = (snapshot(home, (OWN_STATE,)), snapshot(work))
    argv = ["sh", "-eu", "-c", block] if language == "sh" else [sys.executable, "-c", block]
    done = subprocess.run(
        argv, cwd=work, env=env, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL
    )
    touched = [*changes(before[0], snapshot(home, (OWN_STATE,))), *changes(before[1], snapshot(work))]
    return done, touched


@pytest.mark.parametrize(("path", "language", "block", "said"), BLOCKS, ids=IDS)
def test_a_block_of_a_document_works_and_leaves_the_reader_what_is_his(
    path: Path, language: str, block: str, said: str, tmp_path: Path
) -> None:
    done, touched = _run(language, block, tmp_path)
    assert done.returncode == 0, f"{path.name}\n{block}\n{done.stdout}{done.stderr}"
    assert not touched, f"{path.name}: the first line has to be\n{THROW_AWAY[language]}\n{block}"


@pytest.mark.parametrize(("path", "language", "block", "said"), BLOCKS, ids=IDS)
def test_a_throw_away_home_is_the_first_line_of_a_block_and_announced(
    path: Path, language: str, block: str, said: str
) -> None:
    if THROW_AWAY[language] in block or "mktemp" in block or "mkdtemp" in block:
        assert block.startswith(THROW_AWAY[language] + "\n"), f"{path.name}\n{block}"
        assert "throw-away" in said.rstrip().rsplit("\n\n", 1)[-1], f"{path.name}: said before\n{block}"


@pytest.mark.parametrize(
    ("language", "block"),
    [
        ("sh", "echo stolen > ~/.npmrc"),
        ("sh", 'mkdir "$HOME/new"'),
        ("sh", "chmod +x .git/hooks/pre-commit"),
        ("sh", "stockade learn --tier strict --save mytool -- cat ~/note.txt || true"),
        ("sh", "stockade run -- sh -c 'echo 1 > kept'"),
        ("python", "import pathlib; (pathlib.Path.home() / 'new').touch()"),
    ],
)
def test_a_block_that_writes_is_seen_and_with_a_throw_away_home_it_is_not(
    language: str, block: str, tmp_path: Path
) -> None:
    done, touched = _run(language, block, tmp_path / "bare")
    assert done.returncode == 0 and touched, done.stderr
    prepare = "git init -q; touch .git/hooks/pre-commit; echo > ~/note.txt\n" if language == "sh" else ""
    done, touched = _run(language, f"{THROW_AWAY[language]}\n{prepare}{block}", tmp_path / "throw-away")
    assert done.returncode == 0 and not touched, done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_that_is_only_read_redirects_into_the_home(path: Path) -> None:
    only_read = FENCE.sub("", path.read_text(encoding="utf-8"))
    assert not re.findall(r"""^.*>>?\s*["']?(?:~|\$HOME|\$\{HOME\})/.*$""", only_read, re.MULTILINE)


def test_every_public_name_has_an_example() -> None:
    import stockade

    blocks = [block for path, language, block, _ in BLOCKS if path.name == "python.md" and language == "python"]
    examples = "\n".join(blocks)
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
