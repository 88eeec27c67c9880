"""Where a reader starts: positions, txids, times and the tail, before a truncation point and beyond the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.log.changes import TruncateTo
from dlog.log.messages import HandOverStream, SealStream
from dlog.log.source_messages import SOURCE, GetEntries, Locate, Located, SegmentLacSeen
from dlog.machine import PeerLost, Received, TimerFired
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import EntryId, SegmentNumber
from dlog.stores.contract import StoreUnavailableError
from dlog.wire.proxy import ReaderEventKind, Start
from tests.unit.log.reader_desk import Desk, revived, three_segments
from tests.unit.log.stage import Actor, Stage, StoredSegment, batch


@pytest.mark.parametrize("at", range(12))
def test_from_any_place(at: int) -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.DLSN, tuple(dlsns[at]))
    assert desk.seen == dlsns[at:]
    assert desk.events[0].detail == {"dlsn": list(dlsns[at]), "incarnation": stage.value.incarnation}


@pytest.mark.parametrize(("txid", "first"), [(0, 0), (10, 0), (11, 2), (20, 2), (45, 8), (60, 10), (61, 12)])
def test_from_a_txid(txid: int, first: int) -> None:
    stage, owner, dlsns = three_segments()
    desk = Desk(stage, Start.TXID, txid)
    assert desk.seen == dlsns[first:]
    more = owner.ask(batch(12, txid=60)).dlsn
    desk.confirmed(more)
    assert (more in desk.seen) == (txid <= 60)


@pytest.mark.parametrize(("time", "first"), [(0, 0), (1010, 0), (1015, 2), (1060, 10), (9999, 12)])
def test_from_a_time(time: int, first: int) -> None:
    stage, _, dlsns = three_segments()
    assert Desk(stage, Start.TIME, time).seen == dlsns[first:]


def test_only_entries_that_the_store_has_left_are_read() -> None:
    stage, dlsns = Stage(), list[DLSN]()
    owner = stage.taken("p1")
    for at in range(20):
        dlsns.append(owner.ask(batch(at, txid=at, now=1000 + at)).dlsn)
    for start, value in ((Start.TXID, 7), (Start.TIME, 1007)):
        for left in ((7, 7), (6, 8), (7, 19), (0, 7), (7, 6)):
            desk = Desk(stage, start, value, narrowed=(EntryId(left[0]), EntryId(left[1])))
            assert desk.seen == dlsns[7:]
            [located] = [question for question in desk.questions if isinstance(question, Locate)]
            assert (located.target.by_time, located.target.least) == (start is Start.TIME, value)
            read = [question for question in desk.questions if isinstance(question, GetEntries)]
            assert len(read) <= 1 + (left[1] - left[0] + 1).bit_length()


def test_a_store_that_cannot_be_asked_is_asked_again() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.TXID, 20, failing=StoreUnavailableError("not now"))
    assert desk.seen == [] and desk.timers == 1
    desk.failing = None
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.seen == dlsns[2:]
    assert sum(isinstance(question, Locate) for question in desk.questions) == 2


def test_an_answer_to_an_earlier_search_is_dropped() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.TXID, 20, is_silent=True)
    [asked] = [question for question in desk.questions if isinstance(question, Locate)]
    desk.post(Received(SOURCE, Located(asked, EntryId(90), EntryId(90))))  # once more, after it was taken
    desk.is_silent = False
    desk.post(PeerLost(SOURCE, "lost"))
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.seen == dlsns[2:]


def test_from_the_tail_only_what_comes() -> None:
    stage, owner, _ = three_segments()
    desk = Desk(stage, Start.TAIL)
    assert desk.seen == []
    more = owner.ask(batch(12)).dlsn
    desk.confirmed(more)
    assert desk.seen == [more]


def test_a_position_before_the_truncation_point_is_refused_with_the_first_that_is_there() -> None:
    stage, _, dlsns = three_segments()
    stage.value = TruncateTo(dlsns[4]).apply(stage.value)
    desk = Desk(stage, Start.DLSN, tuple(dlsns[0]))
    assert desk.kinds == [ReaderEventKind.TRUNCATED]
    assert desk.events[0].detail == {"first": list(dlsns[4])}
    assert Desk(stage, Start.START).seen == dlsns[4:]
    assert Desk(stage, Start.DLSN, tuple(dlsns[4])).seen == dlsns[4:]


@pytest.mark.parametrize(("number", "kinds"), [(1, []), (2, [ReaderEventKind.TRUNCATED])])
def test_a_list_that_became_empty_does_not_say_that_a_position_is_truncated(
    number: int, kinds: list[ReaderEventKind]
) -> None:
    """The number of a dropped segment may be reused, which the next one's shows. Told TRUNCATED, a reader skips it."""
    stage, _, _ = three_segments()
    later = replace(stage.value.segments[-1], number=SegmentNumber(number), name="later")
    stage.stored["later"] = StoredSegment(number)
    stage.value = replace(stage.value, segments=(), max_segment=SegmentNumber(2))
    desk = Desk(stage, Start.DLSN, (1, 2, 0))
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    assert desk.machine.position == of(1, 2, 0)
    stage.value = replace(stage.value, segments=(later,))
    desk.refresh()
    assert desk.kinds[2:] == kinds


