"""Scenarios of take-overs, and of an owner whose store fails; they include known defects of other systems by number.

Numbers are those of the issues: DistributedLog #2898 and #2099, woodpecker #155, herddb #100.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import (
    ClaimLostError,
    EntryMissingError,
    NotEnoughBookiesError,
    OwnedElsewhereError,
    ProducerUnknownError,
    Remedy,
    UnavailableError,
)
from dlog.events import LacMoved, SegmentRemoved, SegmentStarted, StreamReady, StreamStalled
from dlog.log.messages import (
    HINTS,
    STORE,
    AppendEntry,
    BatchWritten,
    CreateSegment,
    DeleteSegment,
    EntryAppended,
    ExamineStage,
    HandOverStream,
    ReadEntries,
    RecoverSegment,
    SealSegment,
    SealStream,
    SegmentRecovered,
    StoreFailed,
    StreamChanged,
)
from dlog.log.options import OwnerOptions
from dlog.log.owner_context import Phase
from dlog.log.recovery import StreamRecovery
from dlog.machine import CompareAndSet, MetadataSeen, OutcomeUnknown, PeerLost, ReadMetadata, Received
from dlog.model.dlsn import of
from dlog.model.ids import NO_ENTRY, TXID_END_OF_STREAM, EntryId, SegmentNumber
from dlog.model.segment import Location
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentTruncatedError,
    StoreOutOfReachError,
    StoreUnavailableError,
)
from dlog.wire.entry import RECORD_SET, Record, build_record_set, encode_entry
from tests.unit.log.stage import ALICE, BOB, STORES, Stage, batch, notes, numbers, stores


def test_the_next_owner_completes_what_is_open_and_answers_a_repetition_with_the_old_place() -> None:
    stage = Stage()
    first = stage.taken("p1")
    written = first.ask(batch(0, 3))
    second = stage.taken("p2")
    assert numbers(stage.value) == [(1, True), (2, False)]
    assert stage.value.segments[0].record_count == 3
    assert second.ask(batch(0, 3, retry=True)) == BatchWritten(written.dlsn, 3, written.txid, True)
    assert second.ask(batch(3, retry=True)).dlsn == of(2, 0, 0)


def test_the_next_owner_knows_producers_txids_and_places_of_many_segments_back() -> None:
    stage = Stage(segment_bytes=300)
    first = stage.taken("p1", OwnerOptions(snapshot_bytes=1, snapshot_ratio=0))
    first.ask(batch(0, producer=BOB, txid=7000, size=300))
    for sequence in range(6):
        first.ask(batch(sequence, size=300))
    second = stage.taken("p2")
    assert second.ask(batch(0, producer=BOB, retry=True, size=300)).dlsn == of(1, 0, 0)
    assert second.ask(batch(6, now=1)).txid == 7000


@pytest.mark.parametrize(("returned", "rounds"), [(0, 3), (1, 2), (2, 2), (7, 2)])
def test_a_takeover_asks_its_store_a_few_times_in_a_row(returned: int, rounds: int) -> None:
    """Where an append takes 100 ms a read does, too. The next segment is created while the log is being read."""
    stage = Stage()
    stage.returned = returned
    first = stage.taken("p1", OwnerOptions(snapshot_bytes=1 << 20))
    for sequence in range(20):
        first.ask(batch(sequence))
    second = stage.owner("p2")
    stage.hold(RecoverSegment, ReadEntries, CreateSegment)
    second.take()
    counted = 0
    while second.machine.phase is not Phase.SERVING:
        answers, stage.held = stage.held, deque()
        assert answers, "a request is under way"
        for answer in answers:
            answer()
        counted += 1
    assert counted == rounds
    assert sum(isinstance(question, RecoverSegment) for question in second.sent) == 1
    assert second.ask(batch(19, retry=True)).dlsn == of(1, 19, 0)


@pytest.mark.parametrize(("store", "asked"), [("ledger", {1, 2}), ("file", {2})])
def test_the_last_completed_segment_is_asked_again_where_other_programs_write(store: str, asked: set[int]) -> None:
    stage = Stage(store=store)
    first = stage.taken("p1")
    first.ask(batch(0))
    first.ask(HandOverStream())
    stage.taken("p2").ask(batch(1))
    second = stage.taken("p3")
    assert {q.segment.number for q in second.sent if isinstance(q, RecoverSegment)} == asked
    assert second.ask(batch(1, retry=True)).dlsn == of(2, 0, 0)


def test_nothing_is_read_that_came_with_the_end_of_the_segment() -> None:
    stage = Stage()
    stage.returned = 7
    first = stage.taken("p1", OwnerOptions(snapshot_bytes=1, snapshot_ratio=0))
    for sequence in range(20):
        first.ask(batch(sequence))
    second = stage.taken("p2")
    assert not [question for question in second.sent if isinstance(question, ReadEntries)]
    assert second.ask(batch(19, retry=True)).dlsn == of(1, 19, 0)
    assert stage.value.segments[0].record_count == 20


def test_the_last_entries_are_read_in_parts_if_the_store_returns_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    first = stage.taken("p1")
    for sequence in range(20):
        first.ask(batch(sequence))
    stored, ask = stage.store, []

    def part(actor: Any, question: Any) -> Any:
        if isinstance(question, ReadEntries):
            ask.append((question.first, question.last))
            question = replace(question, last=min(question.last, EntryId(question.first + 2)))
        return stored(actor, question)

    monkeypatch.setattr(stage, "store", part)
    second = stage.taken("p2")
    assert ask[:3] == [(13, 19), (16, 19), (19, 19)]
    assert [first for first, _ in ask[3:]] == [0, 3, 6, 9, 12], "the snapshot is in entry 0; from 13 on all is read"
    assert second.ask(batch(19, retry=True)).dlsn == of(1, 19, 0)
    assert stage.value.segments[0].record_count == 20


def test_a_frozen_owner_that_wakes_up_gets_nothing_acknowledged() -> None:
    """Scenario 31 (etcd 3.4.3): the owner only believes that it still has the lease."""
    stage = Stage()
    frozen = stage.taken("p1")
    frozen.ask(batch(0))
    stage.taken("p2")
    frozen.ask(batch(1))
    lost = frozen.answers[3]
    assert isinstance(lost, ClaimLostError)
    assert lost.outcome_unknown
    assert lost.location == "p2:1"
    assert isinstance(frozen.ask(batch(2)), OwnedElsewhereError)
    assert not [a for a in frozen.answers.values() if isinstance(a, BatchWritten) and a.dlsn.segment > 1]


def test_what_was_never_appended_is_refused_for_certain_when_the_claim_is_lost() -> None:
    stage = Stage()
    owner = stage.taken("p1", stores=stores(entries_in_flight=1))
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    owner.ask(batch(1))
    held = stage.held.popleft()
    stage.hold()
    stage.taken("p2")
    held()
    assert [(a.outcome_unknown) for a in owner.lost] == [True, False]


def test_both_segments_are_fenced_when_an_owner_dies_between_listing_and_closing() -> None:
    """Scenario 17: the old owner still writes the last but one segment while the last is in the list."""
    stage = Stage(segment_bytes=1000)
    first = stage.taken("p1")
    first.ask(batch(0, size=500))
    stage.hold(SealSegment)
    first.ask(batch(1, size=500))
    assert numbers(stage.value) == [(1, False), (2, False)]
    stage.held.clear()
    stage.hold()
    second = stage.taken("p2")
    fenced = [m.segment.number for m in second.sent if isinstance(m, RecoverSegment)]
    assert fenced == [1, 2]
    assert all(place.end is not None for place in stage.stored.values() if place is not second.writers[2])
    assert numbers(stage.value) == [(1, True), (2, False)]


def test_a_pre_empted_owner_that_rolls_changes_nothing() -> None:
    """Scenario 15 (woodpecker #155): the list is changed by compare-and-set on the version that was read."""
    stage = Stage(segment_bytes=1000)
    first = stage.taken("p1")
    first.ask(batch(0, size=500))
    stage.hold(CompareAndSet)
    first.ask(batch(1, size=500))
    assert stage.held
    write = stage.held.popleft()
    stage.hold()
    stage.taken("p2")
    after = stage.value
    write()
    assert stage.value == after
    assert first.machine.phase is Phase.LOST


def test_a_segment_that_was_closed_well_is_in_the_list_after_reopening() -> None:
    """Scenario 12 (DistributedLog #2898)."""
    stage = Stage(segment_bytes=1000)
    first = stage.taken("p1")
    for sequence in range(5):
        first.ask(batch(sequence, size=400))
    first.ask(HandOverStream())
    before = stage.value.segments
    stage.taken("p2")
    assert stage.value.segments[: len(before)] == before
    assert sum(s.record_count for s in before) == 5


def test_an_empty_segment_does_not_move_the_highest_txid() -> None:
    """Scenario 13 (DistributedLog #2099): the segment is deleted, and a writer with its own txids goes on."""
    stage = Stage()
    stage.taken("p1").ask(batch(0, txid=10))
    stage.taken("p2")
    stage.taken("p3")
    owner = stage.taken("p4")
    assert stage.value.max_txid == 10
    assert numbers(stage.value) == [(1, True), (2, False)]
    assert owner.ask(batch(1, txid=10)).dlsn == of(2, 0, 0)
    assert len(stage.stored) == 2


def test_the_close_after_a_failed_append_keeps_all_that_was_acknowledged() -> None:
    """Scenario 16 (herddb #100): the end is the recovery's, never the writer's."""
    stage = Stage()
    owner = stage.taken("p1")
    written = owner.ask(batch(0))
    stage.hold(AppendEntry)
    owner.ask(batch(1))
    append = owner.sent[-1]
    stage.held.clear()
    stage.hold()
    owner.post(Received(STORE, StoreFailed(append, StoreUnavailableError("a bookie too few"))))
    assert stage.value.segments[0].last_entry == written.dlsn.entry
    assert owner.answers[3].dlsn == of(2, 0, 0), "the batch did not survive and was appended again"
    assert owner.machine.phase is Phase.SERVING


def test_what_survived_the_failure_of_the_store_is_answered_with_its_place() -> None:
    stage = Stage()
    owner = stage.taken("p1", stores=stores(entries_in_flight=2))
    stage.hold(AppendEntry)
    for sequence in range(3):
        owner.ask(batch(sequence))
    first, second = (m for m in owner.sent if isinstance(m, AppendEntry))
    owner.writers[1].payloads.append(b"".join(bytes(p) for p in first.parts))
    stage.held.clear()
    stage.hold()
    owner.post(Received(STORE, StoreFailed(second, SegmentFencedError("fenced by ourselves"))))
    dlsns = [owner.answers[t].dlsn for t in (2, 3, 4)]
    assert dlsns == [of(1, 0, 0), of(2, 0, 0), of(2, 0, 1)]
    assert [b.sequence for b in notes(stage, "2b")] == [1, 2]


def test_what_survived_is_told_to_who_follows_before_it_is_answered() -> None:
    """The next segment cannot be created yet: a reader that opens after the answer must not be shown an older tail."""
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    append = next(m for m in owner.sent if isinstance(m, AppendEntry))
    owner.writers[1].payloads.append(b"".join(bytes(p) for p in append.parts))
    stage.held.clear()
    stage.hold(CreateSegment)
    owner.events.clear()
    owner.post(Received(STORE, StoreFailed(append, StoreUnavailableError("a bookie too few"))))
    assert owner.answers[2].dlsn == of(1, 0, 0)
    assert owner.machine.phase is Phase.RECOVERING
    assert LacMoved("s", 1, 0, True) in owner.events


def test_a_store_that_fails_again_and_again_is_asked_at_longer_and_longer_times() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    delays = []
    for _ in range(3):
        append = next(m for m in reversed(owner.sent) if isinstance(m, AppendEntry))
        owner.post(Received(STORE, StoreFailed(append, StoreUnavailableError("no"))))
        if ("mend",) in owner.timers:
            delays.append(owner.timers[("mend",)])
            owner.fire("mend")
    assert delays == sorted(delays)
    assert len(delays) == 2


def test_an_owner_that_mends_its_empty_segment_tells_that_it_ended_before_its_number_comes_again() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    append = next(m for m in owner.sent if isinstance(m, AppendEntry))
    stage.held.clear()
    stage.hold()
    owner.events.clear()
    owner.post(Received(STORE, StoreFailed(append, StoreUnavailableError("a bookie too few"))))
    assert [(s.number, s.name) for s in stage.value.segments] == [(1, "1b")]
    told = [e for e in owner.events if isinstance(e, LacMoved | SegmentStarted | StreamReady)]
    assert told == [
        LacMoved("s", 1, -1, True),
        SegmentStarted("s", 1, "1b"),
        StreamReady("s", 1, 1, 1),
        LacMoved("s", 1, 0),
    ]


def test_a_roll_that_is_mended_tells_the_ends_of_both_segments() -> None:
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    owner.ask(batch(0, size=500))
    stage.hold(SealSegment)
    owner.ask(batch(1, size=600))
    assert numbers(stage.value) == [(1, False), (2, False)], "a roll is at hand"
    before = stage.value.segments[1].name
    stage.held.clear()
    stage.hold()
    owner.events.clear()
    seal = next(m for m in owner.sent if isinstance(m, SealSegment))
    owner.post(Received(STORE, StoreFailed(seal, StoreUnavailableError("a bookie too few"))))
    assert stage.value.segments[1].name != before
    told = [(e.segment, e.lac, e.ended) for e in owner.events if isinstance(e, LacMoved)]
    assert list(dict.fromkeys(told)) == [(1, 1, True), (2, -1, True)], "once or more, in this order"
    assert StreamReady("s", 1, 2, 2) in owner.events


def test_a_lost_store_takes_the_segment_created_ahead_with_it() -> None:
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    owner.ask(batch(0, size=500))
    assert stage.value.allocated == "2b"
    owner.post(PeerLost(STORE))
    owner.timers.pop(("disposal",), None)
    assert owner.ask(batch(1)).dlsn.segment == 2
    assert stage.value.segments[1].name != "2b"
    assert "2b" not in stage.stored
    assert stage.value.allocated == ""


def test_a_lost_reply_to_the_claim_is_resolved_by_the_nonce() -> None:
    stage = Stage()
    owner = stage.owner("p1")
    stage.hold(CompareAndSet)
    owner.take()
    stage.held.clear()
    write = next(reversed([e for e in _asked(owner) if isinstance(e, CompareAndSet)]))
    stage.hold()
    stage.metadata(write)
    owner.post(MetadataSeen(write.token, OutcomeUnknown("connection lost")))
    owner.fire(*next(k for k in owner.timers if k[0] == "claim"))
    assert owner.machine.phase is Phase.SERVING
    assert stage.value.owner.epoch == 1


def test_damage_in_the_log_ends_the_claim_with_the_error() -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0))
    owner = stage.owner("p2")
    stage.hold(RecoverSegment)
    owner.take()
    question = owner.sent[-1]
    owner.post(Received(STORE, StoreFailed(question, EntryMissingError("entry 0 is on no bookie"))))
    assert owner.machine.phase is Phase.LOST
    assert owner.answers[1].remedy is Remedy.REPORT


