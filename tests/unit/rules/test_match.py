"""Patterns mean what ``fnmatch`` says they mean."""

from __future__ import annotations

import fnmatch

from hypothesis import given
from hypothesis import strategies as st

from stockade.rules.match import is_pattern, matches

WORDS = st.text(alphabet="ab.*?[]!-x", max_size=8)


@given(WORDS, WORDS)
def test_a_pattern_fits_exactly_what_fnmatch_says(name: str, pattern: str) -> None:
    assert matches(name, pattern) == fnmatch.fnmatchcase(name, pattern)


@given(st.text(alphabet="ab", max_size=6), st.text(alphabet="ab*", max_size=6))
def test_stars_fit_exactly_what_fnmatch_says(name: str, pattern: str) -> None:
    assert matches(name, pattern) == fnmatch.fnmatchcase(name, pattern)


def test_a_name_without_special_characters_is_no_pattern() -> None:
    assert not is_pattern(".config/git-credentials") and is_pattern("*.pem") and is_pattern("[a]") and is_pattern("a?")
