"""Scenarios of importing segments, and of batches that sinks write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import (
    ClaimLostError,
    DLogError,
    EndOfStreamError,
    InvalidRequestError,
    OverCapacityError,
    ProducerUnknownError,
    StreamUnavailableError,
    TruncatedError,
    TxidOutOfOrderError,
)
from dlog.events import LacMoved
from dlog.log.messages import (
    AppendEntry,
    AppendSinkBatch,
    BatchWritten,
    DeleteSegment,
    ExamineStage,
    HandOverStream,
    ImportStages,
    MoveListedSegment,
    SealSegment,
    SealStream,
    SegmentsImported,
    TruncateBefore,
)
from dlog.log.options import OwnerOptions
from dlog.log.owner_context import Phase
from dlog.log.segment_import import WAITING_MAX
from dlog.machine import CompareAndSet, PeerLost
from dlog.model.dlsn import DLSN_INVALID, of
from dlog.model.ids import NO_TXID, EntryId, SegmentNumber
from dlog.model.segment import Location, Segment
from dlog.model.sink import SINKS_MAX, SinkBatch, SinkRecord
from tests.unit.log.stage import BOB, Actor, Stage, batch, numbers


def sink_batch(number: int, *, sink: str = "sink", epoch: int = 0, query: str = "q") -> SinkBatch:
    return SinkBatch(sink, epoch, query, number)


def once(number: int, **given: Any) -> AppendSinkBatch:
    return AppendSinkBatch(sink_batch(number, **given), batch(0))


def served(stage: Stage) -> list[tuple[int, int]]:
    """Number and entries of each segment, in order."""
    return [(s.number, len(stage.stored[s.name].payloads)) for s in stage.value.segments]


def test_stages_become_segments_behind_what_was_written_and_before_what_comes() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0, 2))
    parts = (stage.staged("x", 5000, 5001), stage.staged("y", 5001))
    assert owner.ask(ImportStages(sink_batch(0), parts)) == SegmentsImported(SegmentNumber(2), 2, 3)
    assert numbers(stage.value) == [(1, True), (2, True), (3, True), (4, False)]
    two, three = stage.value.segments[1:3]
    assert (two.name, two.first_txid, two.last_txid, two.last_entry, two.record_count) == ("x", 5000, 5001, 1, 2)
    assert (two.start_sequence_id, three.start_sequence_id) == (2, 4)
    assert stage.value.sinks == (SinkRecord(sink_batch(0)),)
    assert stage.value.max_txid == 5001
    assert owner.ask(batch(2)).dlsn == of(4, 0, 0)
    assert owner.ask(batch(3)).txid == 5001, "txids go on from what was taken in"
    told = [e for e in owner.events if isinstance(e, LacMoved) and e.ended]
    assert list(dict.fromkeys(told)) == [LacMoved("s", *end, True) for end in ((1, 0), (2, 1), (3, 0))]


def test_it_is_one_change_of_metadata() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    before = len(owner.metadata_asked)
    owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 6000),)))
    changes = [m for m in owner.metadata_asked[before:] if isinstance(m, CompareAndSet)]
    listed = [(len(m.value.segments), len(m.value.sinks)) for m in changes]
    assert listed == [(2, 1), (3, 1)], "all of it, and then the next segment"


def test_an_empty_segment_makes_way_and_its_number_is_used_again() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    first = stage.value.segments[0].name
    assert owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 1),))).first == 1
    assert numbers(stage.value) == [(1, True), (2, False)]
    assert first in stage.deleted
    told = list(dict.fromkeys(e for e in owner.events if isinstance(e, LacMoved)))
    assert told[-2:] == [LacMoved("s", 1, -1, True), LacMoved("s", 1, 0, True)], "who follows hears of both in turn"


def test_a_batch_that_is_repeated_is_answered_and_nothing_is_taken() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(ImportStages(sink_batch(3), (stage.staged("x", 1),)))
    for number in (3, 2, 0):
        again = owner.ask(ImportStages(sink_batch(number), (stage.staged(f"y{number}", 1),)))
        assert again == SegmentsImported(SegmentNumber(0), 1, 0, True)
    assert owner.ask(once(3)).duplicate
    assert [s.name for s in stage.value.segments if s.completed] == ["x"]
    assert owner.ask(ImportStages(sink_batch(4), (stage.staged("z", 1),))).first == 2


def test_it_is_remembered_by_whoever_owns_the_stream_next() -> None:
    stage = Stage()
    stage.taken("p1").ask(ImportStages(sink_batch(0), (stage.staged("x", 1),)))
    other = stage.taken("p2")
    assert other.ask(ImportStages(sink_batch(0), (stage.staged("y", 1),))).duplicate
    assert other.ask(batch(0)).dlsn == of(2, 0, 0)


def test_a_program_that_was_shut_out_is_refused_and_one_of_another_query_too() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(ImportStages(sink_batch(7, epoch=1), (stage.staged("x", 1),)))
    for refused in (sink_batch(8), sink_batch(8, epoch=1, query="other")):
        assert isinstance(owner.ask(ImportStages(refused, (stage.staged("y", 1),))), InvalidRequestError)
        assert isinstance(owner.ask(AppendSinkBatch(refused, batch(0))), InvalidRequestError)
    assert owner.ask(ImportStages(sink_batch(0, epoch=2, query="other"), (stage.staged("z", 1),))).first == 2
    assert owner.ask(ImportStages(sink_batch(0, sink="another"), (stage.staged("w", 1),))).first == 3


def test_a_batch_of_nothing_is_remembered_and_shuts_out_who_wrote_before() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(ImportStages(sink_batch(7), (stage.staged("x", 1),)))
    before = numbers(stage.value)
    assert owner.ask(ImportStages(sink_batch(0, epoch=1, query="none"), ())) == SegmentsImported(SegmentNumber(0), 0, 0)
    assert stage.value.sinks == (SinkRecord(sink_batch(0, epoch=1, query="none")),)
    assert numbers(stage.value) == before, "nothing is sealed for it"
    assert owner.ask(ImportStages(sink_batch(0, epoch=1, query="none"), ())).duplicate
    for late in (ImportStages(sink_batch(8), (stage.staged("y", 1),)), once(8), ImportStages(sink_batch(8), ())):
        refused = owner.ask(late)
        assert isinstance(refused, InvalidRequestError) and "taken over" in refused.message
    assert isinstance(owner.ask(ImportStages(None, ())), InvalidRequestError)
    assert owner.ask(batch(0)).dlsn.segment == 2, "writing goes on"


def test_a_batch_that_was_to_be_appended_is_not_made_one_of_nothing() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(once(3))
    refused = owner.ask(ImportStages(sink_batch(3), ()))
    assert isinstance(refused, InvalidRequestError) and "recorded for appending" in refused.message
    assert owner.ask(ImportStages(sink_batch(4), ())) == SegmentsImported(SegmentNumber(0), 0, 0)


def test_without_a_batch_a_place_is_taken_in_once() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    part = stage.staged("x", 1)
    assert owner.ask(ImportStages(None, (part,))).first == 1
    assert owner.ask(ImportStages(None, (part,))).duplicate
    assert stage.value.sinks == ()


@pytest.mark.parametrize("fault", ["no such", "ends elsewhere", "empty", "no records", "two of one", "taken"])
def test_what_is_no_stage_is_refused_and_writing_goes_on(fault: str) -> None:
    stage = Stage()
    owner = stage.taken("p1")
    part = stage.staged("x", 1, 2)
    parts = {
        "no such": (part, ("nowhere", EntryId(0))),
        "ends elsewhere": (("x", EntryId(0)),),
        "empty": (stage.staged("e"),),
        "no records": (part, ("junk", EntryId(0))),
        "two of one": (part, part),
        "taken": (stage.staged("y", 1), part),
    }[fault]
    if fault == "no records":
        stage.stored["junk"] = stage.stored["x"].__class__(0)
        stage.stored["junk"].payloads = [b"junk"]
    if fault == "taken":
        owner.ask(ImportStages(None, (part,)))
    assert isinstance(owner.ask(ImportStages(sink_batch(0), parts)), InvalidRequestError)
    assert owner.ask(batch(0)).dlsn == of(2 if fault == "taken" else 1, 0, 0)
    assert stage.value.sinks == ()


def test_txids_that_would_fall_are_refused_with_what_they_must_not_be_below() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0, txid=100))
    behind = owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 99),)))
    assert isinstance(behind, TxidOutOfOrderError)
    assert behind.last == 100
    mixed = owner.ask(ImportStages(sink_batch(0), (stage.staged("y", 200), stage.staged("z", 150))))
    assert isinstance(mixed, TxidOutOfOrderError)
    assert mixed.last == 200
    assert owner.ask(batch(1, txid=101)).dlsn == of(1, 1, 0), "the segment was not ended for nothing"


def test_writes_wait_while_segments_are_taken_in_and_none_is_refused() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    assert owner.ask(batch(0)) is None
    assert owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 9000),))) is None
    assert owner.ask(batch(1)) is None
    stage.release()
    assert owner.answers[2].dlsn == of(1, 0, 0)
    assert owner.answers[3].first == 2
    assert owner.answers[4].dlsn == of(3, 0, 0)
    assert owner.answers[4].txid == 9000


def test_the_store_fails_while_the_segment_is_sealed_and_it_is_done_behind_a_recovery() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(SealSegment)
    owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 9000),)))
    stage.held.clear()
    stage.holding = ()
    owner.post(PeerLost("store"))
    assert owner.answers[3].first == 2
    assert served(stage) == [(1, 1), (2, 1), (3, 0)]
    assert owner.machine.phase is Phase.SERVING


def test_the_store_is_lost_while_stages_are_looked_at() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(ExamineStage)
    owner.ask(ImportStages(sink_batch(0), tuple(stage.staged(f"x{i}", 1) for i in range(40))))
    assert len(stage.held) == 16
    stage.held.clear()
    stage.holding = ()
    owner.post(PeerLost("store"))
    assert owner.answers[2].segments == 40


def test_whoever_loses_the_stream_says_that_the_outcome_is_unknown() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(CompareAndSet)
    owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 9000),)))
    stage.holding = ()
    other = stage.taken("p2")
    stage.release()
    assert isinstance(owner.answers[3], DLogError)
    assert owner.answers[3].outcome_unknown
    assert other.ask(ImportStages(sink_batch(0), (("x", EntryId(0)),))).first == 2, "and nothing was done"


def test_a_reply_that_is_lost_is_found_to_have_been_carried_out() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(CompareAndSet)
    owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 9000),)))
    change = next(m for m in reversed(owner.metadata_asked) if isinstance(m, CompareAndSet))
    stage.metadata(change)  # it took place, and its reply is lost
    stage.held.clear()
    stage.holding = ()
    assert isinstance(change.token, tuple)
    owner.fire(*change.token)
    assert owner.answers[3] == SegmentsImported(SegmentNumber(2), 1, 1)
    assert numbers(stage.value) == [(1, True), (2, True), (3, False)]


def test_somebody_else_began_a_segment_and_the_stages_wait_for_another_try() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(CompareAndSet)
    owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 9000),)))
    strange = Segment(number=SegmentNumber(2), name="j", first_txid=stage.value.segments[0].first_txid)
    stage.stored["j"] = stage.stored["x"].__class__(2)
    stage.value, stage.version = stage.value.with_segment(strange), stage.version + 1
    stage.release()
    assert isinstance(owner.answers[3], StreamUnavailableError)
    assert owner.machine.phase is Phase.SERVING
    assert owner.ask(ImportStages(sink_batch(0), (("x", EntryId(0)),))).first == 2, "the strange one was empty"


def test_handing_over_and_sealing_refuse_what_is_not_begun_and_finish_what_is() -> None:
    for ending, error in ((HandOverStream(), StreamUnavailableError), (SealStream(), EndOfStreamError)):
        stage = Stage()
        owner = stage.taken("p1")
        owner.ask(batch(0))
        stage.hold(ExamineStage)
        owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 9000),)))
        owner.ask(ending)
        stage.release()
        assert isinstance(owner.answers[3], error)
        stage = Stage()
        owner = stage.taken("p1")
        owner.ask(batch(0))
        stage.hold(SealSegment)
        owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 9000),)))
        owner.ask(ending)
        stage.release()
        assert owner.answers[3].first == 2
        assert owner.answers[4] is None
        assert stage.value.is_sealed == isinstance(ending, SealStream)


def test_a_sealed_stream_answers_for_what_it_has() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(ImportStages(sink_batch(0), (stage.staged("x", 1),)))
    owner.ask(SealStream())
    assert owner.ask(ImportStages(sink_batch(0), (("x", EntryId(0)),))).duplicate
    assert isinstance(owner.ask(ImportStages(sink_batch(1), (stage.staged("y", 1),))), EndOfStreamError)
    assert isinstance(owner.ask(once(1)), EndOfStreamError)


def test_the_table_of_producers_is_found_behind_segments_that_were_taken_in() -> None:
    stage = Stage()
    owner = stage.taken("p1", OwnerOptions(recover_segments_max=1))
    owner.ask(batch(0, producer=BOB))
    owner.ask(ImportStages(sink_batch(0), tuple(stage.staged(f"x{i}", 9000) for i in range(5))))
    other = stage.taken("p2", OwnerOptions(recover_segments_max=1))
    again = other.ask(batch(0, producer=BOB, retry=True))
    assert again.duplicate and again.dlsn == of(1, 0, 0)


# ---- batches that are appended --------------------------------------------------------------------------------------


def test_a_small_batch_is_appended_once_however_often_it_is_asked_for() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    first = owner.ask(once(0))
    assert (first.dlsn, first.duplicate) == (of(1, 0, 0), False)
    again = owner.ask(once(0))
    assert (again.dlsn, again.duplicate) == (of(1, 0, 0), True)
    assert owner.ask(once(1)).dlsn == of(1, 1, 0)
    assert owner.ask(once(0)) == BatchWritten(DLSN_INVALID, 1, NO_TXID, True)
    assert stage.value.sinks == (SinkRecord(sink_batch(1), (1, 1)),)


def test_the_next_owner_knows_what_was_appended_and_what_only_was_to_be() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(once(0))
    stage.hold(AppendEntry)
    owner.ask(once(1))
    stage.held.clear()
    stage.holding = ()
    other = stage.taken("p2")
    assert other.ask(once(1)).duplicate is False, "it was to be appended, and was not"
    assert other.ask(once(1)).duplicate
    assert other.ask(once(0)).duplicate


def test_a_batch_that_was_to_be_appended_may_be_taken_in_if_it_certainly_was_not() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(once(0))
    stage.held.clear()
    stage.holding = ()
    other = stage.taken("p2")
    assert other.ask(ImportStages(sink_batch(0), (stage.staged("x", 9000),))) == SegmentsImported(
        SegmentNumber(1), 1, 1
    )
    assert other.ask(once(0)).duplicate
    appended = stage.taken("p3")
    appended.ask(once(1))
    doubtful = appended.ask(ImportStages(sink_batch(1), (stage.staged("y", 9000),)))
    assert isinstance(doubtful, ProducerUnknownError)


def test_what_was_forgotten_is_not_guessed_at() -> None:
    stage = Stage()
    owner = stage.taken("p1", OwnerOptions(producers_max=1))
    owner.ask(once(0))
    owner.ask(batch(0, producer=BOB))
    unknown = owner.ask(once(0))
    assert isinstance(unknown, ProducerUnknownError)
    assert unknown.since == (1, 2), "up to here the log must be read"
    parts = (stage.staged("x", 9000),)
    doubtful = owner.ask(ImportStages(sink_batch(0), parts))
    assert isinstance(doubtful, ProducerUnknownError)
    assert isinstance(owner.ask(ImportStages(sink_batch(0), parts, since=(1, 0))), ProducerUnknownError), (
        "not far enough"
    )
    assert owner.ask(ImportStages(sink_batch(0), parts, since=doubtful.since)).first == 2
    owner.ask(once(1))
    owner.ask(batch(0, since=(9, 0)))
    again = owner.ask(once(1))
    assert isinstance(again, ProducerUnknownError)
    request = once(1)
    told = AppendSinkBatch(request.batch, replace(request.write, since=again.since))
    assert not owner.ask(told).duplicate
    assert owner.ask(told).duplicate


def test_who_is_shut_out_has_nothing_behind_what_shuts_it_out() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    assert owner.ask(once(0)) is None
    assert owner.ask(once(0, epoch=1, query="new")) is None
    assert isinstance(owner.ask(once(1)), InvalidRequestError)
    stage.release()
    assert owner.answers[2].dlsn == of(1, 0, 0)
    assert owner.answers[3].dlsn == of(1, 1, 0)


def test_more_than_may_wait_or_be_remembered_is_refused() -> None:
    stage = Stage()
    stage.value = stage.value.with_sink(SinkRecord(sink_batch(0, sink="zz"), None))
    for number in range(SINKS_MAX - 1):
        stage.value = stage.value.with_sink(SinkRecord(sink_batch(0, sink=f"s{number}"), None))
    owner = stage.taken("p1")
    assert isinstance(owner.ask(once(0)), InvalidRequestError)
    assert owner.ask(once(1, sink="zz")).dlsn == of(1, 0, 0)
    stage.hold(CompareAndSet)
    for number in range(WAITING_MAX):
        assert owner.ask(once(3 + number, sink="zz")) is None
    assert isinstance(owner.ask(once(99, sink="zz")), OverCapacityError)


# ---- locations ------------------------------------------------------------------------------------------------------


def rolled() -> tuple[Stage, Actor]:
    stage = Stage(segment_bytes=300)
    owner = stage.taken("p1")
    owner.ask(batch(0, size=300))
    owner.ask(batch(1, size=300))
    return stage, owner


def test_a_completed_segment_may_lie_elsewhere() -> None:
    stage, owner = rolled()
    first = stage.value.segments[0]
    moved = MoveListedSegment(first.number, first.store, first.name, "cold", "s3://b/k")
    for _ in range(2):
        assert owner.ask(moved) is None
        listed = stage.value.segments[0]
        assert (listed.store, listed.name, listed.record_count) == ("cold", "s3://b/k", first.record_count)
    assert first.name not in stage.deleted


def test_what_is_not_there_is_not_moved() -> None:
    stage, owner = rolled()
    first, last = stage.value.segments[0], stage.value.segments[-1]
    for request in (
        MoveListedSegment(first.number, first.store, "elsewhere", "cold", "c"),
        MoveListedSegment(last.number, last.store, last.name, "cold", "c"),
        MoveListedSegment(SegmentNumber(99), "ledger", "x", "cold", "c"),
    ):
        assert isinstance(owner.ask(request), InvalidRequestError)
    owner.ask(TruncateBefore(of(last.number, 0, 0)))
    gone = owner.ask(MoveListedSegment(first.number, first.store, first.name, "cold", "c"))
    assert isinstance(gone, TruncatedError)


def test_that_a_segment_is_not_there_is_said_of_metadata_read_since() -> None:
    """An owner that was deposed and does not know it lacks the newer segments; one whose claim is not confirmed has
    none. A read that began before the request does not count."""
    stage, owner = rolled()
    heir = stage.taken("p2")
    heir.ask(batch(2, size=300))
    heir.ask(batch(3, size=300))
    newer = next(s for s in reversed(stage.value.segments) if s.completed)
    assert owner.machine.value.segment(newer.number) is None
    answer = owner.ask(MoveListedSegment(newer.number, newer.store, newer.name, "cold", "c"))
    assert isinstance(answer, ClaimLostError)
    assert heir.ask(MoveListedSegment(newer.number, newer.store, newer.name, "cold", "c")) is None


def test_a_segment_lies_in_one_store_whatever_its_place_is_called() -> None:
    stage, owner = rolled()
    first = stage.value.segments[0]
    answer = owner.ask(MoveListedSegment(first.number, "cold", first.name, "cold", "c"))
    assert isinstance(answer, InvalidRequestError)
    assert stage.value.segments[0] == first


def staged_and_moved(store: str = "ledger") -> tuple[Stage, Actor, ImportStages]:
    """A stage without a number that was imported, and moved to cold storage since; its first copy still exists."""
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    request = ImportStages(None, (stage.staged("7", 9000),), store)
    assert not owner.ask(request).duplicate
    taken = next(s for s in stage.value.segments if s.name == "7")
    stage.stored["cold/k"] = stage.stored["7"]
    assert owner.ask(MoveListedSegment(taken.number, store, "7", "cold", "cold/k")) is None
    return stage, owner, request


@pytest.mark.parametrize("store", ["ledger", "file"])
def test_what_was_taken_in_and_then_moved_is_not_taken_in_again(store: str) -> None:
    """The request arrived twice, the second one late; or its sender did not get the answer."""
    stage, owner, request = staged_and_moved(store)
    assert owner.ask(request).duplicate
    heir = stage.taken("p2")
    assert heir.ask(request).duplicate
    assert sum(s.record_count for s in stage.value.segments if s.completed) == 2


def test_a_moved_segment_leaves_the_list_when_the_ledger_where_it_lay_is_gone_too() -> None:
    """Otherwise a late request would find it, and import again what was truncated."""
    stage, owner, request = staged_and_moved()
    moved = next(s for s in stage.value.segments if s.former == Location("ledger", "7"))
    stage.hold(DeleteSegment)
    owner.ask(TruncateBefore(of(stage.value.max_segment, 0, 0)))
    assert owner.ask(request).duplicate
    stage.release()
    assert {"7", "cold/k"} <= set(stage.deleted) and stage.value.segment(moved.number) is None
    assert isinstance(owner.ask(request), InvalidRequestError)


@pytest.mark.parametrize("store", ["ledger", "file"])
def test_a_segment_that_is_taken_back_lies_where_it_was_written_and_lay_nowhere_else(store: str) -> None:
    stage, owner, request = staged_and_moved(store)
    moved = next(s for s in stage.value.segments if s.former == Location(store, "7"))
    assert owner.ask(MoveListedSegment(moved.number, "cold", "cold/k", "cold", "cold/l")) is None
    listed = stage.value.segment(moved.number)
    assert listed is not None and (listed.name, listed.former) == ("cold/l", Location(store, "7"))
    refused = owner.ask(MoveListedSegment(moved.number, "cold", "cold/l", "ledger", "8"))
    assert isinstance(refused, InvalidRequestError) and "only if it was written there" in refused.message
    assert owner.ask(MoveListedSegment(moved.number, "cold", "cold/l", store, "7")) is None
    back = stage.value.segment(moved.number)
    assert back == replace(moved, store=store, name="7", former=None)
    assert owner.ask(request).duplicate
