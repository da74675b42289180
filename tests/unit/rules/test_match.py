"""Patterns mean what ``fnmatch`` says they mean."""

from __future__ import annotations

import fnmatch
import os
from glob import escape, glob
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.rules.match import expanded, is_pattern, matches

WORDS = st.text(alphabet="ab.*?[]!-x", max_size=8)


@given(WORDS, WORDS)
def test_a_pattern_fits_exactly_what_fnmatch_says(name: str, pattern: str) -> None:
    assert matches(name, pattern) == fnmatch.fnmatchcase(name, pattern)


@given(st.text(alphabet="ab", max_size=6), st.text(alphabet="ab*", max_size=6))
def test_stars_fit_exactly_what_fnmatch_says(name: str, pattern: str) -> None:
    assert matches(name, pattern) == fnmatch.fnmatchcase(name, pattern)


def test_a_name_without_special_characters_is_no_pattern() -> None:
    assert not is_pattern(".config/git-credentials") and is_pattern("*.pem") and is_pattern("[a]") and is_pattern("a?")


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("pattern", ["*", "a*", ".*", "*/x", "*/*/x", "a?/[xy]", "sub/*", "gone/*", "a1/x", "*/gone", "**"])
def test_a_place_is_expanded_as_glob_does(tmp_path: Path, pattern: str, hidden: bool) -> None:
    base = tmp_path / "odd [name]*"
    for name in ("a1/x", "a2/y", ".a3/x", "sub/.h/x", "sub/s/x"):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("")
    (base / "broken").symlink_to("nowhere")
    found = glob(os.path.join(escape(str(base)), pattern), include_hidden=hidden)
    assert expanded(pattern, base=str(base), hidden=hidden) == sorted(found)
