"""Deletes a stream: claims it, fences and ends its open segments, then marks it as deleted; one instance per attempt.

    Idle -> Claiming -> Ending -> Marking -> Ended

Invariants:
- only the incarnation that the request names is claimed, changed or marked;
- a stream is marked as deleted by a compare-and-set under this claim, and only while every segment in progress is
  ended (unless `force` is given): from then on no owner, deposed or not, can get anything written to it;
- if the incarnation is gone already, the answer is "deleted".

The caller then deletes the segments at their stores, as metadata still lists them (`Missing.left`).

The segment store is the peer STORE. Facts: Asked(DeleteStream) once; Received(STORE, SegmentRecovered or StoreFailed);
PeerLost(STORE); MetadataSeen; TimerFired.
"""

from __future__ import annotations

import enum

from dlog.errors import DLogError, Remedy, SegmentNotEndedError, StreamNotFoundError
from dlog.log.changes import MarkDeleted, Refresh
from dlog.log.messages import STORE, DeleteStream, RecoverSegment, SegmentRecovered, StoreFailed
from dlog.log.metadata_updater import StreamMetadataUpdater
from dlog.log.options import OwnerOptions
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    Effect,
    Fact,
    MetadataSeen,
    PeerLost,
    Received,
    Send,
    SetTimer,
    Ticket,
    TimerFired,
)
from dlog.model.segment import Location, Segment, StreamKey
from dlog.ownership.claim import Claim, Claimant, ClaimOptions, ClaimState

PATIENCE_S = 5.0  # shorter than the caller's timeout
PATIENCE_TIMER = ("patience",)
RETRY_TIMER = ("retry",)


class _Phase(enum.Enum):
    IDLE = "idle"
    CLAIMING = "claiming"
    ENDING = "ending"
    MARKING = "marking"
    ENDED = "ended"


