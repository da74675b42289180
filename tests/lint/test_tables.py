"""Tables that stand in both languages say the same, and every code of them is in use.

Owns: the comparison. A hint that differs between the terminal and the page, a fact that only one
half knows, or a code that nothing raises is documentation of another program.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from stockade.codes import CODES
from stockade.host.answers import OF_THE_HOST
from stockade.rules.promises import FACTS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, LAUNCHER = ROOT / "src" / "stockade", ROOT / "launcher" / "src"
# Both halves have a command line of their own that may be misused.
TWO_MEANINGS = {"usage"}


def rust_table(file: str, start: str) -> str:
    """The text of a constant of the launcher, from its name to the end of the list."""
    text = (LAUNCHER / file).read_text(encoding="utf-8")
    assert text.count(start) == 1
    return text.split(start)[1].split("];")[0]


def rust_codes() -> dict[str, str]:
    """Hint of every refusal code of the launcher."""
    rows = re.findall(r'\(\s*"(\w+)",\s*\d+,\s*"((?:[^"\\]|\\.)*)",?\s*\)', rust_table("report.rs", "pub const CODES"))
    assert len(rows) > 30
    return {code: hint.replace('\\"', '"') for code, hint in rows}


def python_words() -> set[str]:
    """Every string literal of the package outside the table itself."""
    words: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            table = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "CODES"
            if table and isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
                node.value.keys = []
        words |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return words


def rust_words() -> set[str]:
    """Every code that the launcher refuses with, as its own test finds them."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in LAUNCHER.rglob("*.rs"))
    for listed in (rust_table("report.rs", "pub const CODES"), rust_table("answers.rs", "const OF_THE_HOST")):
        text = text.replace(listed, "")
    return set(re.findall(r'"(\w+)"', text))


def test_every_code_of_the_launcher_has_one_meaning_and_one_hint() -> None:
    codes = rust_codes()
    assert sorted(codes.keys() - CODES.keys()) == []
    differ = {code: (hint, CODES[code].hint) for code, hint in codes.items() if code not in TWO_MEANINGS and CODES[code].hint != hint}
    assert differ == {}


def test_every_code_is_raised_somewhere() -> None:
    used = python_words() | rust_words()
    assert sorted(CODES.keys() - used) == []


def test_every_code_of_the_launcher_is_refused_with_somewhere() -> None:
    assert sorted(rust_codes().keys() - rust_words()) == []


def test_both_halves_know_the_same_facts() -> None:
    launcher = set(re.findall(r'"(\w+)"', rust_table("promises.rs", "pub const FACTS")))
    assert launcher == FACTS
    given = set(re.findall(r'"([a-z_]+)"', (LAUNCHER / "facts.rs").read_text(encoding="utf-8"))) - {"tmpfs", "overlay", "host"}
    assert launcher - given == set(), "facts that no launch proves"


def test_both_halves_say_alike_which_refusals_take_an_answer_of_the_probe_back() -> None:
    assert set(re.findall(r'"(\w+)"', rust_table("answers.rs", "const OF_THE_HOST"))) == OF_THE_HOST <= CODES.keys()


@pytest.mark.parametrize("file", ["nested.rs", "nested/births.rs", "nested/client.rs"])
def test_what_the_nest_service_refuses_says_what_it_got_and_what_it_expected(file: str) -> None:
    text = (LAUNCHER / file).read_text(encoding="utf-8")
    said = re.findall(r'(?:detail|format!|invalid)\(\s*"([^"]*)"|const ENDING: &str = "([^"]*)"', text)
    words = [one or other for one, other in said if not (one or other).startswith(("self/ns/", "{pid}", "{uid}", "{gid}", "{command}"))]
    assert words and [word for word in words if not re.match(r"got .+, expected .+", word)] == []
