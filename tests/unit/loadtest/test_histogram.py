"""Tests percentiles against a sorted list, and histograms that generators in other languages write."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.histogram import Histogram, from_json, joined

VALUES = st.lists(st.integers(0, 10**9), min_size=1, max_size=200)


@given(VALUES, st.floats(0.0, 100.0))
def test_a_percentile_is_never_better_than_the_truth_and_hardly_worse(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    truth = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert truth <= histogram.percentile(percent) <= truth * (1 + 1 / 1024) + 1


@given(VALUES, VALUES)
def test_joining_is_recording_both(ones: list[int], others: list[int]) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for value in ones:
        one.record(value)
        both.record(value)
    for value in others:
        other.record(value)
        both.record(value)
    assert joined([one.as_json(), other.as_json()]).as_json() == both.as_json()


def test_counts_weigh() -> None:
    histogram = Histogram()
    histogram.record(10, 99)
    histogram.record(1000, 1)
    assert (histogram.percentile(99), histogram.percentile(99.1), histogram.count) == (10, 1000, 100)
    assert histogram.mean == pytest.approx(19.9)
    assert Histogram().percentile(50) == 0
    histogram.record(-5.0)
    assert histogram.percentile(0) == 0


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {"unit": "ms", "counts": []},
        {"unit": "us", "counts": {}},
        {"unit": "us", "counts": [[1]]},
        {"unit": "us", "counts": [[-1, 2]]},
        {"unit": "us", "counts": [[1, -2]]},
        {"unit": "us", "counts": [[1, 0.5]]},
        {"unit": "us", "counts": [["a", 1]]},
        {"unit": "us", "counts": [[float("nan"), 1]]},
    ],
)
def test_what_is_no_histogram_is_refused(told: object) -> None:
    with pytest.raises(ValueError, match="a histogram"):
        from_json(told)


def test_values_need_not_be_ours() -> None:
    assert from_json({"unit": "us", "counts": [[123456, 2], [0, 0], [7.9, 1]]}).count == 3