class StreamDeletion:
    """Deletes one stream under one claim. patience_s: how long it tries to end the segments."""

    def __init__(
        self,
        key: StreamKey,
        claimant: Claimant,
        options: OwnerOptions | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        options = options or OwnerOptions()
        self._key = key
        self._options = options
        self._patience_s = patience_s
        self._claim = Claim(
            key,
            claimant,
            ClaimOptions(answer_timeout_s=options.answer_timeout_s, retry_after_s=options.retry_after_s),
        )
        self._register: StreamMetadataUpdater | None = None
        self._phase = _Phase.IDLE
        self._ticket: Ticket | None = None
        self._force = False
        self._asked: dict[Location, Segment] = {}  # by location: the request to end it is in flight
        self._failed: dict[Location, Segment] = {}  # by location: to be requested again
        self._ended: set[Location] = set()  # locations
        self._obstacle: DLogError | None = None
        self._out: list[Effect] = []

    @property
    def has_ended(self) -> bool:
        return self._phase is _Phase.ENDED

    def handle(self, fact: Fact) -> list[Effect]:
        self._out = []
        self._note(fact)
        self._settle()
        return self._out

    def _note(self, fact: Fact) -> None:
        match fact:
            case Asked(ticket, DeleteStream(incarnation, if_epoch, force)):
                assert self._phase is _Phase.IDLE, "one instance handles one request"
                self._ticket, self._force, self._phase = ticket, force, _Phase.CLAIMING
                self._out += self._claim.begin(if_epoch, incarnation)
            case _ if self._phase is _Phase.ENDED:
                return
            case MetadataSeen():
                self._handle_metadata(fact)
            case TimerFired(key=key):
                if key == PATIENCE_TIMER:
                    self._give_up()
                elif key == RETRY_TIMER:
                    self._ask_to_end(self._failed)
                else:
                    self._handle_metadata(fact)
            case Received(_, SegmentRecovered(location=location)):
                self._segment_ended(location)
            case Received(_, StoreFailed(RecoverSegment(segment), error)):
                self._failed_to_end(segment, error)
            case PeerLost():
                self._failed.update(self._asked)
                self._asked.clear()
                self._out.append(SetTimer(RETRY_TIMER, self._options.retry_after_s))
            case _:
                raise AssertionError(f"not a fact of this machine: {fact}")

    def _handle_metadata(self, fact: MetadataSeen | TimerFired) -> None:
        self._out += self._claim.handle(fact)
        if self._register is not None:
            self._out += self._register.handle(fact)

    # ---- settle -----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Derive every consequence of the facts so far."""
        if self._phase in (_Phase.IDLE, _Phase.ENDED):
            return
        if self._register is None and self._claim.state is ClaimState.HELD:
            self._register = StreamMetadataUpdater(self._claim, self._options)
            self._end_segments()
        while self._register is not None and self._claim.error is None and not self.has_ended:
            self._out += self._register.effects()
            done = self._register.take_done()
            for _, error in self._register.take_refused():
                self._end(error)
            if not done:
                break
            if any(isinstance(change, MarkDeleted) for change in done):
                self._marked()
        if self._claim.error is not None:
            self._lost(self._claim.error)

    def _end_segments(self) -> None:
        """Fence and end every segment in progress that is not ended yet; if none is left, mark the stream."""
        assert self._register is not None
        self._phase = _Phase.ENDING
        self._out.append(SetTimer(PATIENCE_TIMER, self._patience_s))
        known = self._ended | self._asked.keys() | self._failed.keys()
        self._ask_to_end({s.location: s for s in self._register.value.in_progress if s.location not in known})
        self._mark_if_ended()

    def _ask_to_end(self, segments: dict[Location, Segment]) -> None:
        for location, segment in list(segments.items()):
            self._failed.pop(location, None)
            self._asked[location] = segment
            self._out.append(Send(STORE, RecoverSegment(segment)))

    def _segment_ended(self, location: Location) -> None:
        if self._asked.pop(location, None) is not None:
            self._ended.add(location)
        self._mark_if_ended()

    def _failed_to_end(self, segment: Segment, error: DLogError) -> None:
        if self._asked.pop(segment.location, None) is None:
            return
        if error.remedy is Remedy.STOP:  # the segment does not exist any more, or its store has fenced and removed it
            self._ended.add(segment.location)
            self._mark_if_ended()
            return
        self._obstacle = error
        self._failed[segment.location] = segment
        if error.remedy is Remedy.REOPEN and self._register is not None:
            self._register.want(Refresh())  # the fencing party may have claimed the stream
        if error.remedy in (Remedy.RETRY, Remedy.REOPEN):
            self._out.append(SetTimer(RETRY_TIMER, self._options.retry_after_s))
        elif not self._asked:
            self._give_up()

    def _mark_if_ended(self) -> None:
        if self._phase is _Phase.ENDING and not self._asked and not self._failed:
            self._mark(MarkDeleted(frozenset(self._ended)))

    def _give_up(self) -> None:
        """Some segments cannot be ended: fail, or with `force` mark the stream anyway."""
        if self._phase is not _Phase.ENDING:
            return
        if self._force:
            self._mark(MarkDeleted(None))
            return
        numbers = sorted({segment.number for segment in (*self._asked.values(), *self._failed.values())})
        reason = self._obstacle.message if self._obstacle is not None else "its store does not answer"
        is_damaged = self._obstacle is not None and self._obstacle.remedy is Remedy.REPORT
        advice = "start their bookies, or mend their store, and delete again, or use force"
        if is_damaged:
            advice = "they are damaged, so stop write proxies that cannot reach ZooKeeper, and use force"
        self._end(
            SegmentNotEndedError(
                f"not deleted, segments cannot be ended: {reason}; {advice}: with it an owner that is cut off may "
                f"acknowledge records that can never be read: stream={self._key.stream} segments={numbers}"
            )
        )

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _mark(self, change: MarkDeleted) -> None:
        assert self._register is not None
        self._phase = _Phase.MARKING
        self._register.want(change)

    def _marked(self) -> None:
        assert self._register is not None
        if self._register.value.owner.deleted:
            self._end(None)
        else:
            self._end_segments()

    def _lost(self, error: DLogError) -> None:
        """The claim is lost. If this incarnation is gone, it is deleted, by us or by another."""
        self._end(None if isinstance(error, StreamNotFoundError) else error)

    def _end(self, error: DLogError | None) -> None:
        if self._phase is _Phase.ENDED:
            return
        self._phase = _Phase.ENDED
        assert self._ticket is not None
        self._out += [CancelTimer(PATIENCE_TIMER), CancelTimer(RETRY_TIMER), Answer(self._ticket, error)]
