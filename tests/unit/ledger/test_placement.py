"""Tests the choice of ensembles and replacements."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import NotEnoughBookiesError
from dlog.ledger.placement import RandomPlacement
from dlog.model.ids import BookieId
from dlog.model.quorum import Quorum


def bookies(count: int) -> list[BookieId]:
    return [BookieId(f"b{i}") for i in range(count)]


def placement(count: int, seed: int = 1) -> RandomPlacement:
    def candidates(exclude: Collection[BookieId]) -> list[BookieId]:
        return [b for b in bookies(count) if b not in exclude]

    return RandomPlacement(candidates, random.Random(seed))


@given(st.integers(1, 7), st.integers(0, 10), st.integers())
def test_an_ensemble_holds_each_bookie_once_and_none_that_is_excluded(size: int, spare: int, seed: int) -> None:
    exclude = bookies(spare)
    chosen = placement(size + spare, seed).choose(Quorum(ensemble=size, write=1, ack=1), exclude)
    assert len(set(chosen)) == size and not set(chosen) & set(exclude)


def test_too_few_bookies_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NotEnoughBookiesError, match="start more"):
        placement(2).choose(Quorum())


@given(st.integers(0, 4), st.sets(st.integers(0, 2)), st.integers())
def test_a_replacement_is_never_a_member(spare: int, failed: set[int], seed: int) -> None:
    ensemble = bookies(3)
    found = placement(3 + spare, seed).replace(Quorum(), ensemble, failed)
    assert not set(found.values()) & set(ensemble)
    assert len(set(found.values())) == len(found) == min(spare, len(failed))
    assert set(found) <= failed


def test_a_placement_that_ignores_the_exclusion_is_corrected() -> None:
    careless = RandomPlacement(lambda exclude: bookies(4), random.Random(1))
    assert careless.replace(Quorum(), bookies(3), [0, 1]) == {0: "b3"}


def test_heavier_bookies_are_chosen_more_often_and_weightless_never() -> None:
    weights = {"b0": 0.0, "b1": 1.0, "b2": 1.0, "b3": 8.0}
    chooser = RandomPlacement(lambda exclude: bookies(4), random.Random(7), lambda b: weights[b])
    counts: Counter[str] = Counter(chooser.choose(Quorum(ensemble=1, write=1, ack=1))[0] for _ in range(1000))
    assert counts["b0"] == 0 and counts["b3"] > 3 * counts["b1"] > 0


def test_the_same_seed_chooses_the_same() -> None:
    assert [placement(9, 5).choose(Quorum()) for _ in range(3)] == [placement(9, 5).choose(Quorum()) for _ in range(3)]


@given(st.integers(1, 4), st.sets(st.integers(0, 6)), st.integers(), st.booleans())
def test_who_is_to_be_avoided_is_chosen_only_for_want_of_others(
    size: int, numbers: set[int], seed: int, weighted: bool
) -> None:
    avoided = {bookies(7)[number] for number in numbers}
    weight = (lambda bookie: 9.0 if bookie in avoided else 1.0) if weighted else None
    chooser = RandomPlacement(lambda exclude: bookies(7), random.Random(seed), weight, avoided.__contains__)
    quorum = Quorum(ensemble=size, write=1, ack=1)
    assert len(set(chooser.choose(quorum)) & avoided) == max(0, size - (7 - len(avoided)))
    assert len(chooser.choose(Quorum(ensemble=7, write=1, ack=1))) == 7, "but nobody is excluded"


def test_with_nobody_to_avoid_the_choice_is_as_without() -> None:
    def candidates(exclude: Collection[BookieId]) -> list[BookieId]:
        return bookies(9)

    careful = RandomPlacement(candidates, random.Random(3), None, lambda _: False)
    plain = RandomPlacement(candidates, random.Random(3))
    assert [careful.choose(Quorum()) for _ in range(9)] == [plain.choose(Quorum()) for _ in range(9)]
