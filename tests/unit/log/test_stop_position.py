"""Where a reader that does not follow stops."""

from __future__ import annotations

import pytest

from dlog.log.source_messages import SOURCE, GetStream, StreamSeen
from dlog.machine import Received
from dlog.wire.proxy import ReaderEventKind, Start
from tests.unit.log.reader_desk import Desk, three_segments
from tests.unit.log.stage import batch


def test_a_reader_that_does_not_follow_ends_at_the_tail() -> None:
    stage, _, dlsns = three_segments()
    desk = Desk(stage, Start.START, follow=False)
    assert desk.seen == dlsns
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP
    assert desk.machine.has_ended


@pytest.mark.parametrize("start", [Start.START, Start.TXID, Start.DLSN])
def test_a_list_remembered_while_metadata_was_away_is_not_believed_to_name_the_last_segment(start: Start) -> None:
    stage, owner, dlsns = three_segments()
    old, sequence = stage.value, 12
    while stage.value.segments[-1].number == old.segments[-1].number:
        written = owner.ask(batch(sequence, 2, size=60, txid=100))
        dlsns += [written.dlsn, written.dlsn.next_slot()]
        sequence += 2
    value = {Start.START: None, Start.TXID: 10, Start.DLSN: tuple(dlsns[0])}[start]
    desk = Desk(stage, start, value, follow=False, remembered=old)
    assert GetStream(fresh=True) in desk.questions
    assert desk.seen == dlsns
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP


def test_a_newer_list_from_before_the_read_does_not_say_where_the_tail_was() -> None:
    """The position is behind the remembered list; what comes next shows its segment, but was not asked for since."""
    stage, owner, _ = three_segments()
    remembered = stage.value
    dlsns = [owner.ask(batch(i, size=60)).dlsn for i in range(12, 40)]
    position = next(dlsn for dlsn in dlsns if dlsn.segment == remembered.segments[-1].number + 1)
    desk = Desk(stage, Start.DLSN, tuple(position), follow=False, remembered=remembered, is_slow=True)
    desk.post(Received(SOURCE, StreamSeen(stage.value, fresh=False)))
    assert ReaderEventKind.CAUGHT_UP not in desk.kinds
    desk.refresh()
    assert desk.seen == [dlsn for dlsn in dlsns if dlsn >= position]
    assert desk.kinds[-1] is ReaderEventKind.CAUGHT_UP