def test_an_end_of_stream_found_by_a_recovery_seals_the_stream() -> None:
    stage = Stage()
    first = stage.taken("p1")
    first.ask(batch(0))
    stage.hold(SealSegment)
    first.ask(SealStream())
    if ("control",) in first.timers:
        first.fire("control")
    stage.held.clear()
    stage.hold()
    second = stage.taken("p2")
    assert second.machine.phase is Phase.SEALED
    assert stage.value.max_txid == TXID_END_OF_STREAM
    assert numbers(stage.value) == [(1, True)]


def test_a_segment_of_another_implementation_hides_the_table_for_one_segment_only() -> None:
    """A foreign writer without dedup trailers took over in between: the table is that of the segment before."""
    stage = Stage()
    first = stage.taken("p1")
    first.ask(batch(0, 2))
    second = stage.taken("p2")
    foreign = encode_entry([Record(RECORD_SET, 1, 6000, build_record_set([b"x"] * 3)), Record(0, 4, 6000, b"plain")])
    second.writers[2].payloads.append(b"".join(bytes(p) for p in foreign))
    third = stage.taken("p3")
    assert stage.value.segments[1].record_count == 4
    assert stage.value.segments[1].last_slot == 3
    assert third.ask(batch(0, 2, retry=True)).dlsn == of(1, 0, 0)
    assert third.ask(batch(2, now=1)).txid == 6000


