"""Scenarios of a reader: positions, moves to the next segment, the tail, and every way it can end."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import (
    DLogError,
    EntryMissingError,
    MetadataUnavailableError,
    MetadataWentBackError,
    StreamNotFoundError,
)
from dlog.log.changes import CompleteSegment, SegmentEnd, SetSegmentLocation, TruncateTo
from dlog.log.messages import AppendEntry, HandOverStream, SealStream
from dlog.log.reading import StreamReaderMachine
from dlog.log.source_messages import (
    READER,
    SOURCE,
    EntriesGot,
    GetEntries,
    GetStream,
    SegmentLacSeen,
    SourceFailed,
    StreamSeen,
    WatchLac,
)
from dlog.machine import PeerLost, Received, Send, SetTimer, TimerFired
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import NO_ENTRY, EntryId, SegmentNumber, Txid
from dlog.model.segment import Location, StreamMetadata
from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreUnavailableError
from dlog.wire.entry import decode_entry
from dlog.wire.proxy import Cancel, Credit, Entries, Read, ReaderEvent, ReaderEventKind, Start
from tests.simulation.mutants import edited
from tests.unit.log.stage import Actor, Place, Stage, batch


class Desk:
    """A reader with its source, which answers from a stage at once, unless a test stops it."""

    def __init__(
        self,
        stage: Stage,
        start: Start,
        value: Any = None,
        *,
        credit: int = 10**6,
        follow: bool = True,
        remembered: StreamMetadata | None = None,
        losing: DLogError | None = None,
        incarnation: str | None = None,
        lacs: dict[str, tuple[int, bool]] | None = None,
        is_cut_off: bool = False,
        is_slow: bool = False,
    ) -> None:
        self.stage = stage
        self.losing = losing  # the answer when it asks where a completed segment ends
        self.remembered = remembered  # sent instead of the present list, unless the request insists
        self.machine = StreamReaderMachine()
        self.entries: list[Entries] = []
        self.events: list[ReaderEvent] = []
        self.questions: list[Any] = []
        self.lacs: dict[str, tuple[int, bool]] = lacs or {}
        self.failing: Any = None
        self.is_cut_off = is_cut_off  # from metadata
        self.is_slow = is_slow  # lists come when the test says so
        self.timers = 0
        self.post(Received(READER, Read(7, "s", start, value, credit, follow, incarnation=incarnation)))

    def post(self, fact: Any) -> None:
        for effect in self.machine.handle(fact):
            match effect:
                case Send(peer, message) if peer == SOURCE:
                    self.questions.append(message)
                    for answer in self.answers(message):
                        self.post(Received(SOURCE, answer))
                case Send(_, Entries() as entries):
                    self.entries.append(entries)
                case Send(_, ReaderEvent() as event):
                    self.events.append(event)
                case SetTimer():
                    self.timers += 1

    def answers(self, question: Any) -> list[Any]:
        if self.failing is not None and isinstance(question, GetEntries):
            return [SourceFailed(question, self.failing)]
        match question:
            case GetStream(fresh) if self.remembered is not None and not fresh:
                return [StreamSeen(self.remembered, fresh=False)]
            case GetStream() if self.is_slow:
                return []
            case GetStream() if self.is_cut_off:
                return [SourceFailed(question, MetadataUnavailableError("not now"))]
            case GetStream():
                return [StreamSeen(self.stage.value)]
            case GetEntries(segment, first, last, max_bytes):
                payloads = self.stage.places[segment.place].payloads[first : last + 1]
                sums = itertools.accumulate(map(len, payloads), initial=0)
                enough = [p for p, before in zip(payloads, sums, strict=False) if before < max_bytes]
                return [EntriesGot(segment.number, segment.location, first, tuple(enough))]
            case WatchLac(segment) if segment.completed and self.losing is not None:
                return [SourceFailed(question, self.losing)]
            case WatchLac(segment, known):
                now = self.stage.value.segment(segment.number)
                stored = len(self.stage.places[segment.place].payloads) - 1
                lac, ended = self.lacs.get(segment.place, (stored, now is not None and now.completed))
                known_already = lac <= known and not ended
                return [] if known_already else [SegmentLacSeen(segment.number, segment.location, EntryId(lac), ended)]
        raise AssertionError(question)

    def confirmed(self, dlsn: DLSN) -> None:
        """Send the reader the LAC of a segment."""
        segment = self.stage.value.segment(dlsn.segment)
        assert segment is not None
        self.post(Received(SOURCE, SegmentLacSeen(segment.number, segment.location, dlsn.entry)))

    def refresh(self) -> None:
        self.post(Received(SOURCE, StreamSeen(self.stage.value)))

    @property
    def seen(self) -> list[DLSN]:
        """Positions of the records that the reader was sent."""
        places: list[DLSN] = []
        for entries in self.entries:
            at = 0
            for i, length in enumerate(entries.lengths):
                skip = entries.skip if i == 0 else 0
                for record in decode_entry(bytes(entries.body[at : at + length])):
                    if record.is_user and record.slot >= skip:
                        places.append(of(entries.segment, entries.first_entry + i, record.slot))
                at += length
        return places

    @property
    def kinds(self) -> list[ReaderEventKind]:
        """Kinds of the events, except BEHIND."""
        return [event.kind for event in self.events if event.kind is not ReaderEventKind.BEHIND]


def three_segments() -> tuple[Stage, Actor, list[DLSN]]:
    """Segments 1 and 2 completed, 3 in progress; txids 10, 20, ... and times 1010, 1020, ..."""
    stage = Stage(segment_bytes=500)
    owner = stage.taken("p1")
    places: list[DLSN] = []
    for i in range(6):
        written = owner.ask(batch(2 * i, 2, size=60, txid=10 * (i + 1), now=1010 + 10 * i))
        places += [written.dlsn, written.dlsn.next_slot()]
    return stage, owner, places


def test_from_the_start_across_segments_to_the_tail_and_along_with_it() -> None:
    stage, owner, places = three_segments()
    desk = Desk(stage, Start.START)
    assert desk.seen == places
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    more = owner.ask(batch(12, txid=100)).dlsn
    desk.confirmed(more)
    assert desk.seen == [*places, more]


def test_what_follows_entries_that_do_not_reach_the_tail_is_said_before_them_and_then_the_tail_again() -> None:
    stage, owner, places = three_segments()
    desk = Desk(stage, Start.START, credit=0)
    said = []
    while desk.seen != places:
        sent = len(desk.entries)
        desk.post(Received(READER, Credit(7, 1 - desk.machine._credit)))  # for one entry
        if len(desk.entries) > sent:
            newest = desk.events[-1]
            left = newest.detail if newest.kind is ReaderEventKind.BEHIND else None
            said.append((desk.entries[-1].segment, None if left is None else (left["segments"], left["entries"])))
    last = places[-1]
    assert [left for segment, left in said if segment < last.segment] == [
        (last.segment - segment, None) for segment, _ in said if segment < last.segment
    ]
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP
    desk.post(Received(READER, Credit(7, 10**6)))
    before = len(desk.events)
    desk.confirmed(owner.ask(batch(12, txid=100)).dlsn)
    assert len(desk.events) == before, "at the tail nothing is said of each entry"


def test_a_reader_that_falls_behind_at_the_tail_is_told_when_it_is_there_again() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    desk = Desk(stage, Start.START, credit=0)
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    more = [owner.ask(batch(n)).dlsn for n in range(3)]
    desk.confirmed(more[-1])
    while desk.seen != more:
        desk.post(Received(READER, Credit(7, 1 - desk.machine._credit)))
    ahead = [event.detail["entries"] for event in desk.events if event.kind is ReaderEventKind.BEHIND]
    assert ahead == [2, 1]
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP
    assert desk.kinds.count(ReaderEventKind.CAUGHT_UP) == 2


@pytest.mark.parametrize("at", range(12))
def test_from_any_place(at: int) -> None:
    stage, _, places = three_segments()
    desk = Desk(stage, Start.DLSN, tuple(places[at]))
    assert desk.seen == places[at:]
    assert desk.events[0].detail == {"dlsn": list(places[at]), "life": stage.value.incarnation}


@pytest.mark.parametrize(("txid", "first"), [(0, 0), (10, 0), (11, 2), (20, 2), (45, 8), (60, 10), (61, 12)])
def test_from_a_txid(txid: int, first: int) -> None:
    stage, owner, places = three_segments()
    desk = Desk(stage, Start.TXID, txid)
    assert desk.seen == places[first:]
    more = owner.ask(batch(12, txid=60)).dlsn
    desk.confirmed(more)
    assert (more in desk.seen) == (txid <= 60)


@pytest.mark.parametrize(("time", "first"), [(0, 0), (1010, 0), (1015, 2), (1060, 10), (9999, 12)])
def test_from_a_time(time: int, first: int) -> None:
    stage, _, places = three_segments()
    assert Desk(stage, Start.TIME, time).seen == places[first:]


def test_from_the_tail_only_what_comes() -> None:
    stage, owner, _ = three_segments()
    desk = Desk(stage, Start.TAIL)
    assert desk.seen == []
    more = owner.ask(batch(12)).dlsn
    desk.confirmed(more)
    assert desk.seen == [more]


def test_a_reader_that_does_not_follow_ends_at_the_tail() -> None:
    stage, _, places = three_segments()
    desk = Desk(stage, Start.START, follow=False)
    assert desk.seen == places
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP
    assert desk.machine.has_ended


def test_nothing_above_the_lac_is_asked_for() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    first = owner.ask(batch(0)).dlsn
    desk = Desk(stage, Start.START)
    stage.hold(AppendEntry)
    owner.ask(batch(1))
    stage.places["1a"].payloads.append(b"".join(bytes(p) for p in owner.sent[-1].parts))
    desk.refresh()
    desk.post(Received(READER, Credit(7, 1)))
    assert [q.last for q in desk.questions if isinstance(q, GetEntries)] == [first.entry]
    assert desk.seen == [first]


def test_credit_holds_entries_back() -> None:
    stage, _, places = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    assert desk.seen[-1] < places[-1]
    given = len(desk.seen)
    desk.post(Received(READER, Credit(7, 10**6)))
    assert len(desk.seen) > given
    assert desk.seen == places


def test_control_records_alone_are_not_sent() -> None:
    stage, owner, places = three_segments()
    owner.fire("control")
    desk = Desk(stage, Start.START)
    assert desk.seen == places
    assert desk.machine.position.entry == len(stage.places[stage.value.segments[-1].place].payloads)
    again = Desk(stage, Start.DLSN, tuple(desk.machine.position))
    assert again.entries == []


def test_the_end_of_the_stream_is_said_once_all_is_delivered() -> None:
    stage, owner, places = three_segments()
    desk = Desk(stage, Start.START)
    owner.ask(SealStream())
    desk.refresh()
    assert desk.seen == places
    assert desk.kinds[-1] is ReaderEventKind.END_OF_STREAM
    assert desk.machine.has_ended
    assert Desk(stage, Start.TAIL).kinds[-1] is ReaderEventKind.END_OF_STREAM
    assert Desk(stage, Start.TXID, 999).kinds[-1] is ReaderEventKind.END_OF_STREAM


def test_a_position_before_the_truncation_point_is_refused_with_the_first_that_is_there() -> None:
    stage, _, places = three_segments()
    stage.value = TruncateTo(places[4]).apply(stage.value)
    desk = Desk(stage, Start.DLSN, tuple(places[0]))
    assert desk.kinds == [ReaderEventKind.TRUNCATED]
    assert desk.events[0].detail == {"first": list(places[4])}
    assert Desk(stage, Start.START).seen == places[4:]
    assert Desk(stage, Start.DLSN, tuple(places[4])).seen == places[4:]


def truncated_within_the_last_segment() -> tuple[Stage, Actor, DLSN, DLSN]:
    """A stage whose last segment is truncated within, its owner, the truncation point, and the last record, behind the
    point."""
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
    desk = Desk(stage, Start.TAIL, lacs={stage.value.segments[-1].place: (0, False)})
    assert desk.events[0].detail["dlsn"] == list(point)
    desk.confirmed(last)
    assert desk.seen == [point, last]


def test_a_reader_of_the_tail_whose_segment_is_truncated_before_it_has_a_position_goes_on_behind_it() -> None:
    stage, owner, _ = three_segments()
    number = stage.value.segments[-1].number
    desk = Desk(stage, Start.TAIL, lacs={stage.value.segments[-1].place: (-9, False)})  # not sent yet
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
    desk = Desk(stage, Start.TAIL, lacs={stage.value.segments[-1].place: (-9, False)})  # not known yet
    places = [owner.ask(batch(i, size=60)).dlsn for i in range(12, 40)]
    first, second = [dlsn for dlsn in places if dlsn.segment == number + 1][:2]
    later = stage.value.segment(number + 1)
    assert later is not None
    desk.lacs[later.place] = (-9, False)
    for point in (first, second):
        stage.value = TruncateTo(point).apply(stage.value)
        desk.refresh()
        assert desk.events == []
    desk.lacs.clear()
    desk.post(Received(SOURCE, SegmentLacSeen(later.number, later.location, later.last_entry, True)))
    assert desk.kinds[0] is ReaderEventKind.STARTED
    assert desk.seen[0] == second and desk.seen[-1] == places[-1]


def test_redpanda_29849_a_place_is_that_of_its_record_behind_control_records_and_truncations() -> None:
    stage = Stage(segment_bytes=500)
    owner = stage.taken("p1")
    places: list[DLSN] = []
    for i in range(6):
        written = owner.ask(batch(3 * i, 3, size=30, txid=10 * (i + 1)))
        places += [written.dlsn, written.dlsn.next_slot(), written.dlsn.next_slot(2)]
        owner.fire("control")
    for first in (4, 5, 11, 15):  # within an entry, and across the ends of segments
        stage.value = TruncateTo(places[first]).apply(stage.value)
        assert Desk(stage, Start.START).seen == places[first:]
        for at in range(first, len(places)):
            assert Desk(stage, Start.DLSN, tuple(places[at])).seen == places[at:]
    assert Desk(stage, Start.TXID, 60).seen == places[15:]


def test_redpanda_27036_a_reader_does_not_go_back_when_the_log_is_truncated() -> None:
    stage, owner, places = three_segments()
    desk = Desk(stage, Start.START)
    before = stage.value
    stage.value = TruncateTo(places[8]).apply(stage.value)
    for shown in (stage.value, before, stage.value):  # an older list arrives late
        desk.post(Received(SOURCE, StreamSeen(shown, fresh=False)))
    written = owner.ask(batch(12, 1, size=60, txid=70, now=1070))
    desk.refresh()
    desk.confirmed(written.dlsn)
    assert desk.seen == [*places, written.dlsn]
    assert not desk.machine.has_ended


def test_a_position_before_everything_of_a_whole_stream_is_its_beginning() -> None:
    stage, _, places = three_segments()
    assert Desk(stage, Start.DLSN, (1, 0, -1)).seen == places
    assert Desk(stage, Start.DLSN, (0, -1, -1)).seen == places


def test_a_reader_that_lags_behind_the_truncation_point_hears_so() -> None:
    stage, _, places = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    assert desk.seen[-1] < places[4]
    stage.value = TruncateTo(places[8]).apply(stage.value)
    desk.refresh()
    assert desk.kinds[-1] is ReaderEventKind.TRUNCATED


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


def test_empty_segments_that_somebody_dropped_are_not_truncated_and_the_first_number_comes_again() -> None:
    """A Java writer drops all segments that it finds empty, and begins with the number of the first."""
    stage, _, _ = three_segments()
    first, second = (replace(stage.value.segments[-1], number=SegmentNumber(n), place=f"{n}x") for n in (1, 2))
    stage.places |= {"1x": Place(1), "2x": Place(2), "1y": Place(1)}
    stage.value = replace(stage.value, segments=(first, second), max_segment=SegmentNumber(2))
    desk = Desk(stage, Start.START)
    stage.value = replace(stage.value, segments=())
    assert stage.value.has_lost(1)
    desk.refresh()
    stage.value = replace(stage.value, segments=(replace(first, place="1y"),))
    desk.refresh()
    assert ReaderEventKind.TRUNCATED not in desk.kinds and not desk.machine.has_ended
    asked = desk.questions[-1]
    assert isinstance(asked, WatchLac) and asked.segment.place == "1y"


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


def test_a_segment_that_ended_empty_and_is_completed_all_the_same_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed_empty_after_it_was_heard_to_end_empty().seen == [of(2, 0, 0)]
    still_void = ("_follow_segment", "self._watched, self._is_void = None, False", "self._watched = None")
    monkeypatch.setitem(globals(), "StreamReaderMachine", edited(StreamReaderMachine, still_void))
    assert completed_empty_after_it_was_heard_to_end_empty().seen == []


def revived(stage: Stage, incarnation: str) -> StreamMetadata:
    """The present stream, in this incarnation."""
    return replace(stage.value, incarnation=incarnation)


def test_a_position_beyond_the_end_is_refused_with_the_end() -> None:
    stage, _, places = three_segments()
    last = places[-1]
    assert last.segment == 3
    for beyond in (of(99, 0, 0), of(4, 0, 0), of(4, 0, 1), of(3, last.entry + 1, 1), of(3, last.entry + 2, 0)):
        desk = Desk(stage, Start.DLSN, tuple(beyond))
        assert desk.kinds == [ReaderEventKind.BEYOND_END], beyond
        assert desk.events[0].detail == {"end": [3, last.entry + 1, 0]}
        assert desk.machine.has_ended


def test_a_position_right_behind_the_last_record_is_none_beyond_the_end() -> None:
    stage, owner, places = three_segments()
    behind = (places[-1].next_slot(), of(3, places[-1].entry + 1, 0))
    desks = [Desk(stage, Start.DLSN, tuple(place)) for place in behind]
    more = owner.ask(batch(12)).dlsn
    for desk in desks:
        assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
        desk.confirmed(more)
        assert desk.seen == [more]


def test_the_end_of_a_stream_whose_segments_are_all_completed_is_the_beginning_of_the_next() -> None:
    stage, owner, places = three_segments()
    owner.ask(HandOverStream())
    assert all(segment.completed for segment in stage.value.segments)
    for place in (places[-1].next_slot(), of(3, places[-1].entry + 1, 0), of(4, 0, 0)):
        assert Desk(stage, Start.DLSN, tuple(place)).kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    for place in (of(4, 0, 1), of(5, 0, 0)):
        desk = Desk(stage, Start.DLSN, tuple(place))
        assert [event.detail for event in desk.events] == [{"end": [4, 0, 0]}]


def test_the_beginning_of_the_next_segment_is_reached_once_the_last_has_ended_before_the_list_says_so() -> None:
    stage, _, places = three_segments()
    place = stage.value.segments[-1].place
    desk = Desk(stage, Start.DLSN, (4, 0, 0), lacs={place: (places[-1].entry, True)})
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
    stage, owner, places = three_segments()
    owner.ask(SealStream())
    assert Desk(stage, Start.DLSN, tuple(places[-1].next_slot())).kinds[-1] is ReaderEventKind.END_OF_STREAM
    assert Desk(stage, Start.DLSN, (99, 0, 0)).kinds == [ReaderEventKind.BEYOND_END]


def test_a_list_that_is_only_remembered_says_nothing_of_the_end() -> None:
    """A proxy that is cut off from metadata knows one segment; the position is in the third."""
    stage, _, places = three_segments()
    old = replace(stage.value, segments=stage.value.segments[:1], max_segment=SegmentNumber(1))
    for late in (False, True):
        desk = Desk(stage, Start.DLSN, tuple(places[-1]), remembered=old, is_cut_off=late)
        if late:
            assert desk.kinds == []
            desk.is_cut_off = False
            desk.post(TimerFired(("retry",), 0.0))
        assert desk.seen == [places[-1]]
        assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]


def test_a_lac_from_before_the_fresh_list_says_nothing_of_the_end() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    places = [owner.ask(batch(i)).dlsn for i in range(4)]
    lacs = {stage.value.segments[0].place: (0, False)}
    desk = Desk(stage, Start.DLSN, tuple(places[-1]), remembered=stage.value, is_slow=True, lacs=lacs)
    assert desk.kinds == []
    desk.lacs.clear()
    desk.refresh()
    assert desk.seen == [places[-1]]


def test_a_position_of_an_earlier_stream_of_the_name_is_not_read_in_the_next() -> None:
    stage, _, places = three_segments()
    stage.value = revived(stage, "two")
    for start, value in ((Start.DLSN, tuple(places[2])), (Start.START, None), (Start.TXID, 10)):
        desk = Desk(stage, start, value, incarnation="one")
        assert [(event.kind, event.detail) for event in desk.events] == [(ReaderEventKind.DELETED, {"life": "two"})]
        assert Desk(stage, start, value, incarnation="two").seen == Desk(stage, start, value).seen


def test_a_remembered_stream_does_not_say_that_the_position_is_of_another() -> None:
    stage, _, places = three_segments()
    old = revived(stage, "one")
    stage.value = revived(stage, "two")
    desk = Desk(stage, Start.DLSN, tuple(places[2]), remembered=old, is_cut_off=True, incarnation="two")
    assert desk.kinds == []
    desk.is_cut_off = False
    desk.post(TimerFired(("retry",), 0.0))
    assert desk.seen == places[2:]
    assert desk.events[0].detail == {"dlsn": list(places[2]), "life": "two"}


def test_who_waits_for_a_txid_is_told_the_life_and_started_when_it_comes() -> None:
    stage, owner, _ = three_segments()
    stage.value = revived(stage, "one")
    desk = Desk(stage, Start.TXID, 100)
    assert [(event.kind, event.detail) for event in desk.events] == [(ReaderEventKind.CAUGHT_UP, {"life": "one"})]
    owner.ask(batch(12, txid=70))
    more = owner.ask(batch(13, txid=100)).dlsn
    stage.value = revived(stage, "one")
    desk.refresh()
    desk.confirmed(more)
    assert desk.seen == [more]
    assert [event.detail for event in desk.events[1:]] == [{"dlsn": list(more), "life": "one"}]


def test_a_segment_that_is_recovered_while_it_is_read_is_read_to_its_end() -> None:
    stage, owner, places = three_segments()
    desk = Desk(stage, Start.START)
    written = owner.ask(batch(12)).dlsn
    stage.taken("p2")
    desk.refresh()
    assert desk.seen == [*places, written]
    assert desk.machine.position.segment == written.segment + 1


def moved(stage: Stage, number: int, place: str, store: str = "cold") -> None:
    """Move segment `number` to `place`; nothing is left at its former location."""
    segment = stage.value.segment(number)
    assert segment is not None
    stage.value = SetSegmentLocation(segment.number, segment.location, Location(store, place)).apply(stage.value)
    stage.places[place] = stage.places.pop(segment.place)
    stage.version += 1


@pytest.mark.parametrize("start", [Start.START, Start.DLSN, Start.TXID])
def test_a_reader_goes_on_where_its_segment_was_moved_to_and_taken_back(start: Start) -> None:
    stage, _, places = three_segments()
    value = {Start.START: None, Start.DLSN: tuple(places[1]), Start.TXID: 10}[start]
    desk = Desk(stage, start, value, credit=1)
    first = 1 if start is Start.DLSN else 0
    given = len(desk.seen)
    assert desk.seen[-1] < places[3], "it is within the first segment"
    before = stage.value.segments[0].place
    for place, store in (("object", "cold"), (before, "ledger")):
        moved(stage, 1, place, store)
        desk.refresh()
        desk.post(Received(READER, Credit(7, len(desk.entries[-1].body))))
        assert len(desk.seen) > given
        given = len(desk.seen)
    desk.post(Received(READER, Credit(7, 10**6)))
    assert desk.seen == places[first:]
    assert ReaderEventKind.DAMAGED not in desk.kinds


def test_a_reader_goes_on_in_a_segment_that_was_completed_and_moved_in_one_look() -> None:
    stage, owner, places = three_segments()
    desk = Desk(stage, Start.START)
    assert desk.seen == places, "it waits in the last segment"
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
    stage, _, places = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = EntryMissingError("on no bookie")
    desk.post(Received(READER, Credit(7, 1000)))
    assert ReaderEventKind.DAMAGED not in desk.kinds, "it may have been truncated meanwhile"
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.DAMAGED
    assert desk.events[-1].detail["dlsn"] == list(desk.machine.position)
    assert desk.machine.has_ended
    assert places


def test_bytes_that_are_no_entry_are_damage() -> None:
    stage, _, _ = three_segments()
    stage.places[stage.value.segments[0].place].payloads[0] = b"\x01\0\0\0\0\0\0\0\x05\0\0\0\x05\0\0\0\0\x01"
    desk = Desk(stage, Start.TXID, 1)
    assert desk.kinds == [ReaderEventKind.DAMAGED]


def test_a_failure_that_may_pass_is_asked_again() -> None:
    stage, _, places = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = StoreUnavailableError("not now")
    desk.post(Received(READER, Credit(7, 10**6)))
    assert desk.timers == 1
    desk.failing = None
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.seen == places


def test_entries_that_are_gone_end_the_reader_as_truncated_if_metadata_says_so() -> None:
    stage, _, places = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = SegmentNotFoundError("deleted")
    desk.post(Received(READER, Credit(7, 10**6)))
    stage.value = replace(stage.value, segments=stage.value.segments[-1:])
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.TRUNCATED
    assert places


def test_entries_that_are_gone_against_metadata_are_damage_in_the_end() -> None:
    stage, _, _ = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = SegmentNotFoundError("deleted by mistake")
    desk.post(Received(READER, Credit(7, 10**6)))
    for _ in range(3):
        assert ReaderEventKind.DAMAGED not in desk.kinds
        desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.DAMAGED


def test_damage_is_not_said_by_a_list_that_was_asked_for_before_it() -> None:
    """The list is on its way when the store reports that an entry is lost; the segment is truncated after that."""
    stage, _, _ = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = StoreUnavailableError("not now")
    desk.is_slow = True
    desk.post(Received(READER, Credit(7, 10**6)))
    desk.failing = EntryMissingError("on no bookie")
    desk.post(TimerFired(("retry",), 1.0))  # a list is asked for, and then the entries
    asked_before = StreamSeen(stage.value)
    desk.post(Received(SOURCE, asked_before))
    assert ReaderEventKind.DAMAGED not in desk.kinds
    stage.value = replace(stage.value, segments=stage.value.segments[-1:])
    desk.is_slow = False
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.TRUNCATED


def test_entries_that_are_gone_are_no_damage_while_the_list_that_names_them_is_old() -> None:
    """The entries were truncated, and metadata is out of reach for longer than a few polls."""
    stage, _, _ = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.failing = SegmentNotFoundError("deleted")
    desk.is_cut_off = True
    desk.post(Received(READER, Credit(7, 10**6)))
    for _ in range(10):
        desk.post(TimerFired(("retry",), 1.0))
    assert ReaderEventKind.DAMAGED not in desk.kinds
    stage.value = replace(stage.value, segments=stage.value.segments[-1:])
    desk.is_cut_off = False
    desk.post(TimerFired(("retry",), 1.0))
    assert desk.kinds[-1] is ReaderEventKind.TRUNCATED


@pytest.mark.parametrize("start", [Start.START, Start.TXID, Start.DLSN])
def test_a_list_remembered_while_metadata_was_away_is_not_believed_to_name_the_last_segment(start: Start) -> None:
    stage, owner, places = three_segments()
    old, sequence = stage.value, 12
    while stage.value.segments[-1].number == old.segments[-1].number:
        written = owner.ask(batch(sequence, 2, size=60, txid=100))
        places += [written.dlsn, written.dlsn.next_slot()]
        sequence += 2
    value = {Start.START: None, Start.TXID: 10, Start.DLSN: tuple(places[0])}[start]
    desk = Desk(stage, start, value, follow=False, remembered=old)
    assert GetStream(fresh=True) in desk.questions
    assert desk.seen == places
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP


def test_a_newer_list_from_before_the_read_does_not_say_where_the_tail_was() -> None:
    """The position is behind the remembered list; the next list shows its segment, but was requested before the
    read."""
    stage, owner, _ = three_segments()
    remembered = stage.value
    places = [owner.ask(batch(i, size=60)).dlsn for i in range(12, 40)]
    position = next(dlsn for dlsn in places if dlsn.segment == remembered.segments[-1].number + 1)
    desk = Desk(stage, Start.DLSN, tuple(position), follow=False, remembered=remembered, is_slow=True)
    desk.post(Received(SOURCE, StreamSeen(stage.value, fresh=False)))
    assert ReaderEventKind.CAUGHT_UP not in desk.kinds
    desk.refresh()
    assert desk.seen == [dlsn for dlsn in places if dlsn >= position]
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP


def test_metadata_that_went_back_ends_the_reader_whatever_it_asked() -> None:
    stage, _, _ = three_segments()
    for kind in (GetStream, GetEntries, WatchLac):
        desk = Desk(stage, Start.START, credit=1)
        question = next(q for q in desk.questions if isinstance(q, kind))
        desk.post(Received(SOURCE, SourceFailed(question, MetadataWentBackError("metadata went back"))))
        assert desk.kinds[-1] is ReaderEventKind.DAMAGED
        assert desk.events[-1].detail["message"] == "metadata went back"
        assert desk.machine.has_ended


def test_a_deleted_stream_is_said() -> None:
    stage, _, _ = three_segments()
    desk = Desk(stage, Start.START)
    desk.post(Received(SOURCE, StreamSeen(None)))
    assert desk.kinds[-1] is ReaderEventKind.DELETED
    late = Desk(stage, Start.START)
    late.post(Received(SOURCE, SourceFailed(GetStream(), StreamNotFoundError("no such stream"))))
    assert late.kinds[-1] is ReaderEventKind.DELETED


def test_another_stream_of_the_same_name_is_not_read_on() -> None:
    stage, _, places = three_segments()
    stage.value = replace(stage.value, incarnation="1f")
    desk = Desk(stage, Start.START)
    desk.post(Received(SOURCE, StreamSeen(stage.value)))
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP
    desk.post(Received(SOURCE, StreamSeen(replace(stage.value, incarnation="2e"))))
    assert (desk.kinds[-1], desk.seen) == (ReaderEventKind.DELETED, places)


def test_a_stream_that_is_given_a_life_is_the_same() -> None:
    stage, _, _ = three_segments()
    stage.value = replace(stage.value, incarnation="")
    desk = Desk(stage, Start.START)
    desk.post(Received(SOURCE, StreamSeen(replace(stage.value, incarnation="1f"))))
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP


def test_a_lost_source_is_asked_again_and_a_cancelled_reader_is_silent() -> None:
    stage, _, places = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.post(PeerLost(SOURCE))
    desk.post(TimerFired(("retry",), 1.0))
    desk.post(Received(READER, Credit(7, 10**6)))
    assert desk.seen == places
    desk.post(Received(READER, Cancel(7)))
    assert desk.machine.has_ended
    assert desk.machine.handle(Received(SOURCE, StreamSeen(StreamMetadata(name=stage.value.name)))) == []


def test_a_stream_without_segments_is_waited_for() -> None:
    stage = Stage()
    desk = Desk(stage, Start.START)
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    first = stage.taken("p1").ask(batch(0)).dlsn
    desk.refresh()
    assert desk.seen == [first]


def misstated(stage: Stage, entries: int) -> None:
    """The list says that segment 1 ended this many entries earlier, or later, than its store decided."""
    first, *others = stage.value.segments
    wrong = replace(first, last_entry=EntryId(first.last_entry + entries), last_slot=1)
    stage.value = replace(stage.value, segments=(wrong, *others))


@pytest.mark.parametrize("entries", [-1, 1])
def test_a_completed_segment_is_read_to_where_its_store_ends_it(entries: int) -> None:
    stage, _, places = three_segments()
    misstated(stage, entries)
    assert Desk(stage, Start.START).seen == places


def test_a_reader_goes_on_behind_the_end_that_the_list_says() -> None:
    stage, _, places = three_segments()
    last = max(place for place in places if place.segment == 1)
    misstated(stage, -1)
    desk = Desk(stage, Start.DLSN, tuple(last))
    assert desk.seen == [place for place in places if place >= last]
    assert desk.events[0].detail == {"dlsn": list(last), "life": stage.value.incarnation}


def test_a_reader_that_begins_behind_the_end_begins_with_the_next_segment() -> None:
    stage, _, places = three_segments()
    last = max(place for place in places if place.segment == 1)
    for behind in (stage.value.segments[0].last_dlsn.next_slot(), of(1, last.entry + 1, 0), of(1, last.entry + 9, 3)):
        desk = Desk(stage, Start.DLSN, tuple(behind))
        assert desk.seen == [place for place in places if place > last]
        assert desk.events[0].detail == {"dlsn": [2, 0, 0], "life": stage.value.incarnation}


@pytest.mark.parametrize("start", [Start.START, Start.DLSN, Start.TXID])
def test_a_completed_segment_whose_store_has_lost_it_is_damaged(start: Start) -> None:
    stage, _, places = three_segments()
    value = {Start.START: None, Start.DLSN: tuple(places[0]), Start.TXID: 10}[start]
    desk = Desk(stage, start, value, losing=SegmentNotFoundError("no such place"))
    for _ in range(3):
        assert desk.kinds == []
        desk.post(TimerFired(("retry",), 0.0))
    assert desk.kinds == [ReaderEventKind.DAMAGED]


@pytest.mark.parametrize("start", [Start.START, Start.DLSN, Start.TXID])
def test_a_segment_in_a_store_that_is_not_set_up_ends_the_reader_with_the_reason(start: Start) -> None:
    stage, _, places = three_segments()
    value = {Start.START: None, Start.DLSN: tuple(places[0]), Start.TXID: 10}[start]
    desk = Desk(stage, start, value, losing=MisconfiguredError("Unable to locate credentials"))
    desk.post(TimerFired(("retry",), 0.0))
    assert desk.kinds == [ReaderEventKind.DAMAGED]
    assert desk.events[0].detail["message"] == "Unable to locate credentials"
