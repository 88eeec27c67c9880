"""How long readers wait for a replica, and which one they ask first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.ledger.replica_health import (
    COUNT_MAX,
    HALVED_EVERY,
    LATE_BATCHES,
    LATE_SHARE,
    WAIT_MAX_S,
    ReplicaHealth,
)
from dlog.model.ids import BookieId

A, B, C = (BookieId(name) for name in "abc")


def near(_: BookieId) -> int:
    return 0


def order(health: ReplicaHealth, *, batch: bool = False) -> str:
    return "".join(health.in_order([A, B, C], near, batch=batch))


@given(st.lists(st.booleans(), max_size=300), st.floats(0.001, 10.0), st.floats(0.001, 10.0), st.booleans())
def test_the_wait_stays_in_its_bounds(late: list[bool], start: float, least: float, batch: bool) -> None:
    health = ReplicaHealth(start, least)
    for is_late in late:
        health.note_late([A], batch=batch) if is_late else health.note_in_time(A if batch else None)
        assert min(least, start) <= health.wait_s(batch=batch) <= max(start, WAIT_MAX_S)
        assert health.wait_s(batch=not batch) == start, "each kind of reads has its own"


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("typical_s", [0.001, 0.03, 0.1, 0.4, 1.0])
def test_about_one_wait_in_twenty_is_too_short_whatever_the_bookies_take(typical_s: float, batch: bool) -> None:
    health, rng = ReplicaHealth(0.5, 0.0001), random.Random(5)
    late = 0
    for number in range(6000):
        is_late = rng.expovariate(1 / typical_s) > health.wait_s(batch=batch)
        late += is_late and number >= 1000  # it has settled
        health.note_late([A], batch=batch) if is_late else health.note_in_time(A if batch else None)
    assert LATE_SHARE / 2 < late / 5000 < LATE_SHARE * 2
    assert typical_s < health.wait_s(batch=batch) < 10 * typical_s, "a quantile of what they take, in the tail"


def test_a_replica_that_was_late_or_failed_is_asked_last_until_others_did_well_for_a_while() -> None:
    health = ReplicaHealth(0.5, 0.02)
    assert order(health) == "abc"
    health.note_late([A])
    assert order(health) == "bca"
    health.note_fault(B)
    health.note_fault(B)
    assert order(health) == "cab"
    health.note_good(A)
    assert order(health) == "cab", "that a reply came late does not make it fast"
    health.note_good(B)
    assert order(health) == "bca"
    for _ in range(HALVED_EVERY):
        health.note_in_time()
    assert order(health) == "abc"


def test_a_replica_is_asked_last_for_batches_only_if_it_was_late_again_and_again() -> None:
    health = ReplicaHealth(0.5, 0.02)
    for _ in range(3 * HALVED_EVERY):
        for _ in range(LATE_BATCHES - 1):
            health.note_late([A], batch=True)
            assert order(health, batch=True) == "abc"
        health.note_in_time(A)
    health.note_late([B])
    assert (order(health), order(health, batch=True)) == ("acb", "abc"), "each kind of reads has its own"
    for _ in range(LATE_BATCHES):
        health.note_late([A], batch=True)
    assert (order(health), order(health, batch=True)) == ("acb", "bca")
    for _ in range(HALVED_EVERY - 1):
        health.note_in_time(B)
        assert order(health, batch=True) == "bca"
    health.note_in_time(A)
    assert order(health, batch=True) == "abc"
    health.note_fault(A)
    assert (order(health), order(health, batch=True)) == ("cab", "bca"), "an error counts at once"


def test_a_count_is_bounded_so_that_no_replica_is_left_for_good() -> None:
    health = ReplicaHealth(0.5, 0.02)
    for _ in range(1000):
        health.note_late([A])
        health.note_fault(A)
    for _ in range(HALVED_EVERY * COUNT_MAX.bit_length()):
        health.note_in_time()
    assert order(health) == "abc"


def test_the_nearest_of_equally_healthy_ones_is_first() -> None:
    health = ReplicaHealth(0.5, 0.02)
    far = {A: 2, B: 1, C: 0}
    assert health.in_order([A, B, C], far.__getitem__) == [C, B, A]
    health.note_late([C])
    assert health.in_order([A, B, C], far.__getitem__) == [B, A, C]