def test_a_table_that_lies_too_far_back_is_incomplete_and_says_since_when() -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0))
    for name in ("p2", "p3"):
        owner = stage.taken(name)
        number = max(owner.writers)
        foreign = encode_entry([Record(0, 1, 6000, b"plain")])
        owner.writers[number].payloads.append(b"".join(bytes(p) for p in foreign))
    owner = stage.taken("p4", OwnerOptions(recover_segments_max=2))
    refused = owner.ask(batch(0, retry=True))
    assert isinstance(refused, ProducerUnknownError)
    assert refused.outcome_unknown
    fresh = owner.ask(batch(1))
    assert isinstance(fresh, ProducerUnknownError)
    assert not fresh.outcome_unknown
    assert isinstance(owner.ask(batch(0, producer=BOB)), ProducerUnknownError)
    assert isinstance(owner.ask(batch(0, producer=BOB, since=fresh.since)), BatchWritten)


def test_a_table_that_went_with_truncated_segments_is_not_taken_for_that_of_a_new_stream() -> None:
    stage = Stage(retention_s=0.001, segment_bytes=1)
    first = stage.taken("p1")
    first.ask(batch(0, now=5000))
    stage.value = stage.value.with_truncated_before(2)
    assert numbers(stage.value) == [(2, False)]
    second = stage.taken("p2")
    refused = second.ask(batch(0, retry=True))
    assert isinstance(refused, ProducerUnknownError)
    assert refused.outcome_unknown


