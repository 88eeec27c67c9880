"""Weights by free disk space."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlog.ledger.disk_weights import ROUNDS_KEPT, UNKNOWN, WEIGHT_MIN, DiskWeights
from dlog.model.ids import BookieId

A, B, C, D = (BookieId(name) for name in "abcd")


def told(multiple_max: float = 3.0, **free: int) -> DiskWeights:
    weights = DiskWeights(multiple_max)
    found = {BookieId(name): size for name, size in free.items()}
    weights.note_round(found.keys(), found)
    return weights


def test_a_bookie_weighs_what_its_free_space_is_of_the_medians() -> None:
    weights = told(a=100, b=200, c=300)
    assert [weights.weight(bookie) for bookie in (A, B, C)] == [0.5, 1.0, 1.5]


def test_an_empty_bookie_beside_full_ones_does_not_get_everything() -> None:
    weights = told(a=10, b=10, c=10_000)
    assert weights.weight(C) == 3.0


@given(st.dictionaries(st.sampled_from("abcdef").map(BookieId), st.integers(-5, 10**15)), st.floats(1.0, 10.0))
def test_nobody_is_excluded_and_more_space_is_never_less_weight(free: dict[BookieId, int], most: float) -> None:
    weights = DiskWeights(most)
    weights.note_round([*free, BookieId("z")], free)
    by_space = [weights.weight(bookie) for bookie in sorted(free, key=free.__getitem__)]
    assert by_space == sorted(by_space)
    assert all(WEIGHT_MIN <= weight <= most for weight in [*by_space, weights.weight(BookieId("z"))])


def test_what_is_not_told_any_more_is_forgotten_after_some_rounds() -> None:
    weights = told(a=10, b=30, c=50)
    for _ in range(ROUNDS_KEPT - 1):
        weights.note_round([A], {})
    assert weights.weight(A) == 10 / 30
    weights.note_round([A], {})
    assert weights.weight(A) == UNKNOWN and weights.weight(B) == 30 / 40, "the median is that of the others"
    weights.note_round([A], {A: 40})
    assert weights.weight(A) == 1.0


def test_a_bookie_that_is_gone_does_not_count_for_the_median() -> None:
    weights = told(a=10, b=20, c=600)
    weights.keep([B, C])
    assert weights.weight(A) == UNKNOWN and weights.weight(B) == 20 / 310


def test_a_round_of_some_bookies_keeps_what_is_known_of_the_others() -> None:
    weights = told(a=10, b=20)
    for _ in range(ROUNDS_KEPT + 1):
        weights.note_round([D], {D: 30})
    assert weights.weight(A) == 0.5 and weights.weight(D) == 1.5
