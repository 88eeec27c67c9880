"""A list of segments equals a plain list of them, at a cost that does not grow with its length."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.log.changes import (
    CompleteSegment,
    ForgetTruncated,
    ListImportedSegments,
    MarkTruncated,
    SegmentEnd,
    Stage,
    StartSegment,
    TruncateTo,
)
from dlog.model.dlsn import of
from dlog.model.ids import EntryId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Location, Segment, StreamMetadata
from dlog.model.segment_list import SegmentList, differences
from tests.operations import operations

numbers = st.integers(1, 400)


def segment(number: int, *, completed: bool = True, name: str = "") -> Segment:
    return Segment(
        number=SegmentNumber(number),
        name=name or f"{number}a",
        first_txid=Txid(number),
        completed=completed,
        last_entry=EntryId(3 if completed else -1),
        last_slot=0 if completed else -1,
    )


def listed(first: int, count: int, open_ones: frozenset[int] = frozenset()) -> SegmentList:
    return SegmentList(segment(n, completed=n not in open_ones) for n in range(first, first + count))


@st.composite
def lists(draw: st.DrawFn) -> SegmentList:
    first, count = draw(numbers), draw(st.integers(0, 300))
    return listed(first, count, draw(st.frozensets(st.integers(first, first + count), max_size=3)))


@given(lists(), st.dictionaries(numbers, st.sampled_from(["out", "in", "open"]), max_size=8))
def test_an_updated_list_has_the_changes_and_everything_else(before: SegmentList, told: dict[int, str]) -> None:
    changes = {n: None if how == "out" else segment(n, completed=how == "in", name="new") for n, how in told.items()}
    expected = {s.number: s for s in before} | {SegmentNumber(n): s for n, s in changes.items() if s is not None}
    for number, changed in changes.items():
        if changed is None:
            expected.pop(SegmentNumber(number), None)
    after = before.updated(changes)
    assert after == tuple(expected[n] for n in sorted(expected))
    assert after.in_progress == tuple(s for s in after if not s.completed)
    assert all(after.find(n) is expected.get(SegmentNumber(n)) for n in (*told, 1, 200, 999))


@given(lists(), st.integers(-2, 320))
def test_a_list_is_split_and_joined_again(before: SegmentList, at: int) -> None:
    first, rest = before.split(at)
    assert (first, rest) == (before[: max(0, at)], before[max(0, at) :])
    for part in (first, rest, first.joined(rest)):
        assert part.in_progress == tuple(s for s in part if not s.completed)
    assert first.joined(rest) == before


@given(lists(), lists())
def test_differences_are_those_of_the_numbers(before: SegmentList, after: SegmentList) -> None:
    was, now = {s.number: s for s in before}, {s.number: s for s in after}
    expected = [(was.get(n), now.get(n)) for n in sorted(was.keys() | now.keys()) if was.get(n) != now.get(n)]
    assert list(differences(before, after)) == expected


@given(lists(), st.dictionaries(numbers, st.booleans(), max_size=5))
def test_differences_of_a_list_made_from_another_are_the_changes(before: SegmentList, told: dict[int, bool]) -> None:
    after = before.updated({n: segment(n, name="new") if stays else None for n, stays in told.items()})
    pairs = list(differences(before, after))
    changes: dict[int, Segment | None] = {s.number: now for was, now in pairs for s in (was or now,) if s is not None}
    assert changes.keys() <= told.keys() and before.updated(changes) == after


@st.composite
def ending(draw: st.DrawFn) -> Segment:
    """A segment with an unusual end: from a clock that was behind, without a record, in progress, moved, or at a
    location that another one had."""
    is_completed = draw(st.booleans()) or draw(st.booleans())
    return replace(
        segment(draw(st.integers(1, 60)), completed=is_completed, name=draw(st.sampled_from("abcdefgh"))),
        store=draw(st.sampled_from(["ledger", "cold"])),
        former=draw(st.sampled_from([None, None, Location("ledger", "a"), Location("file", "f")])),
        last_txid=Txid(draw(st.integers(-1, 20)) if is_completed else -1),
        completed_unix_ms=draw(st.integers(0, 20)) if is_completed else 0,
    )


steps = st.one_of(
    st.tuples(st.just("updated"), st.dictionaries(st.integers(1, 60), st.none() | ending(), min_size=1, max_size=6)),
    st.tuples(st.sampled_from(["before", "after", "joined"]), st.integers(-1, 12)),
    st.tuples(st.sampled_from(["find", "reach"]), st.just(0)),
)


@given(st.lists(steps, max_size=12))
def test_what_is_found_by_place_and_end_is_what_a_look_at_every_segment_finds(told: list[tuple[str, Any]]) -> None:
    made = [SegmentList()]
    for how, what in told:
        if how == "updated":
            changes = {n: s if s is None else replace(s, number=SegmentNumber(n)) for n, s in what.items()}
            made.append(made[-1].updated(changes))
        elif how in ("before", "after", "joined"):
            before, after = made[-1].split(what)
            made.append({"before": before, "after": after, "joined": before.joined(after)}[how])
        elif how == "find":
            check_places(made[-1])
        else:
            check_ends(made[-1])
    for one in made:  # the older ones share tables with those that were made from them
        check_places(one)
        check_ends(one)
        assert pickle.loads(pickle.dumps(one)) == one


def check_places(one: SegmentList) -> None:
    for location in itertools.starmap(Location, itertools.product(("ledger", "cold"), "abcdefgh")):
        there = [s for s in one if s.location == location]
        there += [s for s in one if location == s.former]
        found = one.find_location(location)
        assert found in there if there else found is None


def check_ends(one: SegmentList) -> None:
    for least in range(-1, 22):
        by_txid = next((s for s in one if not s.completed or s.last_txid >= least), None)
        by_time = next((s for s in one if not s.completed or s.completed_unix_ms >= least), None)
        assert one.first_reaching(least, by_time=False) is by_txid
        assert one.first_reaching(least, by_time=True) is by_time


NOWHERE = Location("ledger", "nowhere")


def stream(count: int) -> StreamMetadata:
    segments = SegmentList([*listed(1, count - 1), segment(count, completed=False)])
    assert segments.in_progress
    return StreamMetadata(name=StreamName("s"), segments=segments, max_segment=SegmentNumber(count))


def roll(value: StreamMetadata) -> StreamMetadata:
    last = value.segments[-1].number
    at = Location("ledger", f"{last}a")
    started = StartSegment(segment(last + 1, completed=False), "", at).apply(value)
    return CompleteSegment(last, at, SegmentEnd(EntryId(5), 0, Txid(last), 6), 1000).apply(started)


def truncate_one(value: StreamMetadata) -> StreamMetadata:
    first = value.segments[0].number
    marked = MarkTruncated(first).apply(TruncateTo(of(first + 1, 0, 0)).apply(value))
    return ForgetTruncated(first).apply(marked)


def look_around(value: StreamMetadata) -> None:
    middle = value.segments[len(value.segments) // 2].number
    assert value.segment(middle) is not None and not value.has_lost(middle) and value.in_progress
    assert value.last_completed is not None and value.next_number() > middle and value.first_dlsn


def compare(value: StreamMetadata) -> None:
    assert sum(1 for _ in roll(value).changes_since(value)) == 2
    assert sum(1 for _ in truncate_one(value).readable_changes_since(value)) == 1


@pytest.mark.parametrize("work", [roll, truncate_one, look_around, compare])
def test_what_happens_at_each_roll_looks_at_few_segments(work: Callable[[StreamMetadata], object]) -> None:
    few, many = stream(1000), stream(20_000)
    assert operations(lambda: work(many)) <= 1.2 * operations(lambda: work(few))


def seek(value: StreamMetadata) -> StreamMetadata:
    middle = value.segments[len(value.segments) // 2]
    for least in (middle.number, middle.number + 10**6):
        assert value.first_reaching(least, by_time=True) and value.first_reaching(least, by_time=False)
    return value


def take_in(value: StreamMetadata) -> StreamMetadata:
    end = SegmentEnd(EntryId(5), 0, Txid(10**6), 6)
    change = ListImportedSegments(
        tuple(Stage(Location("ledger", f"x{n}"), Txid(10**6), end) for n in range(3)), None, 1000
    )
    taken = change.apply(value)
    assert change.was_made(taken) and not change.was_made(value) and change.apply(taken) is taken
    assert [s.number for s in taken.segments[-3:]] == [taken.max_segment - 2, taken.max_segment - 1, taken.max_segment]
    assert [s.start_sequence_id for s in taken.segments[-2:]] == [
        taken.segments[-3].start_sequence_id + 6,
        taken.segments[-3].start_sequence_id + 12,
    ]
    return taken


@pytest.mark.parametrize("change", [roll, truncate_one, lambda value: value], ids=["roll", "truncate", "nothing"])
def test_a_search_by_end_or_place_looks_at_few_segments_also_in_a_list_that_has_changed(
    change: Callable[[StreamMetadata], StreamMetadata],
) -> None:
    def cost(count: int) -> int:
        value = stream(count)
        value = replace(value, segments=SegmentList([replace(s, last_txid=Txid(s.number)) for s in value.segments]))
        seek(value)
        assert value.segment_at(Location("ledger", "7a")) is value.segment(7) and value.in_progress
        return operations(lambda: seek(change(value)).segment_at(NOWHERE))

    assert cost(20_000) <= 1.2 * cost(1000)


def test_taking_segments_in_looks_at_few_segments() -> None:
    def cost(count: int) -> int:
        value = roll(stream(count)).without_segment(count + 1)
        assert value.segment_at(NOWHERE) is None and not value.in_progress
        return operations(lambda: take_in(value))

    assert cost(20_000) <= 1.2 * cost(1000)


def test_tables_do_not_keep_the_places_of_all_segments_that_ever_were() -> None:
    value = stream(10)
    for _ in range(3000):
        value = roll(value)
        value = TruncateTo(of(value.segments[-5].number, 0, 0)).apply(value)
        value = ForgetTruncated(SegmentNumber(value.first_number - 1)).apply(value)
        assert value.segment_at(NOWHERE) is None
    assert len(value._segments._locations()) <= 1100


def test_truncating_costs_the_same_however_many_segments_go() -> None:
    value = stream(20_000)
    few = operations(lambda: TruncateTo(of(20, 0, 0)).apply(value))
    assert operations(lambda: TruncateTo(of(19_000, 0, 0)).apply(value)) <= 1.5 * few


def test_a_truncated_stream_gives_out_the_next_number_and_loses_what_lies_before() -> None:
    value = replace(stream(3), segments=(), truncated=tuple(listed(1, 3)))
    assert (value.next_number(), value.first_number, value.first_dlsn) == (4, 4, of(4, 0, 0))
    assert value.has_lost(3) and not value.has_lost(4)
    empty = StreamMetadata(name=StreamName("s"), max_segment=SegmentNumber(7))
    assert (empty.next_number(), empty.has_lost(6), empty.has_lost(7)) == (7, True, False)
    assert empty.first_dlsn == of(7, 0, 0), "what was before it is gone"
    assert StreamMetadata(name=StreamName("s")).first_dlsn == of(1, 0, 0)