def test_a_strangers_first_batch_that_waited_is_judged_by_since_when_it_writes() -> None:
    stage = Stage()
    few = OwnerOptions(producers_max=1)
    first = stage.taken("p1", few)
    first.ask(batch(0))
    first.ask(batch(0, producer=BOB))
    second = stage.owner("p2", few)
    stage.hold(RecoverSegment)
    second.take()
    assert second.ask(batch(0)) is None
    assert second.ask(batch(1, producer=BOB)) is None
    assert second.ask(batch(0, producer=b"c" * 16, since=(1, 1))) is None
    stage.release()
    refused = second.answers[2]
    assert isinstance(refused, ProducerUnknownError)
    assert refused.since == (2, 0), "nothing that is sent from now on can lie below"
    assert isinstance(second.answers[3], BatchWritten)
    assert isinstance(second.answers[4], BatchWritten), "it began after the last batch of all who are forgotten"


def test_a_place_told_to_a_stranger_is_never_above_what_it_will_write() -> None:
    stage = Stage()
    few = OwnerOptions(producers_max=1)
    first = stage.taken("p1", few)
    for producer in (ALICE, BOB):
        first.ask(batch(0, producer=producer, since=(1, 0)))
    stage.hold(AppendEntry)
    first.ask(batch(1, producer=BOB))  # cut into entry 2, and not confirmed: a recovery may end the segment below it
    refused = first.ask(batch(0, producer=b"c" * 16))
    assert isinstance(refused, ProducerUnknownError)
    assert refused.since == (1, 2)