def truncated_within_the_last_segment() -> tuple[Stage, Actor, DLSN, DLSN]:
    """Also the truncation point, and the record behind it, which is the last."""
    stage = Stage()
    owner = stage.taken("p1")
    _, point, last = (owner.ask(batch(number)).dlsn for number in range(3))
    assert point == of(1, 1, 0)
    stage.value = TruncateTo(point).apply(stage.value)
    return stage, owner, point, last


def test_a_reader_of_the_tail_is_not_cut_off_by_a_truncation_within_the_last_segment() -> None:
    stage, owner, _, _ = truncated_within_the_last_segment()
    once = Desk(stage, Start.TAIL, follow=False)
    assert once.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP] and once.seen == []
    desk = Desk(stage, Start.TAIL)
    more = owner.ask(batch(3)).dlsn
    desk.confirmed(more)
    assert ReaderEventKind.TRUNCATED not in desk.kinds
    assert desk.seen == [more]


def test_a_reader_of_the_tail_that_knows_an_old_lac_begins_at_the_truncation_point() -> None:
    stage, _, point, last = truncated_within_the_last_segment()
    desk = Desk(stage, Start.TAIL, lacs={stage.value.segments[-1].name: (0, False)})
    assert desk.events[0].detail["dlsn"] == list(point)
    desk.confirmed(last)
    assert desk.seen == [point, last]


def test_a_reader_of_the_tail_whose_segment_is_truncated_before_it_has_a_position_goes_on_behind_it() -> None:
    stage, owner, _ = three_segments()
    number = stage.value.segments[-1].number
    desk = Desk(stage, Start.TAIL, lacs={stage.value.segments[-1].name: (-9, False)})  # it is not told yet
    assert desk.events == []
    for i in range(12, 100):
        more = owner.ask(batch(i, size=60)).dlsn
        if more.segment > number:
            break
    stage.value = TruncateTo(more).apply(stage.value)
    desk.refresh()
    assert desk.seen == [more]
    assert ReaderEventKind.TRUNCATED not in desk.kinds


def test_a_reader_of_the_tail_that_was_moved_on_by_a_truncation_is_moved_on_by_the_next() -> None:
    stage, owner, _ = three_segments()
    number = stage.value.segments[-1].number
    desk = Desk(stage, Start.TAIL, lacs={stage.value.segments[-1].name: (-9, False)})  # not known yet
    dlsns = [owner.ask(batch(i, size=60)).dlsn for i in range(12, 40)]
    first, second = [dlsn for dlsn in dlsns if dlsn.segment == number + 1][:2]
    later = stage.value.segment(number + 1)
    assert later is not None
    desk.lacs[later.name] = (-9, False)
    for point in (first, second):
        stage.value = TruncateTo(point).apply(stage.value)
        desk.refresh()
        assert desk.events == []
    desk.lacs.clear()
    desk.post(Received(SOURCE, SegmentLacSeen(later.number, later.location, later.last_entry, True)))
    assert desk.kinds[0] is ReaderEventKind.STARTED
    assert desk.seen[0] == second and desk.seen[-1] == dlsns[-1]


