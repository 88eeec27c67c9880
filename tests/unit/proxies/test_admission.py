"""Tests bytes in flight: taken once, given back once, refused as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import OverCapacityError
from proxies.admission import BATCH_OVERHEAD_BYTES, Admission

COST = 1000 + BATCH_OVERHEAD_BYTES


def test_a_stream_beyond_its_share_is_refused_while_others_go_on() -> None:
    admission = Admission(process_bytes_max=10 * COST, stream_bytes_max=2 * COST)
    admission.take("a", 1000)
    admission.take("a", 1000)
    with pytest.raises(OverCapacityError):
        admission.take("a", 1000)
    admission.take("b", 1000)
    assert admission.process.bytes == 3 * COST
    assert admission.refused == 1


def test_the_process_refuses_when_all_streams_together_have_its_share() -> None:
    admission = Admission(process_bytes_max=2 * COST, stream_bytes_max=2 * COST)
    admission.take("a", 1000)
    cost = admission.take("b", 1000)
    with pytest.raises(OverCapacityError):
        admission.take("c", 1000)
    admission.give_back("b", cost)
    admission.take("c", 1000)


def test_an_empty_gauge_takes_a_batch_larger_than_itself() -> None:
    admission = Admission(process_bytes_max=10, stream_bytes_max=10)
    cost = admission.take("a", 1000)
    with pytest.raises(OverCapacityError):
        admission.take("a", 1)
    admission.give_back("a", cost)
    assert admission.process.bytes == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5000)), max_size=60))
def test_whatever_was_taken_comes_back_and_bounds_hold(wanted: list[tuple[str, int]]) -> None:
    admission = Admission(process_bytes_max=20_000, stream_bytes_max=8_000)
    held: list[tuple[str, int]] = []
    for stream, size in wanted:
        try:
            held.append((stream, admission.take(stream, size)))
        except OverCapacityError:
            if held:
                admission.give_back(*held.pop(0))
        assert admission.process.bytes == sum(cost for _, cost in held)
        assert admission.process.bytes <= 20_000
        for name in "abc":
            assert admission.of_stream(name) == sum(cost for s, cost in held if s == name) <= 8_000
    for stream, cost in held:
        admission.give_back(stream, cost)
    assert admission.process.bytes == 0
    assert admission.of_stream("a") == 0