def test_an_answer_of_a_segment_that_is_gone_changes_nothing() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    owner.post(Received(STORE, EntryAppended(SegmentNumber(9), EntryId(0))))
    assert 2 not in owner.answers


def test_while_the_store_is_too_small_for_a_segment_who_waits_hears_so_and_may_come_again() -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0, txid=10))
    stage.too_small = True
    owner = stage.owner("p2")
    stage.hold(RecoverSegment)
    assert owner.take() is None
    assert owner.ask(batch(1, txid=20)) is None, "it waits for the recovery"
    stage.release()
    refused = owner.answers[2]
    assert isinstance(refused, NotEnoughBookiesError)
    assert (refused.code, refused.remedy, refused.outcome_unknown) == (533, Remedy.RETRY, False)
    assert isinstance(owner.ask(batch(1, txid=20)), NotEnoughBookiesError), "at once"
    repeated = owner.ask(batch(0, txid=10, retry=True))
    assert isinstance(repeated, BatchWritten), "what is in the log is known"
    assert repeated.duplicate
    assert [e for e in owner.events if isinstance(e, StreamStalled)] == [StreamStalled("s", "two bookies of three")]
    stage.too_small = False
    owner.fire("allocation")
    assert 1 in owner.answers, "it serves now"
    assert isinstance(owner.ask(batch(1, txid=20)), BatchWritten)


def test_while_the_store_is_out_of_reach_who_waits_hears_so_and_may_come_again() -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0, txid=10))
    stage.cannot_end = StoreOutOfReachError("no broker answers")
    owner = stage.owner("p2")
    stage.hold(RecoverSegment)
    assert owner.take() is None
    assert owner.ask(batch(1, txid=20)) is None, "it waits for the recovery"
    stage.release()
    refused = owner.answers[2]
    assert (type(refused), refused.remedy, refused.outcome_unknown) == (UnavailableError, Remedy.RETRY, False)
    assert refused.message == "not written, no segment to write to: no broker answers"
    [stalled] = {e for e in owner.events if isinstance(e, StreamStalled)}
    assert stalled == StreamStalled("s", "no broker answers", needs_bookies=False)
    stage.cannot_end = None
    owner.fire("recovery")
    assert 1 in owner.answers, "it serves now"
    assert isinstance(owner.ask(batch(1, txid=20)), BatchWritten)


@pytest.mark.parametrize("landed", [True, False])
def test_what_is_in_flight_when_the_store_fails_hears_the_reason_and_is_written_once(landed: bool) -> None:
    stage = Stage()
    owner = stage.taken("p1", stores=stores(entries_in_flight=1))
    stage.hold(AppendEntry)
    first, second = batch(0, txid=10), batch(1, txid=20)
    assert owner.ask(first) is None and owner.ask(second) is None
    append = owner.sent[-1]
    assert isinstance(append, AppendEntry)
    if landed:
        stage.store(owner, append)
    stage.held.clear()
    stage.holding = ()
    stage.cannot_end = error = StoreOutOfReachError("no space left on device", outcome_unknown=True)
    owner.post(Received(STORE, StoreFailed(append, error)))
    in_doubt, refused = owner.answers[2], owner.answers[3]
    assert (type(in_doubt), in_doubt.remedy, in_doubt.outcome_unknown) == (UnavailableError, Remedy.RETRY, True)
    assert in_doubt.message == "may be written, the store has not confirmed it: no space left on device"
    assert refused.message == "not written, no segment to write to: no space left on device"
    assert (type(refused), refused.remedy, refused.outcome_unknown) == (UnavailableError, Remedy.RETRY, False)
    assert owner.ask(batch(0, txid=10, retry=True)) is None, "it waits for the recovery"
    owner.fire("recovery")
    assert owner.answers[4].message == in_doubt.message, "the same reason again, while it lasts"
    assert owner.ask(batch(0, txid=10, retry=True)) is None
    stage.cannot_end = None
    owner.fire("recovery")
    written = owner.answers[5]
    assert isinstance(written, BatchWritten)
    assert (written.dlsn, written.txid) == (of(1, 0, 0), 10)
    assert owner.ask(second).txid == 20
    reader = stage.taken("p2")
    assert reader.ask(batch(0, txid=10, retry=True)).dlsn == written.dlsn
    assert stage.value.segments[0].record_count == (1 if landed else 2)