def test_redpanda_29849_a_place_is_that_of_its_record_behind_control_records_and_truncations() -> None:
    stage = Stage(segment_bytes=500)
    owner = stage.taken("p1")
    dlsns: list[DLSN] = []
    for i in range(6):
        written = owner.ask(batch(3 * i, 3, size=30, txid=10 * (i + 1)))
        dlsns += [written.dlsn, written.dlsn.next_slot(), written.dlsn.next_slot(2)]
        owner.fire("control")
    for first in (4, 5, 11, 15):  # within an entry, and across the ends of segments
        stage.value = TruncateTo(dlsns[first]).apply(stage.value)
        assert Desk(stage, Start.START).seen == dlsns[first:]
        for at in range(first, len(dlsns)):
            assert Desk(stage, Start.DLSN, tuple(dlsns[at])).seen == dlsns[at:]
    assert Desk(stage, Start.TXID, 60).seen == dlsns[15:]


def test_a_position_before_everything_of_a_whole_stream_is_its_beginning() -> None:
    stage, _, dlsns = three_segments()
    assert Desk(stage, Start.DLSN, (1, 0, -1)).seen == dlsns
    assert Desk(stage, Start.DLSN, (0, -1, -1)).seen == dlsns


def dropped_and_listed_again(desk: Desk, number: int) -> None:
    """The list of the stream becomes empty, and then has a segment of the number again, at another location."""
    stage = desk.stage
    segment = stage.value.segment(number)
    assert segment is not None
    stage.value = replace(stage.value, segments=(), max_segment=segment.number)
    desk.refresh()
    stage.stored["again"] = stage.stored[segment.name]
    stage.value = replace(stage.value, segments=(replace(segment, name="again"),))
    desk.refresh()


def test_a_reader_of_the_tail_that_has_started_is_cut_off_though_its_segment_was_dropped_before() -> None:
    stage, _, _, _ = truncated_within_the_last_segment()
    desk = Desk(stage, Start.TAIL, lacs={stage.value.segments[-1].name: (-9, False)})  # not known yet
    dropped_and_listed_again(desk, 1)
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP, ReaderEventKind.TRUNCATED]
    assert desk.seen == []


def test_a_reader_of_a_txid_delivers_what_follows_though_its_segment_was_dropped_during_the_search() -> None:
    stage = Stage()
    written = stage.taken("p1").ask(batch(0, txid=10)).dlsn
    desk = Desk(stage, Start.TXID, 10)
    assert desk.seen == [written]
    asking = Desk(stage, Start.TXID, 10, is_silent=True)
    asking.is_silent = False
    dropped_and_listed_again(asking, 1)
    assert asking.seen == [written]


def test_a_position_beyond_the_end_is_refused_with_the_end() -> None:
    stage, _, dlsns = three_segments()
    last = dlsns[-1]
    assert last.segment == 3
    for beyond in (of(99, 0, 0), of(4, 0, 0), of(4, 0, 1), of(3, last.entry + 1, 1), of(3, last.entry + 2, 0)):
        desk = Desk(stage, Start.DLSN, tuple(beyond))
        assert desk.kinds == [ReaderEventKind.BEYOND_END], beyond
        assert desk.events[0].detail == {"end": [3, last.entry + 1, 0]}
        assert desk.machine.has_ended


def test_a_position_right_behind_the_last_record_is_none_beyond_the_end() -> None:
    stage, owner, dlsns = three_segments()
    behind = (dlsns[-1].next_slot(), of(3, dlsns[-1].entry + 1, 0))
    desks = [Desk(stage, Start.DLSN, tuple(place)) for place in behind]
    more = owner.ask(batch(12)).dlsn
    for desk in desks:
        assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
        desk.confirmed(more)
        assert desk.seen == [more]


