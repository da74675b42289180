"""The canonical form of a plan: one spelling, or an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import Error
from stockade.plan.canonical import canonical, digest

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(list(value))}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(TEXT, PLAN, max_size=6))
def test_the_order_of_keys_does_not_change_the_digest(plan: dict[str, Any]) -> None:
    assert digest(canonical(plan)) == digest(canonical(reordered(plan)))


@given(st.dictionaries(TEXT, PLAN, max_size=6))
def test_the_canonical_form_reads_back_as_the_same_plan(plan: dict[str, Any]) -> None:
    data = canonical(plan)
    assert json.loads(data) == plan
    assert canonical(json.loads(data)) == data


@given(st.dictionaries(TEXT, st.integers(), min_size=1, max_size=4))
def test_another_value_gives_another_digest(plan: dict[str, Any]) -> None:
    name = next(iter(plan))
    assert digest(canonical(plan)) != digest(canonical({**plan, name: plan[name] + 1}))


def test_text_is_not_escaped_and_separators_hold_no_space() -> None:
    assert canonical({"b": ["é", 1], "a": None}) == '{"a":null,"b":["é",1]}'.encode()


@pytest.mark.parametrize("value", [1.0, b"x", ("a",), {1: 2}, {"a": {1, 2}}])
def test_a_value_without_a_canonical_spelling_is_an_error(value: Any) -> None:
    with pytest.raises(Error) as caught:
        canonical({"x": value})
    assert caught.value.code == "plan_invalid"


def test_a_path_that_is_not_utf8_is_named_and_refused() -> None:
    with pytest.raises(Error) as caught:
        canonical({"mounts": [{"source": "/w/\udcff"}]})
    assert caught.value.code == "path_invalid"
    assert "\\udcff" in str(caught.value)
