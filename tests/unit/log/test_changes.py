"""Tests changes of a stream's metadata: applying one twice is the same as once, and each changes only what it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.log.changes import (
    Allocate,
    Change,
    CompleteSegment,
    Deallocate,
    DropEmptySegment,
    Expire,
    ForgetTruncated,
    ListImportedSegments,
    MarkReleased,
    MarkTruncated,
    SegmentEnd,
    Stage,
    StartSegment,
    TruncateTo,
    allocated_location,
    allocated_name,
)
from dlog.model.dlsn import of
from dlog.model.ids import TXID_END_OF_STREAM, EntryId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Location, Segment, StreamMetadata
from dlog.model.sink import SinkBatch, SinkRecord


def segment(number: int, *, completed: bool = True) -> Segment:
    made = Segment(number=SegmentNumber(number), name=f"{number}a", first_txid=Txid(number * 10))
    if not completed:
        return made
    return replace(
        made,
        completed=True,
        last_txid=Txid(number * 10 + 9),
        last_entry=EntryId(4),
        last_slot=2,
        record_count=7,
        completed_unix_ms=number * 1000,
        metadata_unix_ms=number * 1000 - 1,
        start_sequence_id=(number - 1) * 7,
    )


def stream(completed: int, in_progress: int = 1) -> StreamMetadata:
    segments = [segment(n) for n in range(1, completed + 1)]
    segments += [segment(n, completed=False) for n in range(completed + 1, completed + in_progress + 1)]
    return StreamMetadata(
        name=StreamName("s"),
        segments=tuple(segments),
        max_segment=SegmentNumber(len(segments)),
        max_txid=Txid(completed * 10 + 9 if completed else 0),
    )


def numbers(segments: Iterable[Segment]) -> list[int]:
    return [s.number for s in segments]


def kept_for(retention_s: float, value: StreamMetadata) -> StreamMetadata:
    return replace(value, settings=replace(value.settings, retention_s=retention_s))


def ledger(name: str) -> Location:
    return Location("ledger", name)


END = SegmentEnd(EntryId(3), 1, Txid(77), 5)
CHANGES: list[Change] = [
    StartSegment(segment(4, completed=False), "4a", ledger("3a")),
    CompleteSegment(SegmentNumber(3), ledger("3a"), END, 9000),
    CompleteSegment(SegmentNumber(2), ledger("2a"), END, 9000),
    DropEmptySegment(SegmentNumber(3), ledger("3a"), "3a"),
    Allocate("4a"),
    Deallocate("4a"),
    TruncateTo(of(2, 1, 1)),
    Expire(6500),
    MarkTruncated(SegmentNumber(1)),
    ForgetTruncated(SegmentNumber(1)),
    MarkReleased(),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("before", [stream(2), replace(stream(2), allocated="4a"), kept_for(5.0, stream(3, 0))])
def test_twice_is_once(change: Change, before: StreamMetadata) -> None:
    once = change.apply(before)
    assert change.apply(once) == once


def test_starting_a_segment_takes_its_place_out_of_allocated_and_no_other() -> None:
    before = replace(stream(2), allocated="4a")
    assert StartSegment(segment(4, completed=False), "4a", ledger("3a")).apply(before).allocated == ""
    assert StartSegment(segment(4, completed=False), "9z", ledger("3a")).apply(before).allocated == "4a"


def test_a_segment_is_not_started_below_the_truncation_point() -> None:
    """A Java writer went on beyond this owner's segment, and what it wrote first is truncated by now."""
    before = TruncateTo(of(3, 0, 0)).apply(stream(3))
    late = StartSegment(segment(2, completed=False), "")
    assert late.apply(before) == before
    assert not late.was_made(before)


@pytest.mark.parametrize("follows", [None, ledger("3x")])
def test_a_segment_is_not_started_beside_one_that_another_writer_began(follows: Location | None) -> None:
    """It may have the number of an empty segment that was dropped meanwhile; only its location tells."""
    start = StartSegment(segment(4, completed=False), "4a", follows)
    assert start.apply(stream(2)) == stream(2) and not start.was_made(stream(2))


def test_completing_records_the_end_and_goes_on_counting() -> None:
    after = CompleteSegment(SegmentNumber(3), ledger("3a"), END, 9000).apply(stream(2))
    done = after.segments[2]
    assert (done.last_entry, done.last_slot, done.last_txid, done.record_count) == (3, 1, 77, 5)
    assert done.start_sequence_id == 14
    assert after.max_txid == 77


def test_completing_a_segment_that_another_completed_at_the_same_end_changes_nothing() -> None:
    same = SegmentEnd(EntryId(4), 2, Txid(29), 7)
    assert CompleteSegment(SegmentNumber(2), ledger("2a"), same, 9000).apply(stream(2)) == stream(2)


