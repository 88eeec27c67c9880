"""Scenarios of a stream that a Java writer takes over without a claim, while an owner of dlog has records in flight, or
before the next owner takes over."""

from __future__ import annotations

from dataclasses import replace

from dlog.errors import (
    ClaimLostError,
    TxidOutOfOrderError,
)
from dlog.events import LacMoved
from dlog.log.changes import CompleteSegment, SegmentEnd
from dlog.log.messages import (
    STORE,
    AppendEntry,
    StoreFailed,
)
from dlog.log.owner_context import Phase
from dlog.machine import Received
from dlog.model.dlsn import of
from dlog.model.ids import EntryId, SegmentNumber, Txid
from dlog.model.segment import Segment
from dlog.stores.contract import SegmentFencedError
from dlog.wire.entry import Record, encode_entry
from tests.unit.log.stage import Actor, Stage, StoredSegment, batch, notes, stores


def test_a_segment_of_another_with_the_number_of_ours_says_nothing_of_what_we_had_under_way() -> None:
    """A Java writer fences our segment, finds it empty, deletes it and gives its number to its own."""
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(batch(0, now=1))
    append = next(m for m in owner.sent if isinstance(m, AppendEntry))
    stage.held.clear()
    stage.hold()
    foreign = stage.stored["java"] = StoredSegment(1)
    foreign.payloads.append(b"".join(bytes(p) for p in encode_entry([Record(0, 1, 6000, b"java's")])))
    (began,) = stage.value.segments
    stage.value, stage.version = replace(stage.value, segments=(replace(began, name="java"),)), stage.version + 1
    owner.post(Received(STORE, StoreFailed(append, SegmentFencedError("fenced by Java"))))
    assert (stage.value.segments[0].number, stage.value.segments[0].name) == (1, "java")
    assert owner.answers[2].dlsn == of(2, 0, 0)
    assert [b.sequence for b in notes(stage, stage.value.segments[1].name)] == [0]


def test_what_survived_in_a_segment_that_java_recovered_and_completed_is_answered_with_its_place() -> None:
    """Java fences the owner, keeps the first of three entries in flight, and goes on in a segment of its own. Nothing
    is written twice: the list has the owner's segment as completed, and the store knows its end."""
    stage = Stage()
    owner = stage.taken("p1", stores=stores(entries_in_flight=3))
    appends = _three_under_way(stage, owner)
    _land(owner, appends[0])
    _java_takes_over(stage, EntryId(0))
    owner.post(Received(STORE, StoreFailed(appends[0], SegmentFencedError("fenced by Java"))))
    assert [owner.answers[t].dlsn for t in (2, 3, 4)] == [of(1, 0, 0), of(3, 0, 0), of(3, 0, 1)]
    assert [b.sequence for b in notes(stage, stage.value.segments[2].name)] == [1, 2]
    assert LacMoved("s", 1, 0, True) in owner.events
    again = owner.ask(batch(0, retry=True))
    assert (again.dlsn, again.duplicate) == (of(1, 0, 0), True)


def test_the_end_that_counts_is_the_stores_where_the_list_says_another() -> None:
    """The writer that completed the segment in the list knew of the first entry only: two have survived."""
    stage = Stage()
    owner = stage.taken("p1", stores=stores(entries_in_flight=3))
    appends = _three_under_way(stage, owner)
    _land(owner, appends[0])
    _land(owner, appends[1])
    _java_takes_over(stage, EntryId(0))
    owner.post(Received(STORE, StoreFailed(appends[0], SegmentFencedError("fenced by Java"))))
    assert [owner.answers[t].dlsn for t in (2, 3, 4)] == [of(1, 0, 0), of(1, 1, 0), of(3, 0, 0)]
    assert [(s.last_entry, s.record_count) for s in stage.value.segments[:2]] == [(1, 2), (0, 1)]


def test_nothing_is_said_of_what_was_on_its_way_to_a_segment_that_was_truncated_meanwhile() -> None:
    """Frozen for long: Java recovered the segment, went on, and truncated it with all segments before it."""
    stage = Stage()
    owner = stage.taken("p1", stores=stores(entries_in_flight=1))
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    owner.ask(batch(1))
    append = next(m for m in owner.sent if isinstance(m, AppendEntry))
    stage.held.clear()
    stage.hold()
    _java_takes_over(stage, EntryId(-1))
    stage.value = stage.value.without_segment(1)
    owner.post(Received(STORE, StoreFailed(append, SegmentFencedError("fenced by Java"))))
    assert owner.machine.phase is Phase.LOST
    assert isinstance(owner.answers[2], ClaimLostError) and owner.answers[2].outcome_unknown
    assert isinstance(owner.answers[3], ClaimLostError)


def test_the_next_owner_puts_the_end_right_that_a_fenced_java_writer_gave_its_segment() -> None:
    """The predecessor recovered the segment and died, then Java completed it at the last entry that it knew to be
    acknowledged, with the count and txid of the records that it had assigned."""
    stage = Stage()
    first = stage.taken("p1")
    for sequence in range(3):
        first.ask(batch(sequence, txid=7000 + sequence))
    place = first.writers[1]
    place.end = 2
    _complete_in_list(stage, 1, EntryId(1), records=9, txid=9000)
    second = stage.taken("p2")
    done = stage.value.segments[0]
    assert (done.last_entry, done.last_slot, done.record_count, done.last_txid) == (2, 1, 3, 7002)
    assert second.ask(batch(3, txid=9000)).dlsn == of(2, 0, 0)
    assert isinstance(second.ask(batch(4, txid=7001)), TxidOutOfOrderError)
    assert second.ask(batch(2, retry=True, txid=7002)).dlsn == of(1, 2, 0)


def _three_under_way(stage: Stage, owner: Actor) -> list[AppendEntry]:
    stage.hold(AppendEntry)
    for sequence in range(3):
        owner.ask(batch(sequence, now=1))
    stage.held.clear()
    stage.hold()
    return [m for m in owner.sent if isinstance(m, AppendEntry)]


def _land(owner: Actor, append: AppendEntry) -> None:
    """Store the entry without an answer to the owner."""
    owner.writers[append.number].payloads.append(b"".join(bytes(p) for p in append.parts))


def _java_takes_over(stage: Stage, listed_end: EntryId) -> None:
    """Recover segment 1, complete it in the list at `listed_end`, and write one record to a segment of its own."""
    (ours,) = stage.value.segments
    stage.stored[ours.name].end = len(stage.stored[ours.name].payloads) - 1
    _complete_in_list(stage, 1, listed_end, records=listed_end + 1, txid=1000)
    java = stage.stored["java"] = StoredSegment(2)
    java.payloads.append(b"".join(bytes(p) for p in encode_entry([Record(0, 1, 6000, b"java's")])))
    began = Segment(number=SegmentNumber(2), name="java", first_txid=Txid(6000))
    stage.value = stage.value.with_segment(began)


def _complete_in_list(stage: Stage, number: int, last: EntryId, *, records: int, txid: int) -> None:
    location = next(s.location for s in stage.value.segments if s.number == number)
    end = SegmentEnd(last, 1, Txid(txid), records)
    stage.value = CompleteSegment(SegmentNumber(number), location, end, 5000).apply(stage.value)
    stage.version += 1
