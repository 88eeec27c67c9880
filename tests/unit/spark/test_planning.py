"""Tests plans: every record of a span once, in order, whatever the sizes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlog.errors import TruncatedError
from dlog.spark.losses import check_kept
from dlog.spark.offsets import BEGINNING, StreamPosition
from dlog.spark.planning import (
    Range,
    SegmentView,
    StreamView,
    advance,
    advance_segments,
    partitions,
    prefix,
    span,
)


@st.composite
def views(draw: st.DrawFn) -> StreamView:
    segments: list[SegmentView] = []
    count = draw(st.integers(0, 5))
    for number in range(draw(st.integers(1, 4)), 10)[:count]:
        last = draw(st.integers(-1, 20))
        first = draw(st.integers(0, max(0, last))) if not segments and last >= 0 else 0
        segments.append(
            SegmentView(
                number=number,
                name=str(number),
                store="ledger",
                first=first,
                first_slot=draw(st.integers(0, 2)) if first else 0,
                last=last,
                bytes=draw(st.integers(0, 10_000)),
                records=draw(st.integers(0, 1000)),
                is_completed=number < 9,
            )
        )
    return StreamView("s", tuple(segments))


places = st.builds(StreamPosition, st.integers(0, 10), st.integers(0, 21), st.integers(0, 2))


def covered(ranges: list[Range]) -> list[tuple[int, int]]:
    return [(r.segment, entry) for r in ranges for entry in range(r.first, r.last + 1)]


@example(
    StreamView("s", (SegmentView(number=1, name="1", store="ledger", first=1, first_slot=1, last=1),)),
    BEGINNING,
    StreamPosition(1, 1, 1),
)
@given(views(), places, places)
def test_a_span_holds_each_entry_between_once_and_in_order(
    view: StreamView, start: StreamPosition, end: StreamPosition
) -> None:
    got = covered(span(view, start, end))
    expected = [
        (s.number, entry)
        for s in view.segments
        for entry in range(s.first, s.last + 1)
        if start < StreamPosition(s.number, entry + 1) and max(start, s.begin, StreamPosition(s.number, entry)) < end
    ]
    assert got == expected


@given(views(), st.integers(1, 5000), st.integers(1, 2000), st.integers(0, 9), st.integers(0, 50))
def test_partitions_leave_nothing_out_and_keep_the_order(
    view: StreamView, split: int, cost: int, least: int, records: int
) -> None:
    whole = span(view, BEGINNING, view.latest)
    packed = partitions(whole, split_bytes=split, open_cost_bytes=cost, partitions_min=least, records_max=records)
    assert covered([r for part in packed for r in part]) == covered(whole)
    assert all(packed)


def test_a_great_segment_is_split_and_small_ones_share() -> None:
    great = SegmentView(number=1, name="1", store="ledger", last=999, bytes=1000_000)
    small = [SegmentView(number=n, name=str(n), store="ledger", last=0, bytes=10) for n in range(2, 12)]
    whole = span(StreamView("s", (great, *small)), BEGINNING, StreamPosition(99, 0))
    packed = partitions(whole, split_bytes=250_000, open_cost_bytes=1000)
    assert [sum(r.bytes for r in part) for part in packed] == [250_000, 250_000, 250_000, 250_000, 100]


def test_as_many_partitions_as_were_asked_for() -> None:
    view = StreamView("s", (SegmentView(number=1, name="1", store="ledger", last=99, bytes=1000),))
    packed = partitions(span(view, BEGINNING, view.latest), split_bytes=10**9, open_cost_bytes=10**6, partitions_min=7)
    assert len(packed) >= 7


@given(views(), st.floats(0.01, 0.99))
def test_a_share_is_at_least_an_entry_and_never_all_too_far(view: StreamView, share: float) -> None:
    start, end = view.earliest, view.latest
    there = advance(view, start, end, share)
    assert start <= there <= end
    if span(view, start, end):
        assert span(view, start, there), "a bound that lets nothing through would stop the query for ever"


def test_a_stream_stays_behind_the_last_entry_until_there_is_another() -> None:
    """Trap 21: two spellings of one position would be two offsets."""
    ended = SegmentView(number=1, name="1", store="ledger", last=4)
    empty = SegmentView(number=2, name="2", store="ledger", is_completed=False)
    assert StreamView("s", (ended, empty)).latest == StreamPosition(1, 5)
    grown = SegmentView(number=2, name="2", store="ledger", last=0, is_completed=False)
    assert StreamView("s", (ended, grown)).latest == StreamPosition(2, 1)
    assert StreamView("s").latest == BEGINNING


def test_a_stream_that_falls_silent_gives_no_empty_batch() -> None:
    """Entries that an owner writes while its stream is idle contain no records."""
    silent = SegmentView(number=1, name="1", store="ledger", last=5, idle=1)
    view = StreamView("s", (silent,))
    assert view.latest_after(StreamPosition(1, 5)) == StreamPosition(1, 5)
    assert view.latest_after(StreamPosition(1, 6)) == StreamPosition(1, 6)
    assert view.latest_after(StreamPosition(1, 4)) == StreamPosition(1, 6)
    assert view.latest_after(StreamPosition(2, 0)) == StreamPosition(1, 6), "another stream of the name"
    behind = SegmentView(number=2, name="2", store="ledger", last=0, idle=1)
    assert StreamView("s", (silent, behind)).latest_after(StreamPosition(1, 5)) == StreamPosition(1, 5)
    assert StreamView("s", (silent, behind)).latest_after(StreamPosition(1, 4)) == StreamPosition(2, 1)
    more = SegmentView(number=2, name="2", store="ledger", last=1, idle=1)
    assert StreamView("s", (silent, more)).latest_after(StreamPosition(1, 5)) == StreamPosition(2, 2)


def test_what_is_gone_is_told_with_what_is_there() -> None:
    view = StreamView("s", (SegmentView(number=3, name="3", store="ledger", first=2, last=4),))
    check_kept(view, BEGINNING)  # a reader from the earliest record gets it
    check_kept(view, StreamPosition(3, 2))
    with pytest.raises(TruncatedError, match=r"stream=s wanted=\[2,7\] available=\[3,2\]"):
        check_kept(view, StreamPosition(2, 7))


def test_what_left_whole_and_was_read_whole_is_no_loss() -> None:
    """Otherwise a query that had read everything would end with an error once an idle stream was truncated."""
    fresh = SegmentView(number=5, name="5", store="ledger", last=0)
    check_kept(StreamView("s", (fresh,), past=((3, 9), (4, -1))), StreamPosition(3, 10))
    for start, past in (
        (StreamPosition(3, 9), ((3, 9), (4, -1))),
        (StreamPosition(3, 10), ((3, 9), (4, 0))),
        (StreamPosition(3, 10), ((3, 9),)),
    ):
        with pytest.raises(TruncatedError):
            check_kept(StreamView("s", (fresh,), past=past), start)
    partly = SegmentView(number=5, name="5", store="ledger", first=1, last=2)
    with pytest.raises(TruncatedError):
        check_kept(StreamView("s", (partly,), past=((3, 9), (4, -1))), StreamPosition(3, 10))


def test_nothing_is_shown_behind_a_segment_whose_end_is_open() -> None:
    """Entries on their way into the first segment would be left out for ever if the second were shown."""
    ended = SegmentView(number=1, name="1", store="ledger", last=4)
    open_one = SegmentView(number=2, name="2", store="ledger", last=7, is_completed=False, is_final=False)
    begun = SegmentView(number=3, name="3", store="ledger", last=0, is_completed=False, is_final=False)
    empty = SegmentView(number=3, name="3", store="ledger", is_completed=False, is_final=False)
    assert prefix([ended, open_one]) == (ended, open_one)
    assert prefix([ended, open_one, empty]) == (ended, open_one)
    assert prefix([ended, open_one, begun]) is None
    assert prefix([ended, begun]) == (ended, begun)
    assert prefix([]) == ()


def test_segments_are_counted_whole() -> None:
    view = StreamView("s", tuple(SegmentView(number=n, name=str(n), store="ledger", last=n) for n in (1, 2, 3)))
    assert advance_segments(view, BEGINNING, view.latest, 2) == StreamPosition(2, 3)
    assert advance_segments(view, BEGINNING, view.latest, 9) == view.latest