def test_what_nobody_waits_for_after_a_failure_of_the_store_is_written_and_known() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    append = owner.sent[-1]
    stage.store(owner, append)
    stage.held.clear()
    stage.holding = ()
    stage.cannot_end = error = StoreOutOfReachError("no answer", outcome_unknown=True)
    owner.post(Received(STORE, StoreFailed(append, error)))
    assert owner.answers[2].outcome_unknown
    stage.cannot_end = None
    owner.fire("recovery")
    repeated = owner.ask(batch(0, retry=True))
    assert isinstance(repeated, BatchWritten) and repeated.duplicate


@pytest.mark.parametrize(
    "question",
    [DeleteSegment(Location("kafka", "gone"), SegmentNumber(1)), ExamineStage(Location("kafka", "staged"))],
    ids=lambda question: type(question).__name__,
)
def test_a_store_out_of_reach_that_is_not_written_to_is_no_obstacle(question: Any) -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0))
    owner = stage.owner("p2")
    stage.hold(RecoverSegment)
    assert owner.take() is None
    assert owner.ask(batch(1)) is None, "it waits for the recovery"
    owner.post(Received(STORE, StoreFailed(question, StoreOutOfReachError("no broker answers"))))
    assert 2 not in owner.answers
    stage.release()
    assert isinstance(owner.answers[2], BatchWritten)


def test_an_obstacle_is_over_once_a_segment_takes_entries() -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0))
    owner = stage.owner("p2")
    stage.hold(CreateSegment)
    owner.take()
    [recover] = [question for question in owner.sent if isinstance(question, RecoverSegment)]
    stage.hold(CompareAndSet)
    stage.held.popleft()()
    assert 1 not in owner.answers, "the change of the list is on its way"
    late = StoreFailed(recover, StoreOutOfReachError("late, of a recovery that was begun again since"))
    owner.post(Received(STORE, late))
    assert isinstance(owner.ask(batch(1)), UnavailableError)
    stage.release()
    assert 1 in owner.answers, "it serves now"
    assert isinstance(owner.ask(batch(1)), BatchWritten)


def test_a_claim_that_damage_ends_tells_the_damage() -> None:
    stage = Stage()
    first = stage.taken("p1")
    first.ask(batch(0))
    stage.cannot_end = SegmentCorruptError("a chunk is damaged")
    owner = stage.owner("p2")
    assert owner.machine.damage is None
    assert owner.take() is stage.cannot_end
    assert owner.machine.has_ended and owner.machine.damage is stage.cannot_end
    first.post(Received(HINTS, StreamChanged()))
    assert first.machine.has_ended and first.machine.damage is None, "another owner ended this claim"


def test_while_the_store_refuses_new_segments_who_waits_hears_why_and_may_come_again() -> None:
    """Kafka denies a topic, or has one that could lose records. It is mended outside of the stream."""
    stage = Stage()
    stage.taken("p1").ask(batch(0, txid=10))
    stage.cannot_create = MisconfiguredError("retention.ms is 1000, must be -1, run: kafka-configs.sh")
    owner = stage.owner("p2")
    stage.hold(RecoverSegment)
    assert owner.take() is None
    assert owner.ask(batch(1, txid=20)) is None, "it waits for the recovery"
    stage.release()
    refused = owner.answers[2]
    assert (type(refused), refused.remedy, refused.outcome_unknown) == (UnavailableError, Remedy.RETRY, False)
    assert "retention.ms is 1000, must be -1" in refused.message
    [stalled] = {e for e in owner.events if isinstance(e, StreamStalled)}
    assert stalled == StreamStalled("s", stage.cannot_create.message, needs_bookies=False)
    stage.cannot_create = None
    owner.fire("allocation")
    assert 1 in owner.answers, "it serves now"
    assert isinstance(owner.ask(batch(1, txid=20)), BatchWritten)