def test_completing_a_segment_that_another_completed_elsewhere_puts_its_end_right_and_nothing_else() -> None:
    before = stream(2)
    after = CompleteSegment(SegmentNumber(2), ledger("2a"), END, 9000).apply(before)
    right = replace(before.segments[1], last_txid=Txid(77), last_entry=EntryId(3), last_slot=1, record_count=5)
    assert after.segments == (before.segments[0], right, before.segments[2])
    assert after.max_txid == 77


def test_completing_says_nothing_of_another_place_with_the_number() -> None:
    assert CompleteSegment(SegmentNumber(2), ledger("other"), END, 9000).apply(stream(2)) == stream(2)
    assert CompleteSegment(SegmentNumber(3), ledger("other"), END, 9000).apply(stream(2)) == stream(2)


def test_nothing_is_taken_in_by_a_sealed_stream() -> None:
    change = ListImportedSegments((Stage(ledger("x"), Txid(500), END),), SinkRecord(SinkBatch("sink", 0, "q", 0)), 9000)
    before = stream(3, 0)
    assert [s.name for s in change.apply(before).segments] == ["1a", "2a", "3a", "x"]
    sealed = replace(before, max_txid=TXID_END_OF_STREAM)
    assert sealed.is_sealed and change.apply(sealed) == sealed and not change.was_made(sealed)


def test_an_empty_segment_leaves_no_trace_but_its_place_to_delete() -> None:
    after = DropEmptySegment(SegmentNumber(3), ledger("3a"), "3a").apply(stream(2))
    assert [s.number for s in after.segments] == [1, 2]
    assert after.max_txid == stream(2).max_txid
    assert after.allocated == "3a"
    assert DropEmptySegment(SegmentNumber(3), ledger("other"), "x").apply(stream(2)) == stream(2)


def test_truncated_segments_are_marked_and_forgotten_up_to_a_number_and_no_other() -> None:
    before = stream(4)
    for change in (MarkTruncated(SegmentNumber(2)), ForgetTruncated(SegmentNumber(2))):
        assert change.apply(before) == before, "nothing is truncated"
    truncated = TruncateTo(of(4, 0, 0)).apply(before)
    assert (numbers(truncated.truncated), numbers(truncated.segments)) == ([1, 2, 3], [4, 5])
    assert truncated.listed == before.listed, "one small change, which rewrites no segment"
    marked = MarkTruncated(SegmentNumber(2)).apply(truncated)
    assert [s.truncation.name for s in marked.truncated] == ["TRUNCATED", "TRUNCATED", "ACTIVE"]
    assert MarkTruncated(SegmentNumber(9)).apply(truncated).segments == before.segments[3:]
    assert numbers(ForgetTruncated(SegmentNumber(2)).apply(marked).listed) == [3, 4, 5]
    assert numbers(ForgetTruncated(SegmentNumber(9)).apply(marked).listed) == [4, 5]


def test_the_trim_point_stops_at_a_segment_in_progress() -> None:
    value = stream(2, in_progress=2)
    value = CompleteSegment(SegmentNumber(4), ledger("4a"), END, 9000).apply(value)
    after = TruncateTo(of(5, 0, 0)).apply(value)
    assert (numbers(after.truncated), numbers(after.segments)) == ([1, 2], [3, 4])
    assert after.in_progress == (value.segments[2],)


def test_expiry_takes_the_oldest_only_and_never_the_last() -> None:
    before = kept_for(5.0, stream(4, 0))
    assert numbers(Expire(7500).apply(before).truncated) == [1, 2]
    assert numbers(Expire(10**9).apply(before).segments) == [4]
    assert Expire(10**9).apply(stream(4, 0)) == stream(4, 0), "kept for ever"


def test_a_segment_is_as_old_as_the_later_of_what_its_writer_and_metadata_say() -> None:
    before = kept_for(5.0, stream(2))
    first, *others = before.segments
    for writer_ms, metadata_ms in ((1000, 9000), (9000, 1000)):
        told = replace(first, completed_unix_ms=writer_ms, metadata_unix_ms=metadata_ms)
        told_before = replace(before, segments=(told, *others))
        assert Expire(14_000).apply(told_before) == told_before
        assert numbers(Expire(14_001).apply(told_before).truncated) == [1, 2]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(0, 3)), max_size=5))
def test_the_truncation_point_only_moves_forward(points: list[tuple[int, int, int]]) -> None:
    value = stream(3)
    for point in points:
        after = TruncateTo(of(*point)).apply(value)
        kept, before = after.segments, value.segments
        assert kept[0].first_dlsn >= before[0].first_dlsn
        newly = {s.number for s in before} - {s.number for s in kept}
        assert all(s.last_dlsn < of(*point) for s in before if s.number in newly), "and nothing goes from the point on"
        assert kept[-1].number == value.segments[-1].number
        assert kept[0].first_dlsn >= min(of(*point), after.segments[-1].first_dlsn), "and it holds"
        value = after


def test_allocated_names_the_store_unless_it_is_the_ledger_store() -> None:
    assert allocated_name(ledger("42")) == "42"
    for location in (ledger("42"), Location("kafka", "topic:7"), Location("s3", "a/b")):
        assert allocated_location(allocated_name(location)) == location
