"""The truncation point moves at once, whatever is before it; segments before it are deleted in portions, and nothing
waits for that."""

from __future__ import annotations

from dlog.errors import NotReadyError, UnavailableError
from dlog.events import SegmentDeleted, StreamStalled
from dlog.log.messages import (
    STORE,
    BatchWritten,
    DeleteSegment,
    HandOverStream,
    MoveListedSegment,
    RecoverSegment,
    StoreFailed,
    TruncateBefore,
)
from dlog.log.options import OwnerOptions
from dlog.machine import CompareAndSet, MetadataSeen, ReadMetadata, Received
from dlog.model.dlsn import DLSN, of
from dlog.model.segment import StreamMetadata, Truncation
from dlog.stores.contract import StoreOutOfReachError
from tests.unit.log.stage import Actor, Stage, batch

THREE = OwnerOptions(truncate_portion=3)


class WatchedStage(Stage):
    """Keeps every written value of the stream. Each batch of `written_by` fills a segment."""

    def __init__(self) -> None:
        super().__init__(segment_bytes=300)
        self.written: list[StreamMetadata] = []

    def metadata(self, question: ReadMetadata | CompareAndSet) -> MetadataSeen:
        before = self.value
        answer = super().metadata(question)
        if self.value is not before:
            self.written.append(self.value)
        return answer


def written_by(owner: Actor, segments: int) -> DLSN:
    """Fill this many segments; returns the position of the record behind them."""
    for sequence in range(segments + 1):
        owner.ask(batch(sequence, size=300))
    place: DLSN = owner.answers[len(owner.answers)].dlsn
    return place


def changes(stage: WatchedStage) -> list[int]:
    """How many segments each written value changed compared to the one before."""
    pairs = zip(stage.written, stage.written[1:], strict=False)
    return [sum(1 for _ in after.changes_since(before)) for before, after in pairs]


def test_truncated_segments_go_in_portions() -> None:
    stage = WatchedStage()
    owner = stage.taken("p1", THREE)
    point = written_by(owner, 9)
    stage.written.clear()
    assert owner.ask(TruncateBefore(point)) == point
    assert not stage.value.truncated and stage.value.segments[0].first_dlsn == point
    assert max(changes(stage)) == 3
    assert [e.segment for e in owner.events if isinstance(e, SegmentDeleted)] == list(range(1, point.segment))
    first = stage.written[0].truncated
    assert [s.truncation for s in first] == [Truncation.ACTIVE] * 9, "the point moves before Java is told of a segment"
    assert not {s.name for s in first} & stage.stored.keys()


def test_nothing_waits_for_a_store_that_does_not_delete() -> None:
    stage = WatchedStage()
    owner = stage.taken("p1", THREE)
    point = written_by(owner, 5)
    stage.hold(DeleteSegment)
    assert owner.ask(TruncateBefore(point)) == point
    left = stage.value.truncated
    assert len(left) == 5
    assert isinstance(owner.ask(batch(6, size=300)), BatchWritten)
    stage.held.clear()
    for segment in left[:3]:
        question = DeleteSegment(segment.location, segment.number)
        owner.post(Received(STORE, StoreFailed(question, UnavailableError("away"))))
    later = owner.ask(batch(7, size=300)).dlsn
    assert owner.ask(TruncateBefore(later)) == later, "and the point moves on"
    assert len(stage.value.truncated) > 5
    stage.hold()
    owner.fire("disposal")
    assert not stage.value.truncated and not {s.name for s in left} & stage.stored.keys()


def test_the_ledger_where_a_segment_lay_before_goes_with_it() -> None:
    stage = WatchedStage()
    owner = stage.taken("p1", THREE)
    point = written_by(owner, 2)
    hot = stage.value.segments[0]
    stage.stored["cold"] = stage.stored[hot.name]
    owner.ask(MoveListedSegment(hot.number, hot.store, hot.name, "cold", "cold"))
    assert stage.value.segments[0].former == hot.location
    owner.ask(TruncateBefore(point))
    assert not {hot.name, "cold"} & stage.stored.keys() and not stage.value.truncated


def test_what_was_left_by_the_owner_before_goes_on() -> None:
    stage = WatchedStage()
    first = stage.taken("p1", THREE)
    point = written_by(first, 7)
    stage.hold(DeleteSegment)
    first.ask(TruncateBefore(point))
    left = stage.value.truncated
    assert len(left) == 7
    stage.held.clear()
    stage.hold()
    stage.taken("p2", THREE)
    assert not stage.value.truncated and not {s.name for s in left} & stage.stored.keys()


def stalled(options: OwnerOptions) -> tuple[WatchedStage, Actor, DLSN]:
    """An owner that has read a log of six segments, and waits for space to begin the seventh; where the last begins."""
    stage = WatchedStage()
    first = stage.taken("p1", options)
    written_by(first, 5)
    last = stage.value.segments[-1]
    assert not last.completed
    stage.cannot_create = StoreOutOfReachError("no space left on device")
    owner = stage.owner("p2", options)
    assert owner.take() is None
    owner.fire("allocation")
    assert any(isinstance(e, StreamStalled) for e in owner.events)
    return stage, owner, last.first_dlsn


def test_a_stream_that_waits_for_space_is_truncated_up_to_its_open_segment_and_gives_space_back() -> None:
    stage, owner, start = stalled(THREE)
    gone = {s.name for s in stage.value.segments[:-1]}
    refused = owner.ask(TruncateBefore(start.next_slot()))
    assert isinstance(refused, NotReadyError) and f"the segment at {start}" in refused.message
    assert owner.ask(TruncateBefore(start)) == start
    assert not stage.value.truncated and not gone & stage.stored.keys()
    assert len(stage.value.in_progress) == 1
    stage.cannot_create = None
    owner.fire("allocation")
    repeated = owner.ask(batch(5, size=300, retry=True))
    assert isinstance(repeated, BatchWritten) and repeated.duplicate, "its producers are still known"


def test_while_a_log_is_read_truncation_moves_the_point_and_deletes_nothing() -> None:
    stage = WatchedStage()
    first = stage.taken("p1", THREE)
    written_by(first, 5)
    start, kept = stage.value.segments[-1].first_dlsn, {s.name for s in stage.value.segments[:-1]}
    owner = stage.owner("p2", THREE)
    stage.hold(RecoverSegment)
    assert owner.take() is None
    owner.post(Received(STORE, StoreFailed(owner.sent[-1], StoreOutOfReachError("away"))))
    assert owner.ask(TruncateBefore(start)) == start
    assert kept <= stage.stored.keys(), "the producer table may be in a truncated segment"
    stage.release()
    assert not kept & stage.stored.keys()


def test_a_completed_last_segment_ends_the_log_only_once_recovery_has_confirmed_its_end() -> None:
    """A Java writer may have listed too low an end: its last records would come back after the truncation."""
    stage = WatchedStage()
    first = stage.taken("p1", THREE)
    written_by(first, 2)
    first.ask(batch(3))
    first.ask(HandOverStream())
    last = stage.value.segments[-1]
    assert last.completed
    owner = stage.owner("p2", THREE)
    stage.hold(RecoverSegment)
    owner.take()
    behind = of(last.number + 1, 0, 0)
    refused = owner.ask(TruncateBefore(behind))
    assert isinstance(refused, NotReadyError) and f"the segment at {of(last.number, 0, 0)}" in refused.message
    stage.release()
    assert owner.ask(TruncateBefore(behind)) == behind
