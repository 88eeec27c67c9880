"""Tests a stream's metadata as a value: segments stay in order, one per number."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.model.ids import EntryId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamMetadata


def segment(number: int, *, completed: bool = True, name: str = "1") -> Segment:
    return Segment(number=SegmentNumber(number), name=name, first_txid=Txid(0), completed=completed)


EMPTY = StreamMetadata(name=StreamName("s"))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=12))
def test_segments_stay_in_order_whatever_comes(steps: list[tuple[int, bool]]) -> None:
    metadata = EMPTY
    present: set[int] = set()
    highest = 0
    for number, add in steps:
        metadata = metadata.with_segment(segment(number)) if add else metadata.without_segment(number)
        present = present | {number} if add else present - {number}
        highest = max(highest, number) if add else highest
        assert [s.number for s in metadata.segments] == sorted(present)
        assert metadata.max_segment == highest


def test_a_segment_takes_the_place_of_the_one_with_its_number() -> None:
    metadata = EMPTY.with_segment(segment(1, completed=False)).with_segment(segment(1, name="2"))
    assert [s.name for s in metadata.segments] == ["2"]
    assert metadata.segment(1) == segment(1, name="2") and metadata.segment(2) is None


def test_what_is_in_progress() -> None:
    metadata = EMPTY.with_segment(segment(1)).with_segment(segment(2, completed=False))
    assert [s.number for s in metadata.in_progress] == [2]


def test_a_partial_truncation_moves_the_first_place_that_may_be_read() -> None:
    cut = Segment(number=SegmentNumber(3), name="1", first_txid=Txid(0), min_entry=EntryId(7), min_slot=2)
    assert cut.first_dlsn == (3, 7, 2)


def test_a_stream_is_sealed_by_its_txid() -> None:
    assert not EMPTY.is_sealed
    assert StreamMetadata(name=StreamName("s"), max_txid=Txid(2**63 - 1)).is_sealed
