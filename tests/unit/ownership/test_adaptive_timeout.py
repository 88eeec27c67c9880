"""Tests how long a peer may be silent, derived from its response times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlog.ownership.adaptive_timeout import FACTOR, SAMPLES, AdaptiveTimeout


def test_fast_answers_leave_the_limit_at_its_floor() -> None:
    limit = AdaptiveTimeout(0.3, 5.0)
    assert limit.limit_s == 0.3
    for _ in range(100):
        limit.answered(0.001)
        assert limit.limit_s == 0.3


def test_one_answer_that_took_long_changes_nothing_and_two_do() -> None:
    limit = AdaptiveTimeout(0.3, 5.0)
    limit.answered(2.0)
    assert limit.limit_s == 0.3, "it was frozen once"
    limit.answered(1.0)
    assert limit.limit_s == FACTOR * 1.0
    for _ in range(SAMPLES):
        limit.answered(0.01)
    assert limit.limit_s == 0.3, "what was long ago is forgotten"


@given(st.lists(st.floats(0.0, 100.0)), st.floats(0.01, 1.0), st.floats(0.0, 10.0))
def test_the_limit_stays_between_its_bounds(took: list[float], floor_s: float, ceiling_s: float) -> None:
    limit = AdaptiveTimeout(floor_s, ceiling_s)
    for took_s in took:
        limit.answered(took_s)
        assert floor_s <= limit.limit_s <= max(floor_s, ceiling_s)
