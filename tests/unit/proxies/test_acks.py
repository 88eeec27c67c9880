"""Joined acknowledgements have exactly the content of the single ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dlog.log.messages import BatchWritten
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import Txid
from proxies.acks import AckJoiner


def written(segment: int, entry: int, slot: int, count: int, txid: int = 7, duplicate: bool = False) -> BatchWritten:
    return BatchWritten(of(segment, entry, slot), count, Txid(txid), duplicate)


def test_batches_back_to_back_in_one_entry_are_one_frame() -> None:
    runs = AckJoiner()
    runs.add(10, written(1, 5, 0, 3))
    runs.add(11, written(1, 5, 3, 1))
    runs.add(12, written(1, 5, 4, 9))
    (frame,) = runs.take()
    assert (frame.first, frame.last, frame.dlsn, frame.txid) == (10, 12, (1, 5, 0), 7)
    assert runs.take() == []


def test_another_entry_a_gap_in_requests_or_slots_and_another_txid_begin_a_new_range() -> None:
    runs = AckJoiner()
    runs.add(1, written(1, 5, 0, 1))
    runs.add(2, written(1, 6, 1, 1))  # another entry
    runs.add(4, written(1, 6, 2, 1))  # request 3 belongs to another stream
    runs.add(5, written(1, 6, 4, 1))  # slot 3 belongs to another producer
    runs.add(6, written(1, 6, 5, 1, txid=8))
    runs.add(7, written(2, 6, 6, 1, txid=8))  # another segment
    assert [(f.first, f.last) for f in runs.take()] == [(1, 1), (2, 2), (4, 4), (5, 5), (6, 6), (7, 7)]


def test_another_window_begins_a_new_range_and_the_usual_one_is_not_told() -> None:
    runs = AckJoiner()
    runs.add(1, written(1, 5, 0, 1))
    runs.add(2, replace(written(1, 5, 1, 1), window=16))
    assert [(f.first, f.last, f.window) for f in runs.take()] == [(1, 1, None), (2, 2, 16)]


def test_a_duplicate_stands_alone() -> None:
    runs = AckJoiner()
    runs.add(1, written(1, 5, 0, 1))
    runs.add(2, written(1, 2, 0, 1, duplicate=True))
    runs.add(3, written(1, 5, 1, 1))
    frames = runs.take()
    assert [(f.first, f.duplicate, f.dlsn) for f in frames] == [
        (1, False, (1, 5, 0)),
        (2, True, (1, 2, 0)),
        (3, False, (1, 5, 1)),
    ]


answers = st.lists(
    st.tuples(
        st.integers(1, 2),  # step to the next request
        st.integers(0, 1),  # step to the next entry
        st.integers(0, 1),  # slots of other producers between
        st.integers(1, 4),  # count
        st.integers(0, 1),  # step of the txid
        st.booleans(),  # duplicate
        st.booleans(),  # the turn ends here
    ),
    max_size=40,
)


@given(answers)
def test_a_client_that_opens_the_ranges_finds_every_answer(
    steps: list[tuple[int, int, int, int, int, bool, bool]],
) -> None:
    runs = AckJoiner()
    said: dict[int, tuple[DLSN, int, bool]] = {}
    counts: dict[int, int] = {}
    heard: dict[int, tuple[DLSN, int, bool]] = {}

    def turn() -> None:
        for frame in runs.take():
            place = of(*frame.dlsn)
            for request in range(frame.first, frame.last + 1):
                assert request not in heard
                heard[request] = (place, frame.txid, frame.duplicate)
                place = place.next_slot(counts[request])

    request, entry, slot, txid = 0, 0, 0, 0
    for step, new_entry, between, count, later, duplicate, ends in steps:
        request += step
        entry, slot = (entry + 1, 0) if new_entry else (entry, slot + between)
        txid += later
        said[request] = (of(1, entry, slot), txid, duplicate)
        counts[request] = count
        runs.add(request, written(1, entry, slot, count, txid, duplicate))
        slot += count
        if ends:
            turn()
    turn()
    assert heard == said
