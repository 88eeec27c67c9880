"""What metadata refuses for good is reported to the caller, and stops nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.errors import DamagedError, InvalidRequestError
from dlog.events import ChangeRefused
from dlog.log.messages import (
    BatchWritten,
    DeleteStream,
    HandOverStream,
    ImportStages,
    MoveListedSegment,
    SealStream,
    SegmentsImported,
    StreamAcquired,
    TruncateBefore,
)
from dlog.log.options import OwnerOptions
from dlog.log.owner_context import Phase
from dlog.model.ids import SEGMENT_MAX, TXID_END_OF_STREAM, SegmentNumber
from dlog.model.segment import StreamMetadata
from tests.unit.log.stage import INCARNATION, Actor, Stage, batch, numbers

TOO_LARGE = InvalidRequestError("request exceeds ZooKeeper's limit of 1 MiB")


def rolling() -> tuple[Stage, Actor]:
    """An owner that begins a segment with each batch of 300 bytes, and has written five."""
    stage = Stage(segment_bytes=300)
    owner = stage.taken("p1", OwnerOptions(truncate_portion=3))
    for sequence in range(5):
        owner.ask(batch(sequence, size=300))
    return stage, owner


def refuse_more_than(stage: Stage, segments: int) -> None:
    """Let metadata accept changes of this many segments at most."""

    def refusal(before: StreamMetadata, after: StreamMetadata) -> InvalidRequestError | None:
        return TOO_LARGE if sum(1 for _ in after.changes_since(before)) > segments else None

    stage.refusal = refusal


def test_a_refused_truncation_is_told_to_who_asked_and_the_stream_goes_on_rolling() -> None:
    stage, owner = rolling()
    stage.refusal = lambda before, after: TOO_LARGE if len(after.truncated) > len(before.truncated) else None
    assert owner.ask(TruncateBefore(owner.answers[5].dlsn)) is TOO_LARGE
    for sequence in range(5, 9):
        assert isinstance(owner.ask(batch(sequence, size=300)), BatchWritten)
    assert stage.value.segments[0].number == 1 and len(stage.value.segments) > 6


def test_what_is_too_much_together_is_written_one_by_one() -> None:
    """A roll and a truncation wait for the same answer, and are written together."""
    stage, owner = rolling()
    refuse_more_than(stage, 1)
    for sequence in range(5, 12):
        assert isinstance(owner.ask(batch(sequence, size=300)), BatchWritten)
    point = owner.answers[6].dlsn
    assert owner.ask(TruncateBefore(point)) == point
    assert stage.value.segments[0].number == point.segment


def test_an_owners_own_change_that_is_refused_is_an_event_and_nothing_else() -> None:
    stage, owner = rolling()
    refuse_more_than(stage, 2)
    point = owner.answers[5].dlsn
    assert owner.ask(TruncateBefore(point)) == point, "the point itself is a small change"
    assert [e.change for e in owner.events if isinstance(e, ChangeRefused)] == ["MarkTruncated"]
    assert len(stage.value.truncated) == 3
    for sequence in range(5, 9):
        assert isinstance(owner.ask(batch(sequence, size=300)), BatchWritten)
    stage.refusal = lambda before, after: None
    stage.taken("p2")
    assert not stage.value.truncated, "the next owner goes on"


@pytest.mark.parametrize("what", ["claim", "segment"])
def test_a_stream_that_cannot_be_claimed_or_given_a_segment_is_not_owned(what: str) -> None:
    stage = Stage()
    owner = stage.owner("p1")
    stage.refusal = lambda before, after: TOO_LARGE if what == "claim" or after.segments else None
    assert owner.take() is TOO_LARGE
    assert owner.machine.phase is Phase.LOST


def at_segment(number: int) -> Stage:
    """A stream whose only segment, which is completed, has this number. Metadata refuses those without a znode name."""
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0))
    owner.ask(HandOverStream())
    (first,) = stage.value.segments
    stage.value = replace(stage.value.without_segment(first.number), max_segment=SegmentNumber(number))
    stage.value = stage.value.with_segment(replace(first, number=SegmentNumber(number)))
    stage.refusal = lambda before, after: TOO_LARGE if after.max_segment > SEGMENT_MAX else None
    return stage


def test_a_stream_without_a_segment_number_left_is_refused_without_a_claim() -> None:
    stage = at_segment(SEGMENT_MAX)
    version, created = stage.version, stage.created
    for name in ("p2", "p3"):
        owner = stage.owner(name)
        error = owner.take()
        assert isinstance(error, DamagedError)
        assert "no segment number left, so a znode of it is damaged: restore it" in error.message
        assert error.message.endswith(f": stream=s last={SEGMENT_MAX} limit={SEGMENT_MAX}")
        assert (owner.machine.phase, owner.sent) == (Phase.LOST, [])
    assert (stage.version, stage.created) == (version, created), "metadata and the store stay as they are"
    stage.deletion("p4").ask(DeleteStream(INCARNATION, None))
    assert stage.value.owner.deleted, "it can be deleted"


def test_the_owner_of_the_last_segment_loses_its_claim_once() -> None:
    stage = at_segment(SEGMENT_MAX - 1)
    owner = stage.taken("p2")
    assert isinstance(owner.ask(batch(1)), BatchWritten)
    assert numbers(stage.value) == [(SEGMENT_MAX - 1, True), (SEGMENT_MAX, False)]
    epoch = stage.value.owner.epoch
    assert stage.owner("p3").take() is TOO_LARGE, "it ends the last segment"
    assert numbers(stage.value) == [(SEGMENT_MAX - 1, True), (SEGMENT_MAX, True)]
    for name in ("p4", "p5"):
        assert isinstance(stage.owner(name).take(), DamagedError)
    assert stage.value.owner.epoch == epoch + 1


def test_the_last_segment_is_used_again_if_it_is_empty_and_a_sealed_stream_is_owned() -> None:
    stage = at_segment(SEGMENT_MAX - 1)
    stage.taken("p2")
    owner = stage.taken("p3")
    assert isinstance(owner.ask(batch(1)), BatchWritten)
    owner.ask(SealStream())
    assert stage.value.max_txid == TXID_END_OF_STREAM
    assert isinstance(stage.owner("p4").take(), StreamAcquired)


def test_segments_that_cannot_be_taken_in_are_refused_and_writing_goes_on() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    owner.ask(batch(0, txid=5))
    stages = [stage.staged(f"stage-{n}", 10 + n) for n in range(4)]
    refuse_more_than(stage, 3)
    assert owner.ask(ImportStages(None, tuple(stages))) is TOO_LARGE
    assert isinstance(owner.ask(batch(1, txid=40)), BatchWritten)
    assert isinstance(owner.ask(ImportStages(None, (stage.staged("fits", 50),))), SegmentsImported)


def test_a_relocation_that_is_refused_is_told_to_who_asked() -> None:
    stage, owner = rolling()
    moved = stage.value.segments[0]
    stage.refusal = lambda before, after: TOO_LARGE if after.segments[0].store != "ledger" else None
    assert owner.ask(MoveListedSegment(moved.number, moved.store, moved.name, "cold", "cold")) is TOO_LARGE
    assert isinstance(owner.ask(batch(5)), BatchWritten)
