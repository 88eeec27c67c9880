"""Scenarios of a deletion: what is fenced first, what it may not touch, how it ends when something fails."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.errors import (
    ClaimLostError,
    DLogError,
    LedgerFencedError,
    OwnedElsewhereError,
    SegmentNotEndedError,
    StreamUnavailableError,
)
from dlog.log.messages import (
    AlterStream,
    AppendEntry,
    AppendSinkBatch,
    BatchWritten,
    DeleteStream,
    ImportStages,
    MoveListedSegment,
    RecoverSegment,
    SealStream,
    TruncateBefore,
)
from dlog.machine import CompareAndSet, MetadataSeen, OutcomeUnknown, PeerLost
from dlog.model.dlsn import DLSN_FIRST
from dlog.model.ids import EntryId, Epoch, SegmentNumber, Txid
from dlog.model.segment import Segment, StreamSettings
from dlog.model.sink import SinkBatch
from dlog.stores.contract import SegmentCorruptError, SegmentNotFoundError, StoreUnavailableError
from tests.unit.log.stage import INCARNATION, Actor, Stage, batch

NOTHING = object()


def delete(actor: Actor, incarnation: str = INCARNATION, *, if_epoch: int | None = None, force: bool = False) -> Any:
    """Request the deletion; NOTHING while there is no answer, None once the stream is deleted."""
    actor.ask(DeleteStream(incarnation, None if if_epoch is None else Epoch(if_epoch), force))
    return answer(actor)


def answer(actor: Actor) -> Any:
    return actor.answers.get(1, NOTHING)


def test_an_owner_that_hears_nothing_of_it_gets_nothing_acknowledged_in_a_deleted_stream() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    assert isinstance(owner.ask(batch(0)), BatchWritten)
    assert delete(stage.deletion("p2")) is None
    assert stage.value.owner.deleted
    assert all(place.end is not None for place in stage.stored.values())
    assert not isinstance(owner.ask(batch(1)), BatchWritten)
    assert not isinstance(owner.answers.get(3), BatchWritten)


def test_what_is_on_its_way_while_it_is_deleted_is_not_acknowledged_later() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    assert owner.ask(batch(0)) is None
    stage.holding = ()
    assert delete(stage.deletion("p2")) is None
    stage.release()
    assert [type(a) for a in owner.answers.values()][1:] != [BatchWritten]
    assert isinstance(owner.answers[2], DLogError)


def test_all_segments_in_progress_are_ended_before_the_mark() -> None:
    stage = Stage()
    stage.taken("p1")
    stage.hold(RecoverSegment)
    deletion = stage.deletion("p2")
    assert delete(deletion) is NOTHING
    assert stage.value.owner.epoch == 2
    assert not stage.value.owner.deleted
    stage.release()
    assert answer(deletion) is None
    assert stage.value.owner.deleted


def test_a_segment_that_somebody_without_a_claim_begins_meanwhile_is_ended_too() -> None:
    stage = Stage()
    stage.taken("p1")
    stage.hold(RecoverSegment)
    deletion = stage.deletion("p2")
    delete(deletion)
    strange = Segment(number=SegmentNumber(2), name="2x", first_txid=Txid(0))
    stage.stored["2x"] = stage.stored["1a"].__class__(2)
    stage.value, stage.version = stage.value.with_segment(strange), stage.version + 1
    stage.release()
    assert answer(deletion) is None
    assert stage.stored["2x"].end == -1


def test_the_next_stream_of_the_name_is_not_touched() -> None:
    stage = Stage()
    stage.made_again("b2")
    before = stage.value
    assert delete(stage.deletion("p2")) is None, "the one that was meant is gone"
    assert stage.value == before
    assert stage.value.owner.epoch == 0


@pytest.mark.parametrize("unheard", [1, 2], ids=["the claim", "the mark"])
def test_what_took_place_unheard_is_found_in_metadata(unheard: int) -> None:
    stage = Stage()
    stage.taken("p1")
    deletion = stage.deletion("p2")
    stage.hold(CompareAndSet)
    assert delete(deletion) is NOTHING
    if unheard == 2:
        stage.held.popleft()()
    question = deletion.metadata_asked[-1]
    assert isinstance(question, CompareAndSet)
    stage.metadata(question)
    stage.holding = ()
    stage.held.clear()
    deletion.post(MetadataSeen(question.token, OutcomeUnknown("lost")))
    for key in [key for key in deletion.timers if key[0] in ("claim", "register")]:
        deletion.fire(*key)
    assert answer(deletion) is None
    assert stage.value.owner.deleted


def test_of_two_deletions_at_once_both_are_told_that_it_is_deleted_or_where_to_ask() -> None:
    stage = Stage()
    stage.taken("p1")
    one, two = stage.deletion("p2"), stage.deletion("p3")
    stage.hold(RecoverSegment)
    delete(one)
    delete(two)
    stage.release()
    assert answer(two) is None
    error = answer(one)
    assert error is None or isinstance(error, OwnedElsewhereError)


def test_a_newer_claim_is_left_alone() -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0))
    stage.hold(RecoverSegment)
    deletion = stage.deletion("p2")
    delete(deletion)
    stage.holding = ()
    stage.taken("p3")
    stage.release()
    error = answer(deletion)
    assert isinstance(error, OwnedElsewhereError)
    assert error.location == "p3:1"
    assert not stage.value.owner.deleted


def test_only_the_claim_that_was_judged_is_replaced() -> None:
    stage = Stage()
    stage.taken("p1")
    assert isinstance(delete(stage.deletion("p2"), if_epoch=0), OwnedElsewhereError)
    assert stage.value.owner.epoch == 1


def test_a_segment_that_cannot_be_ended_is_told_by_name_and_deleted_only_by_force() -> None:
    stage = Stage()
    stage.taken("p1")
    stage.cannot_end = StoreUnavailableError("two of three bookies do not answer")
    deletion = stage.deletion("p2")
    assert delete(deletion) is NOTHING
    deletion.fire("retry")
    assert answer(deletion) is NOTHING
    deletion.fire("patience")
    error = answer(deletion)
    assert isinstance(error, SegmentNotEndedError)
    assert "two of three bookies do not answer; start their bookies, or mend their store, and" in error.message
    assert "segments=[1]" in error.message
    assert not stage.value.owner.deleted

    forced = stage.deletion("p2")
    assert delete(forced, force=True) is NOTHING, "it tries first"
    forced.fire("patience")
    assert answer(forced) is None
    assert stage.value.owner.deleted


def test_a_segment_that_is_back_in_time_is_ended() -> None:
    stage = Stage()
    stage.taken("p1")
    stage.cannot_end = LedgerFencedError("somebody else recovers it")
    deletion = stage.deletion("p2")
    assert delete(deletion) is NOTHING
    stage.cannot_end = None
    deletion.fire("retry")
    assert answer(deletion) is None
    assert "retry" not in {key[0] for key in deletion.timers}


def test_damage_is_told_at_once_and_a_place_that_is_gone_needs_no_end() -> None:
    stage = Stage()
    stage.taken("p1")
    stage.cannot_end = SegmentCorruptError("no replica has entry 3")
    error = delete(stage.deletion("p2"))
    assert isinstance(error, SegmentNotEndedError)
    assert "no replica has entry 3; they are damaged" in error.message
    assert "delete again" not in error.message, "that cannot help"
    stage.cannot_end = SegmentNotFoundError("deleted")
    assert delete(stage.deletion("p2")) is None


def test_a_store_that_is_lost_is_asked_again() -> None:
    stage = Stage()
    stage.taken("p1")
    stage.hold(RecoverSegment)
    deletion = stage.deletion("p2")
    delete(deletion)
    stage.held.clear()
    stage.holding = ()
    deletion.post(PeerLost("store"))
    deletion.fire("retry")
    assert answer(deletion) is None


def test_a_stream_that_nobody_ever_wrote_is_deleted_without_a_segment() -> None:
    stage = Stage()
    deletion = stage.deletion("p2")
    assert delete(deletion) is None
    assert deletion.sent == []
    assert stage.stored == {}
    assert deletion.timers == {}


SINK = SinkBatch("sink", 0, "q", 0)
OF_ANOTHER_INCARNATION = [
    SealStream("b2"),
    TruncateBefore(DLSN_FIRST, "b2"),
    AlterStream(StreamSettings(retention_s=1.0, version=1), "b2"),
    MoveListedSegment(SegmentNumber(1), "ledger", "1a", "cold", "x", "b2"),
    ImportStages(None, (("1", EntryId(0)),), incarnation="b2"),
    AppendSinkBatch(SINK, batch(0, producer=SINK.producer), "b2"),
]


@pytest.mark.parametrize("request_", OF_ANOTHER_INCARNATION, ids=lambda request: type(request).__name__)
def test_an_owner_does_nothing_for_another_life_and_looks_whether_its_own_is_gone(request_: Any) -> None:
    stage = Stage()
    owner = stage.taken("p1")
    before, asked = stage.value, len(owner.metadata_asked)
    assert isinstance(owner.ask(request_), StreamUnavailableError)
    assert stage.value == before
    assert len(owner.metadata_asked) == asked + 1
    assert isinstance(owner.ask(batch(0)), BatchWritten)

    stage.made_again("b2")
    assert isinstance(owner.ask(request_), StreamUnavailableError)
    assert owner.machine.has_ended
    lost = owner.ask(batch(1))
    assert isinstance(lost, ClaimLostError)
    assert not lost.outcome_unknown
