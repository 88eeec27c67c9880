"""Which lists show that entries are lost."""

from __future__ import annotations

from dataclasses import replace

from dlog.errors import EntryMissingError
from dlog.log.source_messages import READER, SOURCE, StreamSeen
from dlog.machine import Received, TimerFired
from dlog.stores.contract import SegmentNotFoundError, StoreUnavailableError
from dlog.wire.proxy import Credit, ReaderEventKind, Start
from tests.unit.log.reader_desk import Desk, three_segments


def test_damage_is_not_said_by_a_list_that_was_asked_for_before_it() -> None:
    """It is on its way when the store says that an entry is lost; the segment is truncated after that."""
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
    """They were truncated, and metadata is out of reach for longer than a few looks."""
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
