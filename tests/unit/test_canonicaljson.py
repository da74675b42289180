"""The canonical spelling is that of RFC 8785, and what has none is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.canonicaljson import MAX_INTEGER, encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_the_spelling_says_the_value_and_is_its_only_one(value: object) -> None:
    data = encode(value)
    assert json.loads(data) == value
    assert encode(json.loads(data)) == data
    assert b"\n" not in data


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.integers(0, 9), max_size=6))
def test_keys_stand_in_the_order_of_their_utf16_units(value: dict[str, int]) -> None:
    keys = list(json.loads(encode(value)))
    assert keys == sorted(value, key=lambda key: key.encode("utf-16-be"))
    mixed = dict(reversed(value.items()))
    assert encode(mixed) == encode(value)


def test_the_sample_of_the_rfc_for_the_order_of_keys() -> None:
    # RFC 8785, section 3.2.3: the order of these keys, not of their code points.
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    assert list(json.loads(encode(dict.fromkeys(keys, 0)))) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_control_characters_have_the_short_spelling_or_small_digits() -> None:
    # RFC 8785, section 3.2.2.2.
    assert encode("\b\t\n\f\r\"\\\x0f\x7f/\u00e9") == b'"\\b\\t\\n\\f\\r\\"\\\\\\u000f\x7f/\xc3\xa9"'


@pytest.mark.parametrize("value", [1.0, float("nan"), MAX_INTEGER + 1, -MAX_INTEGER - 1, b"", {1: 2}, {None: 1}, (1,), {1}, [object()], "\ud800", {"\udfff": 1}, [{"\u00e9": 1}, 1.5]])
def test_what_has_no_canonical_spelling_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        encode(value)
    with pytest.raises(ValueError):
        encode({"a": [value]})
