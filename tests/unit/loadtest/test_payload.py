"""Records name their producer, and a reader rejects one that does not verify."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.payload import PAYLOAD_BYTES_MIN, PayloadMaker, Span, due_ns, read, spans


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.integers(PAYLOAD_BYTES_MIN, 2000), st.integers(0, 2**62))
def test_a_record_tells_what_it_was_made_of(producer: int, first: int, size: int, due: int) -> None:
    (record,) = PayloadMaker(producer, size).make(first, 1, due)
    assert len(record) == size
    assert read(record) == (producer, first, due)
    assert due_ns(record) == due


@given(st.integers(0, 99), st.integers(1, 255))
def test_one_changed_byte_is_seen(at: int, flip: int) -> None:
    (record,) = PayloadMaker(3, 100).make(7, 1, 11)
    damaged = record[:at] + bytes([record[at] ^ flip]) + record[at + 1 :]
    assert read(damaged) is None
    assert spans([damaged]) == [Span(0, 0, 0, 0)]


def test_dues_are_apart_by_the_step() -> None:
    records = PayloadMaker(0, 24).make(0, 5, 1000, 10.5)
    assert [due_ns(r) for r in records] == [1000, 1010, 1021, 1031, 1042]


def test_the_filler_is_neither_all_noise_nor_all_alike() -> None:
    (record,) = PayloadMaker(1, 1024).make(0, 1, 0)
    assert len(set(record[24:524])) > 100
    assert len(set(record[540:])) <= 16


def test_what_is_dense_is_one_span() -> None:
    mine, other = PayloadMaker(1, 40), PayloadMaker(2, 40)
    delivery = [*mine.make(0, 3, 0), *other.make(9, 2, 0), b"short", *mine.make(3, 1, 0), *mine.make(5, 1, 0)]
    assert spans(delivery) == [
        Span(0, 1, 0, 3),
        Span(3, 2, 9, 2),
        Span(5, 0, 0, 0),
        Span(6, 1, 3, 1),
        Span(7, 1, 5, 1),
    ]
    assert spans([]) == []


def test_a_record_has_room_for_what_it_says() -> None:
    with pytest.raises(ValueError, match="at least 24"):
        PayloadMaker(0, 23)


def test_records_due_at_once_are_what_they_are_one_by_one() -> None:
    maker = PayloadMaker(5, 64)
    for first, count in ((0, 3), (65_530, 12), (2**40 - 1, 2), (7, 140_000)):
        together = maker.make(first, count, 99)
        assert len(together) == count
        for at in {0, 1, count // 2, count - 1}:
            assert [together[at]] == maker.make(first + at, 1, 99)
            assert read(together[at]) == (5, first + at, 99)