def test_what_waited_when_the_store_became_too_small_goes_back_and_keeps_its_order_and_txids() -> None:
    stage = Stage()
    owner = stage.taken("p1", stores=stores(entries_in_flight=1))
    stage.hold(AppendEntry)
    first, second, third = (batch(n, txid=10 * (n + 1)) for n in range(3))
    for request in (first, second, third):
        assert owner.ask(request) is None
    stage.too_small = True
    owner.post(PeerLost(STORE))
    assert [type(owner.answers[ticket]) for ticket in (2, 3, 4)] == [NotEnoughBookiesError] * 3
    stage.too_small = False
    stage.holding = ()
    owner.fire("allocation")
    dlsns = [owner.ask(request) for request in (first, second, third)]
    assert all(isinstance(place, BatchWritten) for place in dlsns), dlsns
    assert [place.txid for place in dlsns] == [10, 20, 30]


def test_while_a_segment_is_appended_to_a_store_that_is_too_small_for_the_next_is_no_obstacle() -> None:
    stage = Stage(segment_bytes=10)
    owner = stage.taken("p1")
    stage.too_small = True
    for n in range(5):
        assert isinstance(owner.ask(batch(n, size=20)), BatchWritten)
    assert numbers(stage.value) == [(1, False)]
    stage.too_small = False
    owner.fire("allocation")
    assert numbers(stage.value) == [(1, True), (2, False)]


def test_a_hint_that_the_stream_changed_makes_an_idle_owner_look_whose_it_is() -> None:
    stage = Stage()
    idle = stage.taken("p1")
    idle.post(Received(HINTS, StreamChanged()))
    assert not idle.machine.has_ended, "it is ours: nothing follows"
    stage.taken("p2")
    assert not idle.machine.has_ended
    idle.post(Received(HINTS, StreamChanged()))
    assert idle.machine.has_ended


def test_creation_that_fails_is_asked_again() -> None:
    stage = Stage()
    owner = stage.owner("p1")
    stage.hold(CreateSegment)
    owner.take()
    stage.held.clear()
    stage.hold()
    owner.post(Received(STORE, StoreFailed(owner.sent[-1], StoreUnavailableError("too few bookies"))))
    owner.fire("allocation")
    assert owner.machine.phase is Phase.SERVING


def _asked(owner: Any) -> list[ReadMetadata | CompareAndSet]:
    asked: list[ReadMetadata | CompareAndSet] = owner.metadata_asked
    return asked


def test_an_answer_about_the_place_that_a_number_had_before_ends_nothing() -> None:
    """A Java writer drops a segment that it finds empty, and uses its number for its own."""
    stage = Stage()
    stage.taken("p1")
    (segment,) = stage.value.segments
    recovery = StreamRecovery(stage.value, OwnerOptions(), STORES, None)
    recovery.begin()
    done: list[bool] = []
    for name in ("before", segment.name):
        recovery.handle(SegmentRecovered(segment.number, Location(segment.store, name), NO_ENTRY))
        done.append(recovery.is_done)
    assert done == [False, True]
    assert recovery.ends == {segment.number: None}


# ---- segments that their store has removed --------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["ledger", "file"])  # the last completed segment of the first is asked for its end
@pytest.mark.parametrize("is_end_known", [False, True])
def test_a_takeover_goes_on_when_the_store_removed_the_segment_with_the_producer_table(
    store: str, is_end_known: bool
) -> None:
    stage = Stage(segment_bytes=300, store=store)
    first = stage.taken("p1")
    for sequence in range(4):
        first.ask(batch(sequence, size=300))
    listed = [segment for segment in stage.value.segments if segment.completed]
    last = listed[-1]
    stage.removed(last.name, is_end_known=is_end_known)
    second = stage.taken("p2")
    assert second.machine.phase is Phase.SERVING
    assert list(stage.value.segments[:-1]) == listed, "the list stays as it is, without the segment that was empty"
    assert SegmentRemoved("s", last.number, str(last.location)) in second.events
    repeated, late, stranger = (
        second.ask(batch(3, retry=True)),
        second.ask(batch(4, retry=True)),
        second.ask(batch(0, producer=BOB, retry=True, since=(last.number, 7))),
    )
    for answer in (repeated, late, stranger):
        assert isinstance(answer, ProducerUnknownError)
        assert answer.outcome_unknown
        assert answer.since == (last.number + 1, 0)
    assert second.ask(batch(0, producer=BOB, since=repeated.since)).dlsn == of(last.number + 1, 0, 0)


