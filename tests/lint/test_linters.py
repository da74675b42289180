"""The linters as tests: ruff, mypy, import layers, generated pages.

Owns: that `make test` fails when any of them does. The second lock of the one
spawn chokepoint is here: a process API outside process/_exec.py is a ruff error.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def run(*argv: str) -> None:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    run(str(BIN / "ruff"), "check", "--no-cache", "--quiet", "src", "tests", "scripts", "bench")


def test_mypy_finds_nothing() -> None:
    run(str(BIN / "mypy"), "--cache-dir", "/dev/null")


def test_every_layer_imports_only_what_is_below_it() -> None:
    run(str(BIN / "lint-imports"), "--no-cache")


# What an extra brings, and the one file that asks for it, inside the functions that need it.
EXTRAS = {("src/stockade/audit/heads.py", "cryptography"), ("src/stockade/audit/keys.py", "cryptography")}


def test_the_core_imports_no_third_party_module() -> None:
    foreign = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            foreign |= {
                (str(path.relative_to(ROOT)), name.partition(".")[0])
                for name in names
                if name.partition(".")[0] not in {*sys.stdlib_module_names, "stockade"}
            }
    assert foreign == EXTRAS


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.Popen(['x'])",
        "subprocess.run(['x'])",
        "os.posix_spawn('x', [], {})",
        "os.fork()",
        "os.execv('x', [])",
        "asyncio.create_subprocess_exec('x')",
        "pty.spawn('x')",
    ],
)
def test_a_process_api_outside_the_chokepoint_is_an_error(line: str) -> None:
    module = line.partition(".")[0]
    source = f'"""Doc."""\nimport {module}\n\n{line}\n'
    argv = [str(BIN / "ruff"), "check", "--no-cache", "--quiet", "--stdin-filename", "src/stockade/decision.py", "-"]
    done = subprocess.run(argv, cwd=ROOT, input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "TID251" in done.stdout


def test_generated_pages_are_fresh() -> None:
    run(sys.executable, "scripts/gen_docs.py", "--check")


def test_no_public_function_has_the_name_of_a_subpackage() -> None:
    import stockade

    modules = {path.stem for path in (ROOT / "src" / "stockade").iterdir() if path.suffix == ".py" or path.is_dir()}
    clash = [name for name in stockade.__all__ if name in modules and callable(getattr(stockade, name))]
    assert not clash
