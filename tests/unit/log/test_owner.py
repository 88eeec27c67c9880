"""Scenarios of a stream's owner: serving, rolling, handing over, sealing, truncating."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.errors import (
    DLogError,
    EndOfStreamError,
    InvalidRequestError,
    NotEnoughBookiesError,
    NotReadyError,
    OverCapacityError,
    OwnedElsewhereError,
    PositionBeyondEndError,
    ProducerUnknownError,
    RecordTooLargeError,
    SequenceGapError,
    StreamUnavailableError,
    TxidOutOfOrderError,
)
from dlog.events import LacMoved, SegmentCompleted, StreamReady
from dlog.log import rolling
from dlog.log.contents import read_contents
from dlog.log.messages import (
    AppendEntry,
    BatchWritten,
    CreateSegment,
    DeleteSegment,
    HandOverStream,
    SealSegment,
    SealStream,
    StatStream,
    StreamAcquired,
    TruncateBefore,
    WriteBatch,
)
from dlog.log.metadata_updater import StreamMetadataUpdater
from dlog.log.options import OwnerOptions
from dlog.log.owner_context import Phase
from dlog.machine import CompareAndSet
from dlog.model.dlsn import of
from dlog.model.ids import TXID_END_OF_STREAM
from dlog.model.segment import Truncation
from dlog.wire.entry import decode_entry
from tests.unit.log.stage import ALICE, BOB, STORES, Stage, batch, numbers, stores


def test_a_new_stream_is_claimed_its_first_segment_started_and_served() -> None:
    stage = Stage()
    owner = stage.owner("p1")
    assert owner.take() == StreamAcquired(owner.machine.epoch, stage.value.segments[0].number)
    assert stage.value.owner.epoch == 1
    assert stage.value.owner.address == "p1:1"
    assert numbers(stage.value) == [(1, False)]
    assert owner.machine.phase is Phase.SERVING
    assert StreamReady("s", 1, 1, 0) in owner.events


def test_batches_are_answered_with_their_places_once_the_store_confirms() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    assert owner.ask(batch(0, 3)) is None
    stage.release()
    assert owner.answers[2] == BatchWritten(of(1, 0, 0), 3, 5000)  # type: ignore[arg-type]
    assert owner.events[-1] == LacMoved("s", 1, 0)


def test_a_batch_and_its_confirmation_have_no_request_to_metadata_considered(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    owner = stage.taken("p1")
    considered: list[object] = []
    monkeypatch.setattr(StreamMetadataUpdater, "effects", considered.append)
    assert isinstance(owner.ask(batch(0)), BatchWritten)
    assert not considered


def test_what_waits_while_the_pipe_is_full_shares_an_entry() -> None:
    stage = Stage()
    owner = stage.taken("p1", stores=stores(entries_in_flight=1))
    stage.hold(AppendEntry)
    for sequence in range(4):
        owner.ask(batch(sequence))
    stage.release()
    dlsns = [owner.answers[ticket].dlsn for ticket in range(2, 6)]
    assert dlsns == [of(1, 0, 0), of(1, 1, 0), of(1, 1, 1), of(1, 1, 2)]


def test_an_entry_is_records_sets_and_one_note_that_readers_skip() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0, 2))
    owner.ask(batch(2, 1))
    first, second = next(iter(stage.stored.values())).payloads
    records = decode_entry(first)
    assert [(r.is_user, r.position, r.slot, r.txid) for r in records] == [
        (True, 1, 0, 5000),
        (True, 2, 1, 5000),
        (False, 2, 2, 5000),
    ]
    contents = read_contents(second)
    assert contents.note is not None
    assert contents.note.snapshot is None
    assert contents.note.snapshot_entry == 0
    assert [tuple(b) for b in contents.note.batches] == [(ALICE, 2, 1, 7, 0)]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (batch(5), SequenceGapError),
        (batch(0, txid=10), None),
        (WriteBatch(b"\0" * 1_040_365, 1, None, ALICE, 0, 0, False, 0), RecordTooLargeError),
        (WriteBatch(b"junk", 1, None, ALICE, 0, 0, False, 0), InvalidRequestError),
        (WriteBatch(batch(0, 2).body, 3, None, ALICE, 0, 0, False, 0), InvalidRequestError),
        (batch(0, txid=-1), TxidOutOfOrderError),
        (batch(0, txid=2**63 - 1), TxidOutOfOrderError),
    ],
)
def test_a_batch_that_cannot_be_taken_is_refused_by_name(request_: WriteBatch, error: type | None) -> None:
    owner = Stage().taken("p1")
    answer = owner.ask(request_)
    if error is None:
        assert isinstance(answer, BatchWritten)
    else:
        assert isinstance(answer, DLogError)
        assert isinstance(answer, error)
        assert not answer.outcome_unknown


def test_txids_are_given_or_the_clock_and_never_fall() -> None:
    owner = Stage().taken("p1")
    assert owner.ask(batch(0, now=100)).txid == 100
    assert owner.ask(batch(1, txid=200)).txid == 200
    assert owner.ask(batch(2, now=150)).txid == 200
    assert isinstance(owner.ask(batch(3, txid=199)), TxidOutOfOrderError)


def test_more_than_may_wait_is_refused_and_the_producer_goes_on_from_there() -> None:
    stage = Stage()
    owner = stage.taken("p1", OwnerOptions(pending_bytes_max=100))
    stage.hold(AppendEntry)
    owner.ask(batch(0, size=60))
    assert isinstance(owner.ask(batch(1, size=60)), OverCapacityError)
    refused = owner.ask(batch(2))
    assert isinstance(refused, SequenceGapError)
    assert refused.expected == 1
    stage.release()
    assert isinstance(owner.ask(batch(1, size=60)), BatchWritten)


def test_the_lac_is_carried_by_a_control_record_when_nothing_follows() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    assert owner.timers.keys() >= {("control",)}
    owner.fire("control")
    last = next(iter(stage.stored.values())).payloads[-1]
    assert [(r.is_control, bytes(r.payload), r.position) for r in decode_entry(last)] == [(True, b"control", 1)]
    assert ("control",) not in owner.timers, "a control record needs none itself"


def test_no_control_record_where_visible_is_final() -> None:
    owner = Stage().taken("p1", stores={"ledger": replace(STORES["ledger"], visible_is_final=True)})
    owner.ask(batch(0))
    assert ("control",) not in owner.timers


def test_a_full_segment_rolls_onto_one_created_and_recorded_ahead() -> None:
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    owner.ask(batch(0, size=500))
    assert stage.value.allocated == "2b"
    assert numbers(stage.value) == [(1, False)]
    owner.ask(batch(1, size=500))
    assert numbers(stage.value) == [(1, True), (2, False)]
    assert stage.value.allocated == ""
    first = stage.value.segments[0]
    assert (first.last_entry, first.last_slot, first.record_count, first.last_txid) == (1, 1, 2, 5000)
    assert owner.ask(batch(2)).dlsn == of(2, 0, 0)
    assert SegmentCompleted("s", 1, 1, 2) in owner.events


def test_a_segment_of_many_small_records_rolls_before_their_count_leaves_its_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rolling, "RECORDS_MAX", 4)
    stage = Stage()
    owner = stage.taken("p1")
    for sequence in range(4):
        assert numbers(stage.value) == [(1, False)]
        owner.ask(batch(sequence))
    assert numbers(stage.value) == [(1, True), (2, False)]
    assert stage.value.segments[0].record_count == 4
    assert owner.ask(batch(4)).dlsn == of(2, 0, 0)


def test_writes_wait_while_the_old_segment_closes_and_none_is_refused() -> None:
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    owner.ask(batch(0, size=500))
    stage.hold(SealSegment)
    owner.ask(batch(1, size=500))
    assert owner.ask(batch(2)) is None
    assert not [m for m in owner.sent if isinstance(m, AppendEntry) and m.number == 2]
    stage.release()
    assert owner.answers[4].dlsn == of(2, 0, 0)


def test_an_old_segment_rolls_by_age_but_an_empty_one_does_not() -> None:
    stage = Stage(segment_age_s=60.0)
    owner = stage.taken("p1")
    owner.fire("age")  # half of the age: the next segment is created if this one has entries
    owner.fire("age")
    assert numbers(stage.value) == [(1, False)]
    owner.ask(batch(0))
    owner.fire("age")
    assert numbers(stage.value) == [(1, False)]
    owner.fire("age")
    assert numbers(stage.value) == [(1, True), (2, False)]


def test_hand_over_finishes_what_was_taken_and_marks_the_claim() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    owner.ask(HandOverStream())
    assert isinstance(owner.ask(batch(1)), StreamUnavailableError)
    stage.release()
    assert isinstance(owner.answers[2], BatchWritten)
    assert owner.answers[3] is None
    assert stage.value.owner.released
    assert numbers(stage.value) == [(1, True)]
    assert owner.machine.has_ended
    follower = stage.taken("p2")
    assert follower.ask(batch(1)).dlsn == of(2, 0, 0)


def test_an_unused_segment_is_left_to_the_next_owner_which_uses_its_number_again() -> None:
    stage = Stage()
    stage.taken("p1").ask(HandOverStream())
    assert numbers(stage.value) == [(1, False)]
    owner = stage.taken("p2")
    assert numbers(stage.value) == [(1, False)]
    assert stage.value.segments[0].name == "1b"
    assert stage.deleted == ["1a"]
    assert stage.value.allocated == ""
    assert owner.ask(batch(0)).dlsn == of(1, 0, 0)


def test_seal_writes_the_end_and_lets_nobody_write_again() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    assert owner.ask(SealStream()) is None
    assert owner.machine.phase is Phase.SEALED
    assert stage.value.max_txid == TXID_END_OF_STREAM
    place = next(iter(stage.stored.values()))
    assert [r.is_end_of_stream for r in decode_entry(place.payloads[1])] == [True]
    assert isinstance(owner.ask(batch(1)), EndOfStreamError)
    repeated = owner.ask(batch(0, retry=True))
    assert repeated == BatchWritten(of(1, 0, 0), 1, 5000, True)  # type: ignore[arg-type]
    follower = stage.taken("p2")
    assert follower.machine.phase is Phase.SEALED
    assert isinstance(follower.ask(batch(1)), EndOfStreamError)
    assert follower.ask(batch(0, retry=True)).dlsn == of(1, 0, 0)


def test_truncation_deletes_whole_segments_and_marks_the_one_it_falls_into() -> None:
    stage = Stage(segment_bytes=300)
    owner = stage.taken("p1")
    for sequence in range(6):
        owner.ask(batch(sequence, size=300))
    point = owner.answers[5].dlsn
    assert owner.ask(TruncateBefore(point)) == point
    first = stage.value.segments[0]
    assert first.number == point.segment
    assert first.first_dlsn == point
    assert "1a" not in stage.stored
    assert owner.ask(TruncateBefore(of(1, 0, 0))) == point, "it moves forward only"
    assert isinstance(owner.ask(TruncateBefore(of(99, 0, 0))), InvalidRequestError)


def test_truncation_holds_within_the_segment_in_progress_and_after_its_end() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    dlsns = [owner.ask(batch(sequence, size=30)).dlsn for sequence in range(4)]
    assert owner.ask(TruncateBefore(dlsns[2])) == dlsns[2]
    assert owner.ask(TruncateBefore(dlsns[1])) == dlsns[2], "it moves forward only"
    (segment,) = stage.value.segments
    assert (segment.completed, segment.truncation, segment.first_dlsn) == (False, Truncation.PARTIAL, dlsns[2])
    assert owner.ask(batch(4)).dlsn > dlsns[3], "writing goes on"
    follower = stage.taken("p2")
    assert stage.value.segments[0].completed
    assert stage.value.segments[0].first_dlsn == dlsns[2], "also when it is completed"
    assert follower.ask(batch(4, retry=True)).duplicate


def test_a_truncation_point_beyond_what_is_confirmed_is_refused() -> None:
    """Records written there later would be gone as soon as they are acknowledged."""
    stage = Stage()
    owner = stage.taken("p1")
    first = owner.ask(batch(0)).dlsn
    stage.hold(AppendEntry)
    owner.ask(batch(1))
    for point in (of(1, first.entry + 1, 1), of(1, 5, 0), of(2, 0, 0)):
        refused = owner.ask(TruncateBefore(point))
        assert isinstance(refused, PositionBeyondEndError)
        assert refused.end == f"1:{first.entry + 1}:0"
    assert stage.value.segments[0].truncation is Truncation.ACTIVE
    assert owner.ask(TruncateBefore(of(1, first.entry + 1, 0))) == of(1, first.entry + 1, 0)


def test_no_point_is_accepted_while_no_segment_is_listed() -> None:
    """A Java writer may be writing there in a segment with a number that was used before."""
    stage = Stage()
    stage.too_small = True
    owner = stage.owner("p1")
    owner.take()
    assert isinstance(owner.ask(batch(0)), NotEnoughBookiesError) and not stage.value.segments
    for point in (of(1, 0, 0), of(1, 2, 0)):
        assert isinstance(owner.ask(TruncateBefore(point)), NotReadyError)


def test_all_of_a_sealed_stream_may_be_truncated_and_its_last_segment_stays_in_the_list() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    last = [owner.ask(batch(sequence)).dlsn for sequence in range(3)][-1]
    owner.ask(SealStream())
    end = stage.value.segments[0].last_dlsn
    assert owner.ask(TruncateBefore(of(2, 0, 0))) == end.next_slot()
    assert last < end.next_slot()
    (segment,) = stage.value.segments
    assert (segment.truncation, segment.first_dlsn) == (Truncation.PARTIAL, end.next_slot())


def test_deletion_that_was_interrupted_is_finished_by_the_next_owner() -> None:
    stage = Stage(segment_bytes=300)
    owner = stage.taken("p1")
    for sequence in range(4):
        owner.ask(batch(sequence, size=300))
    stage.hold(DeleteSegment)
    owner.ask(TruncateBefore(owner.answers[4].dlsn))
    assert [s.truncation for s in stage.value.truncated] == [Truncation.TRUNCATED] * 2
    stage.held.clear()
    stage.hold()
    stage.taken("p2")
    assert not stage.value.truncated and not {"1a", "2a"} & stage.stored.keys()


def test_a_released_stream_is_taken_only_at_the_epoch_that_was_judged() -> None:
    stage = Stage()
    stage.taken("p1")
    late = stage.owner("p2")
    assert isinstance(late.take(if_epoch=0), OwnedElsewhereError)
    assert late.answers[1].location == "p1:1"
    assert late.machine.has_ended
    assert stage.owner("p3").take(if_epoch=1) == StreamAcquired(2, 1)  # type: ignore[arg-type]


def test_before_the_claim_there_is_nothing_to_write_to() -> None:
    assert isinstance(Stage().owner("p1").ask(batch(0)), NotReadyError)


def test_what_is_asked_during_recovery_waits_and_keeps_its_order() -> None:
    stage = Stage()
    owner = stage.owner("p1")
    stage.hold(CompareAndSet)
    owner.take()
    for sequence in range(3):
        assert owner.ask(batch(sequence)) is None
    stage.release()
    assert owner.answers[2].dlsn < owner.answers[3].dlsn < owner.answers[4].dlsn


def test_stat_tells_what_the_owner_knows() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0, 3))
    owner.ask(batch(0, 1, producer=BOB))
    stat = owner.ask(StatStream())
    assert (stat.state, stat.segment, stat.lac, stat.records, stat.producers) == ("serving", 1, 1, 4, 2)
    assert stat.last_dlsn == of(1, 1, 1)


def test_the_store_of_the_next_segment_is_the_one_in_the_settings() -> None:
    stage = Stage(segment_bytes=1000, store="memory")
    owner = stage.taken("p1")
    owner.ask(batch(0, size=500))
    assert [m.store for m in owner.sent if isinstance(m, CreateSegment)] == ["memory", "memory"]
    assert stage.value.allocated == "memory:2b"


def test_what_a_producer_gave_up_no_owner_writes_once_its_next_generation_began() -> None:
    stage = Stage()
    one = stage.taken("p1")
    old, new = ALICE[:12] + bytes(4), ALICE[:12] + bytes((0, 0, 0, 1))
    one.ask(batch(0, producer=old))
    begun = replace(batch(4, producer=new), replaces=4)
    assert not isinstance(one.ask(begun), DLogError)
    for name in ("", "p2"):
        owner = stage.taken(name) if name else one
        for late in (batch(1, producer=old), batch(1, producer=old, retry=True)):
            assert isinstance(owner.ask(late), ProducerUnknownError)
        assert owner.ask(replace(begun, retry=True)).duplicate
