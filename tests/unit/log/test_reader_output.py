"""What a reader sends to its client: entries under its credit, and what follows them."""

from __future__ import annotations

from dlog.log.source_messages import READER
from dlog.machine import Received
from dlog.wire.proxy import Credit, ReaderEventKind, Start
from tests.unit.log.reader_desk import Desk, three_segments
from tests.unit.log.stage import Stage, batch


def test_what_follows_entries_that_do_not_reach_the_tail_is_said_before_them_and_then_the_tail_again() -> None:
    stage, owner, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=0)
    said = []
    while desk.seen != dlsns:
        sent = len(desk.entries)
        desk.post(Received(READER, Credit(7, 1 - desk.machine._output.credit)))  # for one entry
        if len(desk.entries) > sent:
            newest = desk.events[-1]
            left = newest.detail if newest.kind is ReaderEventKind.BEHIND else None
            said.append((desk.entries[-1].segment, None if left is None else (left["segments"], left["entries"])))
    last = dlsns[-1]
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
        desk.post(Received(READER, Credit(7, 1 - desk.machine._output.credit)))
    ahead = [event.detail["entries"] for event in desk.events if event.kind is ReaderEventKind.BEHIND]
    assert ahead == [2, 1]
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP
    assert desk.kinds.count(ReaderEventKind.CAUGHT_UP) == 2


def test_credit_holds_entries_back() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, credit=1)
    assert desk.seen[-1] < dlsns[-1]
    given = len(desk.seen)
    desk.post(Received(READER, Credit(7, 10**6)))
    assert len(desk.seen) > given
    assert desk.seen == dlsns


def test_control_records_alone_are_not_sent() -> None:
    stage, owner, dlsns = three_segments()
    owner.fire("control")
    desk = Desk(stage, Start.START)
    assert desk.seen == dlsns
    assert desk.machine.position.entry == len(stage.stored[stage.value.segments[-1].name].payloads)
    again = Desk(stage, Start.DLSN, tuple(desk.machine.position))
    assert again.entries == []
