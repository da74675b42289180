"""What stands in for parts of the standard library means what its namesakes mean."""

from __future__ import annotations

import copy
import enum
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from stockade import light


class Level(light.IntEnum):
    """Ours."""

    low = 0
    high = 3

    def double(self) -> int:
        """Return twice the value."""
        return 2 * self


class Word(light.StrEnum):
    """Ours."""

    ONE = "one"
    TWO = "two"


class TheirLevel(enum.IntEnum):
    """Theirs."""

    low = 0
    high = 3


class TheirWord(enum.StrEnum):
    """Theirs."""

    ONE = "one"
    TWO = "two"


PAIRS: list[Any] = [(Level, TheirLevel), (Word, TheirWord)]
WAYS: list[Callable[[Any], object]] = [
    lambda kind: [item.name for item in kind], lambda kind: [item.value for item in kind], len,
    lambda kind: list(kind.__members__), lambda kind: [str(item) for item in kind], lambda kind: [f"{item}" for item in kind],
    lambda kind: [f"{item:>5}" for item in kind], lambda kind: json.dumps(list(kind)), lambda kind: max(kind).name,
    lambda kind: [kind(item.value) is item for item in kind], lambda kind: [kind[item.name] is item for item in kind],
    lambda kind: [hash(item) == hash(item.value) for item in kind], lambda kind: [item == item.value for item in kind],
    lambda kind: [repr(item).partition(".")[2] for item in kind], lambda kind: [item in kind for item in kind],
    lambda kind: [pickle.loads(pickle.dumps(item)) is item for item in kind],  # noqa: S301 - our own bytes
    lambda kind: [copy.deepcopy(item) is item and copy.copy(item) is item for item in kind],
]


@pytest.mark.parametrize("pair", PAIRS, ids=["int", "str"])
@pytest.mark.parametrize("way", WAYS)
def test_members_answer_as_those_of_the_standard_library(pair: Any, way: Callable[[Any], object]) -> None:
    assert way(pair[0]) == way(pair[1])


@pytest.mark.parametrize("kind", [Level, Word])
def test_an_unknown_member_is_an_error_and_nothing_can_be_changed(kind: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid"):
        kind("three")
    with pytest.raises(KeyError):
        kind["nothing"]
    first = next(iter(kind))
    for change in (lambda: setattr(first, "name", "x"), lambda: setattr(kind, first.name, 9), lambda: delattr(first, "name")):
        with pytest.raises(AttributeError):
            change()
    assert [item.value for item in kind] == [item.value for item in dict(PAIRS)[kind]]


def test_a_member_has_the_methods_of_its_class() -> None:
    assert Level.high.double() == 6


def test_memo_asks_once_for_each_argument_and_keeps_no_more_than_it_may() -> None:
    asked: list[tuple[int, int]] = []

    @light.memo(maxsize=2)
    def add(left: int, right: int = 0) -> int:
        asked.append((left, right))
        return left + right

    assert [add(1), add(1), add(1, right=2), add(1, right=2), add(1, 2)] == [1, 1, 3, 3, 3]
    assert asked == [(1, 0), (1, 2), (1, 2)]
    add.cache_clear()
    assert add(1) == 1 and len(asked) == 4


def test_memo_keeps_none_and_no_error() -> None:
    asked: list[int] = []

    @light.memo(maxsize=4)
    def even(number: int) -> None:
        asked.append(number)
        if number % 2:
            raise ValueError(number)

    for number in (2, 2, 3, 3):
        try:
            even(number)
        except ValueError:
            continue
    assert asked == [2, 3, 3]
