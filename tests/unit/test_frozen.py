"""Records mean what their namesakes of the standard library mean, in the one style used here."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade import frozen


@frozen.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A record with a default, a factory and a hidden field."""

    KIND: ClassVar[str] = "p"
    x: int
    y: int = 2
    tags: tuple[str, ...] = frozen.field(default_factory=tuple)
    secret: str = frozen.field(default="hunter2", repr=False)

    def total(self) -> int:
        """Return the sum."""
        return self.x + self.y


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """The same with the standard library."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = dataclasses.field(default_factory=tuple)
    secret: str = dataclasses.field(default="hunter2", repr=False)


@frozen.dataclass(slots=True, kw_only=True)
class Mutable:
    """A record that may change."""

    items: list[int] = frozen.field(default_factory=list)


VALUES = st.fixed_dictionaries({"x": st.integers(0, 3)}, optional={
    "y": st.integers(0, 3), "tags": st.tuples(st.sampled_from("ab")), "secret": st.sampled_from(["a", "b"])})


@given(first=VALUES, second=VALUES)
def test_equality_hash_and_text_are_those_of_the_standard_library(first: dict[str, Any], second: dict[str, Any]) -> None:
    mine, theirs = (Point(**first), Point(**second)), (Standard(**first), Standard(**second))
    assert (mine[0] == mine[1]) == (theirs[0] == theirs[1])
    assert (hash(mine[0]) == hash(mine[1])) or mine[0] != mine[1]
    assert repr(mine[0]) == repr(theirs[0]).replace("Standard", "Point")
    assert frozen.asdict(mine[0]) == dataclasses.asdict(theirs[0])


@pytest.mark.parametrize("values", [{}, {"y": 1}, {"x": 1, "z": 2}])
def test_a_missing_or_unknown_field_is_a_type_error(values: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Point(**values)
    with pytest.raises(TypeError):
        Point(1)  # type: ignore[misc]


def test_a_frozen_record_cannot_change_and_has_no_dict() -> None:
    point = Point(x=1)
    for name in ("x", "new"):
        with pytest.raises(AttributeError):
            setattr(point, name, 3)
    with pytest.raises(AttributeError):
        del point.x  # type: ignore[misc]
    assert not hasattr(point, "__dict__") and point.total() == 3 and Point.KIND == "p"


def test_records_survive_pickle_copy_and_replace() -> None:
    point = Point(x=1, tags=("a",))
    assert pickle.loads(pickle.dumps(point)) == copy.copy(point) == copy.deepcopy(point) == point  # noqa: S301
    assert frozen.replace(point, x=5) == Point(x=5, tags=("a",))
    with pytest.raises(TypeError):
        frozen.replace(point, nope=1)


def test_each_record_gets_its_own_default_and_a_mutable_one_has_no_hash() -> None:
    first, second = Mutable(), Mutable()
    first.items.append(1)
    assert second.items == [] and first != second
    with pytest.raises(TypeError):
        hash(first)


def test_another_style_is_refused_where_the_class_is_defined() -> None:
    with pytest.raises(TypeError):
        frozen.dataclass(frozen=True)(Point)


def test_fields_are_listed_in_order() -> None:
    assert [item.name for item in frozen.fields(Point)] == ["x", "y", "tags", "secret"]


class Row(frozen.NamedTuple):
    """A named tuple of ours."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.x + self.y


class StandardRow(NamedTuple):
    """The same with the standard library."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = ()


@given(values=st.lists(st.integers(0, 3), max_size=4), named=st.dictionaries(st.sampled_from(["x", "y", "tags", "z"]), st.integers(0, 3)))
def test_named_tuples_are_made_and_refused_as_those_of_the_standard_library(values: list[int], named: dict[str, Any]) -> None:
    def made(kind: Any) -> Any:
        try:
            return kind(*values, **named)
        except TypeError:
            return None

    mine, theirs = made(Row), made(StandardRow)
    assert mine == theirs
    if mine is not None:
        assert repr(mine) == repr(theirs).removeprefix("Standard")
        assert mine._asdict() == theirs._asdict() and mine.total == mine.x + mine.y
        assert mine._replace(y=9) == theirs._replace(y=9) and mine._fields == theirs._fields
        assert pickle.loads(pickle.dumps(mine)) == copy.deepcopy(mine) == mine  # noqa: S301 - our own bytes
        assert type(copy.copy(mine)) is Row and Row._make(mine) == mine


def test_a_named_tuple_cannot_be_changed_and_a_wrong_count_is_an_error() -> None:
    row = Row(1)
    with pytest.raises(AttributeError):
        row.x = 3  # type: ignore[misc]
    for wrong in (lambda: Row._make([1]), lambda: row._replace(z=1)):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    match row:
        case Row(x, y):
            assert (x, y) == (1, 2)