def test_an_older_table_is_not_taken_for_that_of_a_removed_segment() -> None:
    """The batch in the removed segment would count as the producer's next one, and be written twice."""
    stage = Stage(segment_bytes=300, store="file")
    first = stage.taken("p1")
    first.ask(batch(0, size=400))
    first.ask(batch(1, size=400))
    assert [s.record_count for s in stage.value.segments if s.completed] == [1, 1]
    stage.removed(stage.value.segments[1].name)
    assert isinstance(stage.taken("p2").ask(batch(1, retry=True)), ProducerUnknownError)


def test_a_table_that_is_read_in_part_when_its_segment_is_removed_is_forgotten() -> None:
    stage = Stage(store="file")
    first = stage.taken("p1")
    for sequence in range(20):
        first.ask(batch(sequence))
    first.ask(HandOverStream())
    name = stage.value.segments[-1].name
    stored, read = stage.store, []

    def part(actor: Any, question: Any) -> Any:
        if isinstance(question, ReadEntries):
            read.append(question.first)
            stage.stored[name].is_removed = len(read) == 3
            question = replace(question, last=min(question.last, EntryId(question.first + 6)))
        return stored(actor, question)

    stage.store = part  # type: ignore[method-assign]
    second = stage.taken("p2")
    assert read == [13, 0, 7]
    assert isinstance(second.ask(batch(7, retry=True)), ProducerUnknownError)


@pytest.mark.parametrize(("is_end_known", "last_entry"), [(False, 0), (True, 2)])
def test_a_removed_segment_in_progress_is_completed_and_its_number_is_not_used_again(
    is_end_known: bool, last_entry: int
) -> None:
    stage = Stage(store="file")
    first = stage.taken("p1")
    for sequence in range(3):
        first.ask(batch(sequence, txid=100 + sequence))
    stage.removed("1a", is_end_known=is_end_known)
    second = stage.taken("p2")
    assert numbers(stage.value) == [(1, True), (2, False)]
    ended = stage.value.segments[0]
    assert (ended.last_entry, ended.record_count, ended.last_txid) == (last_entry, 0, ended.first_txid)
    assert not [event for event in second.events if isinstance(event, LacMoved) and event.segment == 1]
    assert isinstance(second.ask(batch(2, retry=True)), ProducerUnknownError)
    third = stage.taken("p3")  # the table of the removed segment is unknown to every later owner, too
    assert numbers(stage.value) == [(1, True), (2, False)]
    assert isinstance(third.ask(batch(2, retry=True)), ProducerUnknownError)


def test_entries_in_flight_in_a_removed_segment_have_an_unknown_outcome_and_are_not_written_again() -> None:
    stage = Stage(store="file")
    owner = stage.taken("p1", stores=stores(entries_in_flight=1))
    owner.ask(batch(0))
    stage.hold(AppendEntry)
    owner.ask(batch(1))
    owner.ask(batch(2))
    append = owner.sent[-1]
    stage.removed("1a")
    stage.held.clear()
    stage.hold()
    owner.post(Received(STORE, StoreFailed(append, StoreUnavailableError("the segment is gone"))))
    assert owner.machine.phase is Phase.LOST
    in_flight = owner.lost[0]
    assert isinstance(in_flight, ClaimLostError)
    assert in_flight.outcome_unknown
    second = stage.taken("p2")
    assert second.machine.phase is Phase.SERVING
    assert isinstance(second.ask(batch(1, retry=True)), ProducerUnknownError)


def test_an_owner_whose_idle_segment_is_removed_goes_on_with_its_table() -> None:
    stage = Stage(store="file")
    owner = stage.taken("p1")
    written = owner.ask(batch(0))
    stage.removed("1a")
    owner.post(PeerLost(STORE))
    assert owner.machine.phase is Phase.SERVING
    assert owner.ask(batch(0, retry=True)) == BatchWritten(written.dlsn, 1, written.txid, True)
    assert owner.ask(batch(1)).dlsn == of(2, 0, 0)


def test_a_late_error_of_a_removed_segment_that_nothing_waits_for_changes_nothing() -> None:
    stage = Stage(segment_bytes=300, store="file")
    first = stage.taken("p1")
    for sequence in range(3):
        first.ask(batch(sequence, size=300))
    recovery = StreamRecovery(stage.value, OwnerOptions(), STORES, None)
    recovery.begin()
    error = SegmentTruncatedError("removed")
    for segment in stage.value.segments:
        if segment.completed:
            question = ReadEntries(segment, EntryId(0), EntryId(0))
            assert recovery.handle(StoreFailed(question, error)) == []
    assert recovery.removed == {}
    assert not recovery.is_done
