"""Tests that a value is a frozen dataclass with slots, however it is made."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from inspect import signature
from typing import NamedTuple

import pytest

from dlog.values import Columns, value


@value
class Told:
    """A value with a default."""

    name: str
    count: int
    known: bool = False


@dataclass(frozen=True, slots=True)
class Usual:
    """The same, as the library makes it."""

    name: str
    count: int
    known: bool = False


@value
class Nothing:
    """A value without fields."""


def test_it_is_made_copied_compared_and_shown_like_a_dataclass() -> None:
    told = Told("a", count=2)
    assert (told.name, told.count, told.known) == ("a", 2, False)
    assert told == Told("a", 2, False) != Told("a", 2, True)
    assert hash(told) == hash(Told("a", 2)) and Nothing() == Nothing()
    assert replace(told, known=True) == Told("a", 2, known=True)
    assert repr(told) == "Told(name='a', count=2, known=False)"
    assert [f.name for f in fields(told)] == ["name", "count", "known"]
    assert pickle.loads(pickle.dumps(told)) == told
    match told:
        case Told(name, count):
            assert (name, count) == ("a", 2)
    parameters, usual = signature(Told.__init__).parameters, signature(Usual.__init__).parameters
    assert [(p.name, p.default, p.annotation) for p in parameters.values()] == [
        (p.name, p.default, p.annotation) for p in usual.values()
    ]


def test_it_cannot_be_changed_nor_made_of_something_else() -> None:
    told = Told("a", 2)
    with pytest.raises(FrozenInstanceError):
        told.count = 3  # type: ignore[misc]  # refused is what is shown
    with pytest.raises((AttributeError, TypeError)):
        told.other = 3  # type: ignore[attr-defined]  # refused is what is shown
    with pytest.raises(TypeError):
        Told("a")  # type: ignore[call-arg]  # refused is what is shown
    with pytest.raises(TypeError):
        Told("a", 2, other=3)  # type: ignore[call-arg]  # refused is what is shown


class Row(NamedTuple):
    """A named tuple, as rows of `Columns`."""

    number: int
    text: str


def test_columns_are_the_sequence_of_their_rows() -> None:
    rows = [Row(1, "a"), Row(2, "b"), Row(3, "c")]
    made = Columns(Row, ([1, 2, 3], ("a", "b", "c")))
    assert (len(made), made[0], made[-1], list(made)) == (3, rows[0], rows[2], rows)
    assert [type(one) for one in (made[1], *made)] == [Row] * 4
    assert made == rows and tuple(rows) == made and made != rows[:2] and made != [*rows[:2], Row(3, "d")]
    assert made[1:] == rows[1:] and hash(made) == hash(tuple(rows))
    assert Columns.of(Row, rows) == made and Columns.of(Row, made) is made
    assert Columns.of(Row, rows).columns == ((1, 2, 3), ("a", "b", "c"))
    assert not Columns.of(Row, []) and Columns.of(Row, []).columns == ((), ())
    with pytest.raises(IndexError):
        made[3]


def test_columns_are_shown_shortly() -> None:
    assert repr(Columns(Row, ([1] * 1000, ["long" * 1000] * 1000))) == "<1000 rows of Row>"
