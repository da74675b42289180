"""House style: size of functions and files, module docstrings, no unfinished code.

Owns: the hard stops. A function beyond 60 lines or a file beyond 500 cannot be
reviewed in one reading, and this is code that decides who may read a secret.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_STOP, FILE_STOP = 60, 500
PYTHON_DIRS = ("src", "scripts", "bench", "tests")
# Written so that this file does not find itself.
UNFINISHED = re.compile(
    "|".join(
        ("TO" + "DO", "FIX" + "ME", "XX" + "X:", "NotImplemented" + "Error", r"todo" + "!", r"unimplemented" + "!")
    )
)
# Registry hosts are a matter of the machine's own configuration.
REGISTRY_HOSTS = re.compile(
    "|".join(
        (
            "registry.npm" + "js",
            "pypi" + r"\.org",
            "files.python" + "hosted",
            "crates" + r"\.io/",
            "proxy.golang" + r"\.org",
        )
    )
)


def tracked(*suffixes: str) -> list[Path]:
    """Files of the repository, also those not yet committed."""
    done = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    paths = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def python_files() -> list[Path]:
    """Python files of the product and of what tests it."""
    return [path for path in tracked(".py") if path.relative_to(ROOT).parts[0] in PYTHON_DIRS]


def rust_files() -> list[Path]:
    """Rust files of the launcher."""
    return [path for path in tracked(".rs") if "launcher" in path.parts]


def code_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None and isinstance(first, ast.Expr):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def rust_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and length of every function, by the indentation that rustfmt gives its closing brace."""
    lines = text.splitlines()
    for start, line in enumerate(lines):
        match = re.match(r"^(\s*)(?:pub(?:\([a-z]+\))? )?(?:const )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)", line)
        if not match or line.rstrip().endswith(("}", ";")):
            continue
        closing = f"{match[1]}}}"
        for end in range(start + 1, len(lines)):
            if lines[end] == closing:
                yield match[2], end - start + 1
                break


def without_tests(text: str) -> str:
    """The part of a Rust file before its tests."""
    return text.split("#[cfg(test)]")[0]


def test_no_python_function_is_longer_than_the_hard_stop() -> None:
    long = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_length(node) > FUNCTION_STOP:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {code_length(node)}")
    assert not long


def test_no_rust_function_is_longer_than_the_hard_stop() -> None:
    long = [
        f"{path.relative_to(ROOT)} {name} {length}"
        for path in rust_files()
        for name, length in rust_functions(path.read_text())
        if length > FUNCTION_STOP
    ]
    assert not long


def test_no_file_is_longer_than_the_hard_stop() -> None:
    long = []
    for path in [*python_files(), *rust_files()]:
        lines = without_tests(path.read_text(encoding="utf-8")).count("\n")
        if lines > FILE_STOP:
            long.append(f"{path.relative_to(ROOT)} {lines}")
    assert not long


def test_every_module_of_the_product_says_what_it_owns() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.is_relative_to(ROOT / "src") and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent


def test_nothing_in_the_tree_is_marked_unfinished() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in [*python_files(), *rust_files()]
        if UNFINISHED.search(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_no_file_names_a_registry_host() -> None:
    named = []
    for path in tracked():
        if path.name == "Cargo.lock":  # cargo writes the name of its index into every lock
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        if REGISTRY_HOSTS.search(text):
            named.append(str(path.relative_to(ROOT)))
    assert not named


@pytest.mark.parametrize("path", [path for path in rust_files() if "/src/" in str(path)], ids=lambda path: path.name)
def test_every_unsafe_block_carries_its_reason(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        # `unsafe fn` says what its caller owes (# Safety); a block, an impl or an extern says why it holds.
        if re.search(r"\bunsafe\s+(?:\{|impl|fn|trait|extern)", line.split("//")[0]) or line.rstrip().endswith("unsafe"):
            assert any("SAFETY" in before.upper() for before in lines[max(0, number - 8) : number + 1]), (
                f"{path.name}:{number + 1}"
            )