def test_the_end_of_a_stream_whose_segments_are_all_completed_is_the_beginning_of_the_next() -> None:
    stage, owner, dlsns = three_segments()
    owner.ask(HandOverStream())
    assert all(segment.completed for segment in stage.value.segments)
    for place in (dlsns[-1].next_slot(), of(3, dlsns[-1].entry + 1, 0), of(4, 0, 0)):
        assert Desk(stage, Start.DLSN, tuple(place)).kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    for place in (of(4, 0, 1), of(5, 0, 0)):
        desk = Desk(stage, Start.DLSN, tuple(place))
        assert [event.detail for event in desk.events] == [{"end": [4, 0, 0]}]


def test_the_beginning_of_the_next_segment_is_reached_once_the_last_has_ended_before_the_list_says_so() -> None:
    stage, _, dlsns = three_segments()
    place = stage.value.segments[-1].name
    desk = Desk(stage, Start.DLSN, (4, 0, 0), lacs={place: (dlsns[-1].entry, True)})
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    assert desk.machine.position == of(4, 0, 0)


def test_an_empty_stream_ends_where_its_first_record_will_lie() -> None:
    stage = Stage()
    assert Desk(stage, Start.DLSN, (1, 0, 0)).kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    assert Desk(stage, Start.DLSN, (2, 0, 0)).kinds == [ReaderEventKind.BEYOND_END]
    stage.taken("p1")
    assert Desk(stage, Start.DLSN, (1, 0, 0)).kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    desk = Desk(stage, Start.DLSN, (1, 2, 0))
    assert [event.detail for event in desk.events] == [{"end": [1, 0, 0]}]


def test_a_position_beyond_the_end_of_a_sealed_stream_is_refused() -> None:
    stage, owner, dlsns = three_segments()
    owner.ask(SealStream())
    assert Desk(stage, Start.DLSN, tuple(dlsns[-1].next_slot())).kinds[-1] is ReaderEventKind.END_OF_STREAM
    assert Desk(stage, Start.DLSN, (99, 0, 0)).kinds == [ReaderEventKind.BEYOND_END]


def test_a_list_that_is_only_remembered_says_nothing_of_the_end() -> None:
    """A proxy that is cut off from metadata knows of one segment; the position is of the third."""
    stage, _, dlsns = three_segments()
    old = replace(stage.value, segments=stage.value.segments[:1], max_segment=SegmentNumber(1))
    for late in (False, True):
        desk = Desk(stage, Start.DLSN, tuple(dlsns[-1]), remembered=old, is_cut_off=late)
        if late:
            assert desk.kinds == []
            desk.is_cut_off = False
            desk.post(TimerFired(("retry",), 0.0))
        assert desk.seen == [dlsns[-1]]
        assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]


def test_a_lac_from_before_the_fresh_list_says_nothing_of_the_end() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    dlsns = [owner.ask(batch(i)).dlsn for i in range(4)]
    lacs = {stage.value.segments[0].name: (0, False)}
    desk = Desk(stage, Start.DLSN, tuple(dlsns[-1]), remembered=stage.value, is_slow=True, lacs=lacs)
    assert desk.kinds == []
    desk.lacs.clear()
    desk.refresh()
    assert desk.seen == [dlsns[-1]]


def test_who_waits_for_a_txid_is_told_the_life_and_started_when_it_comes() -> None:
    stage, owner, _ = three_segments()
    stage.value = revived(stage, "one")
    desk = Desk(stage, Start.TXID, 100)
    [event] = desk.events
    assert (event.kind, event.detail) == (ReaderEventKind.CAUGHT_UP, {"incarnation": "one"})
    owner.ask(batch(12, txid=70))
    more = owner.ask(batch(13, txid=100)).dlsn
    stage.value = revived(stage, "one")
    desk.refresh()
    desk.confirmed(more)
    assert desk.seen == [more]
    assert [event.detail for event in desk.events[1:]] == [{"dlsn": list(more), "incarnation": "one"}]
