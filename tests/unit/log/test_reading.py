"""Stories of a reader: across segments, along with the tail, and every way it can end."""

from __future__ import annotations

from dataclasses import replace

from dlog.errors import MetadataWentBackError, StreamNotFoundError
from dlog.log.changes import TruncateTo
from dlog.log.messages import SealStream
from dlog.log.source_messages import READER, SOURCE, GetEntries, GetStream, SourceFailed, StreamSeen, WatchLac
from dlog.machine import PeerLost, Received, TimerFired
from dlog.model.ids import SegmentNumber
from dlog.model.segment import StreamMetadata
from dlog.wire.proxy import Cancel, Credit, ReaderEventKind, Start
from tests.unit.log.reader_desk import Desk, revived, three_segments
from tests.unit.log.stage import Stage, StoredSegment, batch


def test_from_the_start_across_segments_to_the_tail_and_along_with_it() -> None:
    stage, owner, dlsns = three_segments()
    desk = Desk(stage, Start.START)
    assert desk.seen == dlsns
    assert desk.kinds == [ReaderEventKind.STARTED, ReaderEventKind.CAUGHT_UP]
    more = owner.ask(batch(12, txid=100)).dlsn
    desk.confirmed(more)
    assert desk.seen == [*dlsns, more]


def test_the_end_of_the_stream_is_said_once_all_is_delivered() -> None:
    stage, owner, dlsns = three_segments()
    desk = Desk(stage, Start.START)
    owner.ask(SealStream())
    desk.refresh()
    assert desk.seen == dlsns
    assert desk.kinds[-1] is ReaderEventKind.END_OF_STREAM
    assert desk.machine.has_ended
    assert Desk(stage, Start.TAIL).kinds[-1] is ReaderEventKind.END_OF_STREAM
    assert Desk(stage, Start.TXID, 999).kinds[-1] is ReaderEventKind.END_OF_STREAM


def test_a_sealed_stream_whose_list_became_empty_ends_where_its_segment_does() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    dlsns = [owner.ask(batch(number, txid=number)).dlsn for number in range(3)]
    owner.ask(SealStream())
    desk = Desk(stage, Start.START, credit=1)
    assert desk.seen == dlsns[:1]
    for segment in stage.value.segments:
        stage.value = stage.value.without_segment(segment.number)
    desk.refresh()
    desk.post(Received(READER, Credit(7, 10**6)))
    assert desk.seen == dlsns
    assert desk.kinds[-1] is ReaderEventKind.END_OF_STREAM


def test_redpanda_27036_a_reader_does_not_go_back_when_the_log_is_truncated() -> None:
    stage, owner, dlsns = three_segments()
    desk = Desk(stage, Start.START)
    before = stage.value
    stage.value = TruncateTo(dlsns[8]).apply(stage.value)
    for shown in (stage.value, before, stage.value):  # an older list is heard late
        desk.post(Received(SOURCE, StreamSeen(shown, fresh=False)))
    written = owner.ask(batch(12, 1, size=60, txid=70, now=1070))
    desk.refresh()
    desk.confirmed(written.dlsn)
    assert desk.seen == [*dlsns, written.dlsn]
    assert not desk.machine.has_ended


def test_a_reader_that_lags_behind_the_truncation_point_hears_so() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    assert desk.seen[-1] < dlsns[4]
    stage.value = TruncateTo(dlsns[8]).apply(stage.value)
    desk.refresh()
    assert desk.kinds[-1] is ReaderEventKind.TRUNCATED


def test_empty_segments_that_somebody_dropped_are_not_truncated_and_the_first_number_comes_again() -> None:
    """A Java writer drops all segments that it finds empty, and begins with the number of the first."""
    stage, _, _ = three_segments()
    first, second = (replace(stage.value.segments[-1], number=SegmentNumber(n), name=f"{n}x") for n in (1, 2))
    stage.stored |= {"1x": StoredSegment(1), "2x": StoredSegment(2), "1y": StoredSegment(1)}
    stage.value = replace(stage.value, segments=(first, second), max_segment=SegmentNumber(2))
    desk = Desk(stage, Start.START)
    stage.value = replace(stage.value, segments=())
    assert stage.value.has_lost(1)
    desk.refresh()
    stage.value = replace(stage.value, segments=(replace(first, name="1y"),))
    desk.refresh()
    assert ReaderEventKind.TRUNCATED not in desk.kinds and not desk.machine.has_ended
    asked = desk.questions[-1]
    assert isinstance(asked, WatchLac) and asked.segment.name == "1y"


def test_a_position_of_an_earlier_stream_of_the_name_is_not_read_in_the_next() -> None:
    stage, _, dlsns = three_segments()
    stage.value = revived(stage, "two")
    for start, value in ((Start.DLSN, tuple(dlsns[2])), (Start.START, None), (Start.TXID, 10)):
        desk = Desk(stage, start, value, incarnation="one")
        [event] = desk.events
        assert (event.kind, event.detail) == (ReaderEventKind.DELETED, {"incarnation": "two"})
        assert Desk(stage, start, value, incarnation="two").seen == Desk(stage, start, value).seen


def test_a_remembered_stream_does_not_say_that_the_position_is_of_another() -> None:
    stage, _, dlsns = three_segments()
    old = revived(stage, "one")
    stage.value = revived(stage, "two")
    desk = Desk(stage, Start.DLSN, tuple(dlsns[2]), remembered=old, is_cut_off=True, incarnation="two")
    assert desk.kinds == []
    desk.is_cut_off = False
    desk.post(TimerFired(("retry",), 0.0))
    assert desk.seen == dlsns[2:]
    assert desk.events[0].detail == {"dlsn": list(dlsns[2]), "incarnation": "two"}


def test_a_segment_that_is_recovered_while_it_is_read_is_read_to_its_end() -> None:
    stage, owner, dlsns = three_segments()
    desk = Desk(stage, Start.START)
    written = owner.ask(batch(12)).dlsn
    stage.taken("p2")
    desk.refresh()
    assert desk.seen == [*dlsns, written]
    assert desk.machine.position.segment == written.segment + 1


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
    stage, _, dlsns = three_segments()
    stage.value = replace(stage.value, incarnation="1f")
    desk = Desk(stage, Start.START)
    desk.post(Received(SOURCE, StreamSeen(stage.value)))
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP
    desk.post(Received(SOURCE, StreamSeen(replace(stage.value, incarnation="2e"))))
    assert (desk.kinds[-1], desk.seen) == (ReaderEventKind.DELETED, dlsns)


def test_a_stream_that_is_given_a_life_is_the_same() -> None:
    stage, _, _ = three_segments()
    stage.value = replace(stage.value, incarnation="")
    desk = Desk(stage, Start.START)
    desk.post(Received(SOURCE, StreamSeen(replace(stage.value, incarnation="1f"))))
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP


def test_a_lost_source_is_asked_again_and_a_cancelled_reader_is_silent() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    desk.post(PeerLost(SOURCE))
    desk.post(TimerFired(("retry",), 1.0))
    desk.post(Received(READER, Credit(7, 10**6)))
    assert desk.seen == dlsns
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
