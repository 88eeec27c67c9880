"""Reading one segment: its LAC and its end, other locations, and errors of its store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.errors import EntryMissingError
from dlog.log.changes import CompleteSegment, SegmentEnd, SetSegmentLocation
from dlog.log.messages import AppendEntry, HandOverStream, SealStream
from dlog.log.segment_cursor import SegmentCursor
from dlog.log.source_messages import READER, SOURCE, GetEntries, SegmentLacSeen, SourceFailed, WatchLac
from dlog.machine import Received, TimerFired
from dlog.model.dlsn import of
from dlog.model.ids import NO_ENTRY, EntryId, Txid
from dlog.model.segment import Location
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    StoreUnavailableError,
)
from dlog.wire.proxy import Credit, ReaderEventKind, Start
from tests.simulation.mutants import edited, planting
from tests.unit.log.reader_desk import Desk, three_segments
from tests.unit.log.stage import BOB, Stage, batch


def test_nothing_above_the_lac_is_asked_for() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    first = owner.ask(batch(0)).dlsn
    desk = Desk(stage, Start.START)
    stage.hold(AppendEntry)
    owner.ask(batch(1))
    stage.stored["1a"].payloads.append(b"".join(bytes(p) for p in owner.sent[-1].parts))
    desk.refresh()
    desk.post(Received(READER, Credit(7, 1)))
    assert [q.last for q in desk.questions if isinstance(q, GetEntries)] == [first.entry]
    assert desk.seen == [first]


def test_an_empty_segment_that_ended_is_waited_out_because_its_number_comes_again() -> None:
    stage = Stage()
    stage.taken("p1")
    desk = Desk(stage, Start.START)
    segment = stage.value.segments[0]
    desk.post(Received(SOURCE, SegmentLacSeen(segment.number, segment.location, EntryId(-1), ended=True)))
    owner = stage.taken("p2")
    desk.refresh()
    first = owner.ask(batch(0)).dlsn
    location = stage.value.segments[0].location
    assert location != segment.location
    desk.post(Received(SOURCE, SegmentLacSeen(segment.number, location, first.entry)))
    assert desk.seen == [of(1, 0, 0)]


def completed_empty_after_it_was_heard_to_end_empty() -> Desk:
    """A Java writer completes its segment at the last entry it knows to be acknowledged: none."""
    stage = Stage()
    stage.taken("p1")
    desk = Desk(stage, Start.START)
    segment = stage.value.segments[0]
    desk.post(Received(SOURCE, SegmentLacSeen(segment.number, segment.location, NO_ENTRY, ended=True)))
    end = SegmentEnd(NO_ENTRY, 0, Txid(0), 1)
    stage.value = CompleteSegment(segment.number, segment.location, end, 1).apply(stage.value)
    stage.version += 1
    written = stage.taken("p2").ask(batch(0)).dlsn
    desk.refresh()
    desk.confirmed(written)
    return desk


def test_a_segment_that_ended_empty_and_is_completed_all_the_same_is_passed() -> None:
    assert completed_empty_after_it_was_heard_to_end_empty().seen == [of(2, 0, 0)]
    still_void = edited(SegmentCursor, ("update", "self._watched, self.is_void = None, False", "self._watched = None"))
    with planting(((SegmentCursor, still_void),)):
        assert completed_empty_after_it_was_heard_to_end_empty().seen == []


def moved(stage: Stage, number: int, place: str, store: str = "cold") -> None:
    """Segment `number` lies at `place` from now on, and where it lay nothing is left."""
    segment = stage.value.segment(number)
    assert segment is not None
    stage.value = SetSegmentLocation(segment.number, segment.location, Location(store, place)).apply(stage.value)
    stage.stored[place] = stage.stored.pop(segment.name)
    stage.version += 1


@pytest.mark.parametrize("start", [Start.START, Start.DLSN, Start.TXID])
def test_a_reader_goes_on_where_its_segment_was_moved_to_and_taken_back(start: Start) -> None:
    stage, _, dlsns = three_segments()
    value = {Start.START: None, Start.DLSN: tuple(dlsns[1]), Start.TXID: 10}[start]
    desk = Desk(stage, start, value, credit=1)
    first = 1 if start is Start.DLSN else 0
    given = len(desk.seen)
    assert desk.seen[-1] < dlsns[3], "it is within the first segment"
    before = stage.value.segments[0].name
    for place, store in (("object", "cold"), (before, "ledger")):
        moved(stage, 1, place, store)
        desk.refresh()
        desk.post(Received(READER, Credit(7, len(desk.entries[-1].body))))
        assert len(desk.seen) > given
        given = len(desk.seen)
    desk.post(Received(READER, Credit(7, 10**6)))
    assert desk.seen == dlsns[first:]
    assert ReaderEventKind.DAMAGED not in desk.kinds


def test_a_reader_goes_on_in_a_segment_that_was_completed_and_moved_in_one_look() -> None:
    stage, owner, dlsns = three_segments()
    desk = Desk(stage, Start.START)
    assert desk.seen == dlsns, "it waits in the last segment"
    owner.ask(HandOverStream())
    stage.taken("p2")
    moved(stage, 3, "object")
    desk.refresh()
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    assert desk.machine.position.segment == 4


def test_another_segment_of_the_number_is_damage() -> None:
    stage, _, _ = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    moved(stage, 1, "object")
    (segment,) = (s for s in stage.value.segments if s.number == 1)
    stage.value = stage.value.with_segment(replace(segment, completed_unix_ms=segment.completed_unix_ms + 1))
    desk.refresh()
    assert desk.kinds[-1] is ReaderEventKind.DAMAGED


def test_damage_is_said_with_its_place() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = EntryMissingError("on no bookie")
    desk.post(Received(READER, Credit(7, 1000)))
    assert ReaderEventKind.DAMAGED not in desk.kinds, "it may have been truncated meanwhile"
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.DAMAGED
    assert desk.events[-1].detail["dlsn"] == list(desk.machine.position)
    assert desk.machine.has_ended
    assert dlsns


def test_bytes_that_are_no_entry_are_damage() -> None:
    stage, _, _ = three_segments()
    stage.stored[stage.value.segments[0].name].payloads[0] = b"\x01\0\0\0\0\0\0\0\x05\0\0\0\x05\0\0\0\0\x01"
    desk = Desk(stage, Start.TXID, 1)
    assert desk.kinds == [ReaderEventKind.DAMAGED]


def test_a_failure_that_may_pass_is_asked_again() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = StoreUnavailableError("not now")
    desk.post(Received(READER, Credit(7, 10**6)))
    assert desk.timers == 1
    desk.failing = None
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.seen == dlsns


def test_entries_that_are_gone_end_the_reader_as_truncated_if_metadata_says_so() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = SegmentNotFoundError("deleted")
    desk.post(Received(READER, Credit(7, 10**6)))
    stage.value = replace(stage.value, segments=stage.value.segments[-1:])
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.TRUNCATED
    assert dlsns


def test_entries_that_are_gone_against_metadata_are_damage_in_the_end() -> None:
    stage, _, _ = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = SegmentNotFoundError("deleted by mistake")
    desk.post(Received(READER, Credit(7, 10**6)))
    for _ in range(3):
        assert ReaderEventKind.DAMAGED not in desk.kinds
        desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.DAMAGED


def misstated(stage: Stage, entries: int) -> None:
    """The list says that segment 1 ended so many entries earlier, or later, than its store decided."""
    first, *others = stage.value.segments
    wrong = replace(first, last_entry=EntryId(first.last_entry + entries), last_slot=1)
    stage.value = replace(stage.value, segments=(wrong, *others))


@pytest.mark.parametrize("entries", [-1, 1])
def test_a_completed_segment_is_read_to_where_its_store_ends_it(entries: int) -> None:
    stage, _, dlsns = three_segments()
    misstated(stage, entries)
    assert Desk(stage, Start.START).seen == dlsns


def test_a_reader_goes_on_behind_the_end_that_the_list_says() -> None:
    stage, _, dlsns = three_segments()
    last = max(place for place in dlsns if place.segment == 1)
    misstated(stage, -1)
    desk = Desk(stage, Start.DLSN, tuple(last))
    assert desk.seen == [place for place in dlsns if place >= last]
    assert desk.events[0].detail == {"dlsn": list(last), "incarnation": stage.value.incarnation}


def test_a_reader_that_begins_behind_the_end_begins_with_the_next_segment() -> None:
    stage, _, dlsns = three_segments()
    last = max(place for place in dlsns if place.segment == 1)
    for behind in (stage.value.segments[0].last_dlsn.next_slot(), of(1, last.entry + 1, 0), of(1, last.entry + 9, 3)):
        desk = Desk(stage, Start.DLSN, tuple(behind))
        assert desk.seen == [place for place in dlsns if place > last]
        assert desk.events[0].detail == {"dlsn": [2, 0, 0], "incarnation": stage.value.incarnation}


@pytest.mark.parametrize("start", [Start.START, Start.DLSN, Start.TXID])
def test_a_completed_segment_whose_store_has_lost_it_is_damaged(start: Start) -> None:
    stage, _, dlsns = three_segments()
    value = {Start.START: None, Start.DLSN: tuple(dlsns[0]), Start.TXID: 10}[start]
    desk = Desk(stage, start, value, losing=SegmentNotFoundError("no such place"))
    for _ in range(3):
        assert desk.kinds == []
        desk.post(TimerFired(("retry",), 0.0))
    assert desk.kinds == [ReaderEventKind.DAMAGED]


@pytest.mark.parametrize("start", [Start.START, Start.DLSN, Start.TXID])
def test_a_segment_in_a_store_that_is_not_set_up_ends_the_reader_with_the_reason(start: Start) -> None:
    stage, _, dlsns = three_segments()
    value = {Start.START: None, Start.DLSN: tuple(dlsns[0]), Start.TXID: 10}[start]
    desk = Desk(stage, start, value, losing=MisconfiguredError("Unable to locate credentials"))
    desk.post(TimerFired(("retry",), 0.0))
    assert desk.kinds == [ReaderEventKind.DAMAGED]
    assert desk.events[0].detail["message"] == "Unable to locate credentials"


# ---- segments that their store has removed --------------------------------------------------------------------------


def test_a_completed_segment_that_its_store_has_removed_is_told_as_truncated_up_to_the_next() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = SegmentTruncatedError("removed by retention")
    desk.post(Received(READER, Credit(7, 10**6)))
    for _ in range(3):
        assert ReaderEventKind.TRUNCATED not in desk.kinds, "it may have been moved to another store"
        desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.TRUNCATED
    assert desk.events[-1].detail == {"first": [2, 0, 0]}
    assert desk.machine.has_ended
    on = Desk(stage, Start.DLSN, (2, 0, 0))
    assert on.seen == [dlsn for dlsn in dlsns if dlsn.segment > 1]


@pytest.mark.parametrize("start", [Start.START, Start.DLSN, Start.TXID])
def test_a_removed_segment_whose_end_is_asked_for_is_truncated_and_not_damaged(start: Start) -> None:
    stage, _, dlsns = three_segments()
    value = {Start.START: None, Start.DLSN: tuple(dlsns[0]), Start.TXID: 10}[start]
    desk = Desk(stage, start, value, losing=SegmentTruncatedError("removed by retention"))
    for _ in range(3):
        assert desk.kinds == []
        desk.post(TimerFired(("retry",), 0.0))
    assert desk.kinds == [ReaderEventKind.TRUNCATED]
    assert desk.events[-1].detail == {"first": [2, 0, 0]}


def test_a_removed_segment_that_lies_in_another_store_by_now_is_read_there() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = SegmentTruncatedError("removed by retention")
    desk.post(Received(READER, Credit(7, 10**6)))
    moved(stage, 1, "object")
    desk.refresh()
    desk.failing = None
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.seen == dlsns


def test_a_reader_from_the_tail_goes_on_behind_a_removed_last_segment() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    owner.ask(HandOverStream())
    desk = Desk(stage, Start.TAIL, losing=SegmentTruncatedError("removed by retention"))
    for _ in range(3):
        desk.post(TimerFired(("retry",), 0.0))
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    assert desk.machine.position == of(2, 0, 0)
    written = stage.taken("p2").ask(batch(1)).dlsn
    desk.refresh()
    desk.confirmed(written)
    assert desk.seen == [of(2, 0, 0)]


def test_a_sealed_stream_whose_last_segment_is_removed_ends_behind_it() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    owner.ask(SealStream())
    removed = SegmentTruncatedError("removed by retention")
    from_start, tail = Desk(stage, Start.START, losing=removed), Desk(stage, Start.TAIL, losing=removed)
    for _ in range(3):
        from_start.post(TimerFired(("retry",), 0.0))
        tail.post(TimerFired(("retry",), 0.0))
    assert tail.kinds == [ReaderEventKind.STARTED, ReaderEventKind.END_OF_STREAM]
    assert from_start.events[-1].detail == {"first": [2, 0, 0]}
    assert Desk(stage, Start.DLSN, (2, 0, 0)).kinds == [ReaderEventKind.STARTED, ReaderEventKind.END_OF_STREAM]


def test_a_removed_segment_in_progress_is_waited_for_until_it_is_completed() -> None:
    """Its number may not be told as passed before metadata says so, nor may another reader be told otherwise."""
    stage = Stage()
    owner = stage.taken("p1")
    for sequence in range(3):
        owner.ask(batch(sequence))
    begun, fresh = Desk(stage, Start.START, credit=1), Desk(stage, Start.START, credit=0)
    stage.removed("1a")
    for desk in (begun, fresh):
        desk.failing = desk.losing = SegmentTruncatedError("removed by retention")
        desk.post(Received(READER, Credit(7, 10**6)))
        for _ in range(9):
            desk.post(TimerFired(("retry",), 0.0))
        assert not desk.machine.has_ended
    written = stage.taken("p2").ask(batch(0, producer=BOB, since=(2, 0))).dlsn
    assert written == of(2, 0, 0)
    for desk in (begun, fresh):
        desk.refresh()
        for _ in range(4):
            desk.post(TimerFired(("retry",), 0.0))
        assert desk.events[-1].kind is ReaderEventKind.TRUNCATED
        assert desk.events[-1].detail == {"first": [2, 0, 0]}


@pytest.mark.parametrize("start", [Start.START, Start.TAIL])
def test_damage_at_the_tail_of_a_segment_in_progress_is_told_and_no_silence(start: Start) -> None:
    stage = Stage()
    dlsn = stage.taken("p1").ask(batch(0)).dlsn
    desk = Desk(stage, start)
    watched = desk.questions[-1]
    assert isinstance(watched, WatchLac) and not watched.segment.completed
    for error in (
        SegmentNotFoundError("gone"),
        StoreUnavailableError("not now"),
        SegmentCorruptError("a chunk is bad"),
    ):
        desk.post(Received(SOURCE, SourceFailed(desk.questions[-1], error)))
        assert not desk.machine.has_ended, "a newer list may show that it was truncated or moved"
        desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.DAMAGED
    assert desk.events[-1].detail == {"dlsn": [dlsn.segment, dlsn.entry + 1, 0], "message": "a chunk is bad"}
