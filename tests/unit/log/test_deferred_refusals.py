"""An owner says that something is not in the log only after metadata confirmed its claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import (
    DLogError,
    EndOfStreamError,
    InvalidRequestError,
    OverCapacityError,
    PositionBeyondEndError,
    ProducerUnknownError,
    Remedy,
    SequenceGapError,
    StreamNotFoundError,
    StreamUnavailableError,
    TxidOutOfOrderError,
)
from dlog.log.messages import (
    HINTS,
    STORE,
    AppendEntry,
    BatchWritten,
    ImportStages,
    RecoverSegment,
    SealStream,
    SegmentsImported,
    StoreFailed,
    StreamChanged,
    TruncateBefore,
    WriteBatch,
)
from dlog.log.options import OwnerOptions
from dlog.log.owner_context import Phase
from dlog.machine import CompareAndSet, MetadataSeen, OutcomeUnknown, ReadMetadata, Received, Versioned
from dlog.model.dlsn import of
from dlog.model.ids import EntryId, SegmentNumber
from dlog.stores.contract import SegmentFencedError, SegmentNotFoundError
from tests.unit.log.stage import BOB, INCARNATION, Actor, Stage, batch


def deposed(stage: Stage, first: WriteBatch | None = None) -> tuple[Actor, Actor]:
    """An owner that was frozen while another took the stream over and wrote, and that other one."""
    stale = stage.taken("p1")
    stale.ask(first or batch(0))
    heir = stage.taken("p2")
    for request in (batch(1), batch(2)):
        heir.ask(request)
    return stale, heir


def says_whose_it_is(answer: Any) -> bool:
    """Whether the answer redirects the client, and says nothing of the log except that this request was not
    accepted."""
    return isinstance(answer, DLogError) and answer.remedy in (Remedy.FOLLOW, Remedy.REOPEN)


def test_a_deposed_owner_does_not_say_which_sequence_is_expected() -> None:
    stale, heir = deposed(Stage())
    assert says_whose_it_is(stale.ask(batch(2, retry=True)))
    assert heir.ask(batch(2, retry=True)).duplicate


def test_nor_does_one_that_heard_of_a_fence_and_has_not_read_metadata_yet() -> None:
    stage = Stage()
    stale, _ = deposed(stage)
    stage.hold(ReadMetadata)
    question = AppendEntry(SegmentNumber(1), EntryId(1), ())
    stale.post(Received(STORE, StoreFailed(question, SegmentFencedError("fenced"))))
    assert stale.ask(batch(2, retry=True)) is None
    stage.release()
    assert says_whose_it_is(stale.answers[max(stale.answers)])


@pytest.mark.parametrize(
    "first,request_,told",
    [
        (batch(0, txid=90), batch(1, txid=80, retry=True), TxidOutOfOrderError),
        (batch(0), WriteBatch(b"junk", 1, None, batch(0).producer, 1, 0, True, 0), DLogError),
        (batch(0), batch(0, 2, retry=True), DLogError),
    ],
)
def test_a_batch_sent_before_is_not_refused_for_good_by_a_deposed_owner(
    first: WriteBatch, request_: WriteBatch, told: type[DLogError]
) -> None:
    alone = Stage().taken("p1")
    alone.ask(first)
    refused = alone.ask(request_)
    assert isinstance(refused, told)
    assert refused.remedy is Remedy.FIX
    stale, _ = deposed(Stage(), first)
    assert says_whose_it_is(stale.ask(request_))


def test_the_end_of_a_stream_that_is_being_sealed_is_not_told_to_a_batch_sent_before() -> None:
    stage = Stage()
    stale, _ = deposed(stage)
    stage.hold(ReadMetadata)
    stale.ask(SealStream())
    assert not isinstance(stale.ask(batch(1, retry=True)), EndOfStreamError)


def test_an_owner_that_does_not_know_the_log_yet_does_not_tell_a_batch_sent_before_that_the_stream_is_sealed() -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0))
    heir = stage.owner("p2")
    stage.hold(RecoverSegment)
    heir.take()
    heir.ask(SealStream())
    assert heir.ask(batch(0, retry=True)) is None
    stage.release()
    assert heir.answers[max(heir.answers)].duplicate


def test_a_refusal_that_says_nothing_of_the_log_does_not_wait_for_metadata() -> None:
    stage = Stage()
    owner = stage.taken("p1", OwnerOptions(pending_bytes_max=1))
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    asked = len(owner.metadata_asked)
    assert isinstance(owner.ask(batch(1, retry=True)), OverCapacityError)
    assert isinstance(owner.ask(batch(0, producer=BOB)), OverCapacityError)
    assert len(owner.metadata_asked) == asked


def test_what_is_sent_for_the_first_time_is_refused_at_once_though_metadata_is_away() -> None:
    """The client concludes only that this request was not accepted; it goes on behind what was refused for good."""
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0, txid=90))
    stage.hold(ReadMetadata)
    assert isinstance(owner.ask(batch(1, txid=80)), TxidOutOfOrderError)
    assert isinstance(owner.ask(batch(2)), SequenceGapError)
    assert owner.ask(batch(2, retry=True)) is None


@pytest.mark.parametrize("retry", [False, True])
def test_a_batch_of_another_life_is_refused_for_good_once_metadata_confirmed_ours(retry: bool) -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(ReadMetadata)
    assert owner.ask(replace(batch(0, retry=retry), incarnation="b2")) is None
    stage.release()
    assert isinstance(owner.answers[max(owner.answers)], StreamNotFoundError)
    assert isinstance(owner.ask(replace(batch(0), incarnation=INCARNATION)), BatchWritten)


def test_an_owner_whose_own_stream_was_deleted_refuses_no_batch_of_the_next_for_good() -> None:
    stage = Stage()
    stale = stage.taken("p1")
    stage.made_again("b2")
    assert says_whose_it_is(stale.ask(replace(batch(0), incarnation="b2")))
    heir = stage.taken("p2")
    assert isinstance(heir.ask(replace(batch(0), incarnation="b2")), BatchWritten)
    assert isinstance(heir.ask(replace(batch(1), incarnation=INCARNATION)), StreamNotFoundError)


def test_a_batch_of_another_life_that_came_before_the_stream_was_taken_is_refused_too() -> None:
    stage = Stage()
    owner = stage.owner("p1")
    stage.hold(ReadMetadata)
    owner.take()
    first = replace(batch(0), incarnation="b2")
    assert owner.ask(first) is None
    stage.release()
    assert isinstance(owner.answers[max(owner.answers)], StreamNotFoundError)


def test_a_read_that_began_before_the_batch_came_confirms_nothing() -> None:
    stage = Stage()
    stale = stage.taken("p1")
    stale.ask(batch(0))
    before = Versioned(stage.value, stage.version)
    stage.hold(ReadMetadata)
    stale.post(Received(HINTS, StreamChanged()))
    under_way = stale.metadata_asked[-1]
    stage.holding = ()
    heir = stage.taken("p2")
    heir.ask(batch(1))
    heir.ask(batch(2))
    assert stale.ask(batch(2, retry=True)) is None
    stale.post(MetadataSeen(under_way.token, before))
    assert says_whose_it_is(stale.answers[max(stale.answers)])


def test_an_owner_that_is_confirmed_says_it_and_reads_once_for_all_who_wait() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(ReadMetadata)
    asked = len(owner.metadata_asked)
    answers = [owner.ask(batch(n, retry=True)) for n in (2, 3, 4)]
    assert answers == [None] * 3
    stage.release()
    assert all(isinstance(a, SequenceGapError) and a.expected == 1 for a in list(owner.answers.values())[-3:])
    assert len(owner.metadata_asked) == asked + 2, "one was under way, and one for all that came meanwhile"


def test_what_became_right_while_the_claim_was_confirmed_is_taken() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(ReadMetadata)
    assert owner.ask(batch(1, retry=True)) is None
    owner.ask(batch(0))
    stage.release()
    assert not isinstance(owner.answers[max(owner.answers) - 1], DLogError)
    assert owner.ask(batch(1, retry=True)).duplicate


def test_without_metadata_nothing_is_said_of_the_log() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(ReadMetadata)
    owner.ask(batch(3, retry=True))
    token = owner.metadata_asked[-1].token
    owner.post(MetadataSeen(token, OutcomeUnknown("cut off")))
    answer = owner.answers[max(owner.answers)]
    assert isinstance(answer, StreamUnavailableError)
    assert not answer.outcome_unknown
    stage.held.clear()
    assert owner.ask(batch(3, retry=True)) is None, "it is read again a little later"
    owner.fire(*next(key for key in owner.timers if key[0] == "register"))
    stage.release()
    assert isinstance(owner.answers[max(owner.answers)], SequenceGapError)


def test_reads_that_confirm_do_not_hold_up_changes() -> None:
    stage = Stage()
    stage.taken("p1").ask(batch(0))
    owner = stage.taken("p2")
    owner.ask(batch(1))
    stage.hold(ReadMetadata)
    asked = len(owner.metadata_asked)
    owner.ask(batch(3, retry=True))
    owner.ask(batch(4, retry=True))
    owner.ask(TruncateBefore(of(2, 0, 0)))
    stage.release()
    kinds = [type(question) for question in owner.metadata_asked[asked:]]
    assert kinds[:3] == [ReadMetadata, CompareAndSet, ReadMetadata]


def test_why_a_claim_ended_is_no_word_on_what_is_in_the_log() -> None:
    """A deposed owner that recovers its segment finds it deleted: it was truncated under the next owner."""
    stage = Stage()
    stale, _ = deposed(stage)
    stage.hold(ReadMetadata, RecoverSegment)
    question = AppendEntry(SegmentNumber(1), EntryId(1), ())
    stale.post(Received(STORE, StoreFailed(question, SegmentFencedError("fenced"))))
    before = Versioned(replace(stage.value, owner=stale.machine.value.owner), stage.version - 2)
    assert stale.ask(batch(1, retry=True)) is None
    stale.post(MetadataSeen(stale.metadata_asked[-1].token, before))
    recover = next(m for m in reversed(stale.sent) if isinstance(m, RecoverSegment))
    stale.post(Received(STORE, StoreFailed(recover, SegmentNotFoundError("no such place"))))
    assert stale.machine.phase is Phase.LOST
    assert all(says_whose_it_is(a) for a in list(stale.answers.values())[2:])


def test_a_forgotten_producer_hears_so_from_who_owns_the_stream() -> None:
    stage = Stage()
    options = OwnerOptions(producers_max=1)
    stale = stage.taken("p1", options)
    stale.ask(batch(0))
    stale.ask(batch(0, producer=BOB))
    assert isinstance(stale.ask(batch(1, retry=True)), ProducerUnknownError)
    stage.taken("p2", options)
    assert says_whose_it_is(stale.ask(batch(1, retry=True)))


def test_a_deposed_owner_does_not_say_that_a_point_is_beyond_the_end() -> None:
    stale, heir = deposed(Stage())
    last = heir.ask(batch(3)).dlsn
    assert says_whose_it_is(stale.ask(TruncateBefore(last)))
    assert heir.ask(TruncateBefore(last)) == last


def test_an_owner_whose_claim_is_confirmed_says_that_a_point_is_beyond_the_end() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(ReadMetadata)
    assert owner.ask(TruncateBefore(of(9, 0, 0))) is None
    stage.release()
    assert isinstance(owner.answers[max(owner.answers)], PositionBeyondEndError)


def test_a_point_beyond_the_end_is_asked_again_if_metadata_cannot_be_read() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    stage.hold(ReadMetadata)
    owner.ask(TruncateBefore(of(9, 0, 0)))
    owner.post(MetadataSeen(owner.metadata_asked[-1].token, OutcomeUnknown("cut off")))
    assert isinstance(owner.answers[max(owner.answers)], StreamUnavailableError)


def test_a_deposed_owner_does_not_say_that_a_stage_is_gone() -> None:
    stage = Stage()
    stale = stage.taken("p1")
    stale.ask(batch(0))
    heir = stage.taken("p2")
    request = ImportStages(None, (stage.staged("77", 5500, 6000),), "ledger", None, None)
    assert isinstance(heir.ask(request), SegmentsImported)
    del stage.stored["77"]  # it was moved to cold storage, and this copy deleted
    assert says_whose_it_is(stale.ask(request))


def test_an_owner_whose_claim_is_confirmed_says_that_a_stage_is_gone() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    request = ImportStages(None, (("77", EntryId(1)),), "ledger", None, None)
    answer = owner.ask(request)
    assert isinstance(answer, InvalidRequestError) and "no such stage" in answer.message
    assert isinstance(owner.ask(batch(0)), BatchWritten), "writes go on"
