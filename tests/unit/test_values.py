"""Tests that a value is a frozen dataclass with slots, however it is made."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
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


@value
class More(Told):
    """A value derived from a value; notes say nothing about what it is."""

    notes: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Mixed(Told):
    """A dataclass derived from a value."""

    size: int = 0


@value
class Mixture(Usual):
    """A value derived from a dataclass."""

    size: int = 0


def test_values_and_frozen_dataclasses_are_derived_from_each_other() -> None:
    more = More("a", 2, notes="seen")
    assert more == More("a", 2) and hash(more) == hash(More("a", 2)) and more != Told("a", 2)
    assert repr(more) == "More(name='a', count=2, known=False)" and copy(more).notes == "seen"
    for derived in (more, Mixed("a", 2, size=1), Mixture("a", 2, size=1)):
        assert pickle.loads(pickle.dumps(derived)) == derived and replace(derived, count=3).count == 3
        with pytest.raises(FrozenInstanceError):
            derived.count = 3  # type: ignore[misc]  # refused is what is shown
        with pytest.raises(FrozenInstanceError):
            del derived.count


def test_a_value_with_a_method_of_a_dataclass_of_its_own_is_refused() -> None:
    with pytest.raises(AssertionError, match="a value has no __eq__, __hash__ of its own: Odd"):

        @value
        class Odd:
            def __eq__(self, other: object) -> bool:
                return True


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
