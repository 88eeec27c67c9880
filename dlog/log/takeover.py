"""Take-over of a stream, and of the owner's own segment after it failed: recover, complete, start the next, serve.

Invariants:
- nothing is served before every segment in progress is fenced and ended, the last txid and the producer table are
  known, and one compare-and-set has completed these segments and listed the next one;
- after a failure, entries in flight that recovery found are answered as written; the other batches are appended again
  in their old order;
- the end of a segment that its store has removed is not reported to followers: they may know of more entries in it than
  this owner, which cannot read it any more.
"""

from __future__ import annotations

from typing import Protocol

from dlog.errors import ClaimLostError, DLogError, NotEnoughBookiesError, UnavailableError
from dlog.events import LacMoved, SegmentRemoved, StreamReady, StreamStalled
from dlog.log.changes import AlterSettings, CompleteSegment, DropEmptySegment, Refresh, StartSegment, allocated_name
from dlog.log.messages import EntriesRead, ImportStages, SegmentRecovered, StoreFailed, WriteBatch
from dlog.log.owner_context import OwnerContext, Phase
from dlog.log.recovery import StreamRecovery
from dlog.machine import Answer, Emit, SetTimer, Ticket
from dlog.model.ids import NO_ENTRY, TXID_END_OF_STREAM
from dlog.model.segment import Segment
from dlog.stores.contract import StoreTooSmallError

RECHECK_TIMER = ("mend",)


class Writer(Protocol):
    """What the components of a StreamOwnerMachine call of it."""

    def serving(self, segment: Segment) -> None:
        """The segment takes entries from now on."""

    def refusal(self) -> DLogError | None:
        """The error for new writes; None while they are admitted."""

    def write(self, ticket: Ticket, request: WriteBatch, *, is_confirmed: bool = False) -> None:
        """Admit a batch, or refuse it."""

    def defer(self, ticket: Ticket, request: ImportStages) -> None:
        """Judge the request again once the claim is confirmed."""


class _Nobody:
    def serving(self, segment: Segment) -> None:
        """Do nothing."""

    def refusal(self) -> DLogError | None:
        return None

    def write(self, ticket: Ticket, request: WriteBatch, *, is_confirmed: bool = False) -> None:
        """Do nothing."""

    def defer(self, ticket: Ticket, request: ImportStages) -> None:
        """Do nothing."""


NO_OWNER = _Nobody()  # in the place of the owner after `let_go`


class Takeover:
    """Recovers the stream and starts its next segment. writer: the owner."""

    __slots__ = (
        "_context",
        "_last_change",
        "_mend_after_s",
        "_recovery",
        "_writer",
        "early",
        "early_bytes",
        "obstacle",
        "table_known",
    )

    def __init__(self, context: OwnerContext, writer: Writer) -> None:
        self.table_known = False
        self.early: list[tuple[Ticket, WriteBatch]] = []  # batches that wait for the producer table
        self.early_bytes = 0
        self.obstacle: UnavailableError | None = None  # why there is no segment, if an operator must act
        self._context = context
        self._writer: Writer = writer
        self._recovery: StreamRecovery | None = None
        self._last_change: StartSegment | Refresh | None = None  # ends the recovery, once queued; Refresh: as sealed
        self._mend_after_s = 0.0

    def let_go(self) -> None:
        """Drop the reference to the owner."""
        self._writer = NO_OWNER

    # ---- recovering -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Recover the stream as metadata now shows it. The phase is RECOVERING."""
        t = self._context
        self._last_change = None
        t.report_dropped()
        pending = t.writing.under_way
        if pending is not None and t.value.has_lost(pending.segment):
            t.claim.lose(ClaimLostError(f"segment truncated while entries were in flight: segment={pending.segment}"))
            return
        table = None if self.table_known else t.table
        under_way = {} if pending is None else {pending.segment: pending.location}
        self._recovery = StreamRecovery(t.value, t.options, t.stores, table, under_way)
        t.out += self._recovery.begin()

    def restart(self) -> None:
        """The current segment is completed, stages are listed: start the next one, unless recovering."""
        t = self._context
        if t.phase in (Phase.SERVING, Phase.DRAINING):
            t.enter(Phase.RECOVERING)
            t.writing.lose_segment()
            self.stop()
            self.begin()

    def handle(self, message: SegmentRecovered | EntriesRead | StoreFailed) -> None:
        if self._recovery is not None:
            self._context.out += self._recovery.handle(message)

    def ask_again(self) -> None:
        """The recovery's timer fired: repeat failed requests."""
        if self._recovery is not None:
            self._context.out += self._recovery.retry()

    def stall(self, error: DLogError) -> None:
        """The store has too few bookies for recovery or for a new segment, is out of reach, or refuses new segments for
        its settings. Refuse waiting batches, which may be sent again, tell the reason to those in flight, which may be
        written, and keep trying. While serving, do nothing: the current segment grows beyond its size."""
        t = self._context
        if t.phase is not Phase.RECOVERING:
            return
        needs_bookies = isinstance(error, StoreTooSmallError)
        t.out.append(Emit(StreamStalled(t.stream, error.message, needs_bookies)))
        kind = NotEnoughBookiesError if needs_bookies else UnavailableError
        self.obstacle = kind(f"not written, no segment to write to: {error.message}")
        t.writing.refuse_waiting(self.obstacle, t.out)
        in_doubt = kind(f"may be written, the store has not confirmed it: {error.message}", outcome_unknown=True)
        t.writing.report_in_doubt(in_doubt, t.out)
        t.out.extend(Answer(ticket, self.obstacle) for ticket, _ in self.early)
        self.early.clear()
        self.early_bytes = 0

    def progress(self) -> None:
        """When recovered: complete the open segments and start the next, in one change."""
        t, recovery = self._context, self._recovery
        if recovery is None or self._last_change is not None:
            return
        if recovery.error is not None:
            t.claim.lose(recovery.error)
            return
        if not recovery.are_ends_known:
            return
        is_sealed = self._txid_floor(recovery) == TXID_END_OF_STREAM
        if not is_sealed:
            self._have_next_created(recovery)
        if not recovery.is_done:
            return
        self._learn(recovery, is_sealed)
        if is_sealed:
            self._complete(recovery)
            self._last_change = Refresh()
            t.register.want(self._last_change)
            return
        if t.register.wants(AlterSettings):
            return  # once that is done, the next segment may have to be created anew
        ahead = t.allocation.take(recovery.next_number)
        if ahead is not None:
            self._complete(recovery)
            floor = self._txid_floor(recovery)
            segment = t.in_progress(recovery.next_number, ahead.location, floor)
            self._last_change = StartSegment(segment, ahead.name)
            t.register.want(self._last_change)

    def started(self, segment: Segment) -> None:
        """The segment is listed; if this recovery started it, serve."""
        t, recovery, change = self._context, self._recovery, self._last_change
        if recovery is None or not isinstance(change, StartSegment) or change.segment.location != segment.location:
            return  # the store failed meanwhile: the next recovery finds the segment in the list
        self.stop()
        t.enter(Phase.SERVING)
        t.open(segment, segment.first_txid)
        t.out.append(Emit(StreamReady(t.stream, t.claim.epoch, segment.number, recovery.recovered)))
        self._writer.serving(segment)

    @property
    def has_found_end_of_stream(self) -> bool:
        """Whether the log ends with the end of the stream, which is being written to metadata."""
        return isinstance(self._last_change, Refresh)

    @property
    def is_stalled(self) -> bool:
        """Whether the log is read, and only the store keeps the next segment from being started."""
        return self.obstacle is not None and self._recovery is not None and self._recovery.is_done

    def stop(self) -> None:
        self._recovery = self._last_change = None
        self.obstacle = None

    def _have_next_created(self, recovery: StreamRecovery) -> None:
        """Create the next segment as soon as its number is known, while the log is being read."""
        t = self._context
        other = t.allocation.discard_other(recovery.next_number, t.value.settings)
        if other is not None:
            t.disposal.add(other)
        t.out += t.allocation.want(recovery.next_number, t.claim.epoch, t.value.settings)

    def _learn(self, recovery: StreamRecovery, is_sealed: bool) -> None:
        """Use the result: report segments' ends, answer batches in flight that survived, admit early ones.

        Followers are notified before that: a reader that starts after an answer must see the batch.
        """
        t = self._context
        self.table_known = True
        for number, end in recovery.ends.items():
            if end is not None and number not in recovery.removed:
                t.out.append(Emit(LacMoved(t.stream, number, end.last_entry, True)))
        t.out.extend(Emit(SegmentRemoved(t.stream, s.number, str(s.location))) for s in recovery.removed.values())
        t.writing.packer.saw_time(recovery.unix_ms)
        t.writing.resolve(recovery.ends, recovery.locations(), t.out)
        t.writing.next_entry_floor = (recovery.next_number, 0)
        if not is_sealed:
            t.writing.txid = max(t.writing.txid, self._txid_floor(recovery))
            self.admit_early()

    def admit_early(self) -> None:
        """Admit the batches that waited for the producer table, in order."""
        early, self.early, self.early_bytes = self.early, [], 0
        for ticket, request in early:
            self._writer.write(ticket, request)

    def _txid_floor(self, recovery: StreamRecovery) -> int:
        """The lowest txid that may be assigned: the last of completed segments or of the log."""
        found = (end.last_txid for end in recovery.ends.values() if end is not None)
        return max(self._context.value.max_txid, 0, *found)

    def _complete(self, recovery: StreamRecovery) -> None:
        t = self._context
        ends, locations = recovery.ends, recovery.locations()
        for number in recovery.misstated:
            end, location = ends[number], locations[number]
            if end is not None:
                t.register.want(CompleteSegment(number, location, end, t.unix_ms))
                continue
            t.register.want(DropEmptySegment(number, location, allocated_name(location)))
            # Before its number is reported again: followers identify a segment by its number.
            t.out.append(Emit(LacMoved(t.stream, number, NO_ENTRY, True)))

    # ---- own segment failed -----------------------------------------------------------------------------------------

    def trouble(self) -> None:
        """The current segment failed: read the claim, after a back-off if repeated, and recover if it still stands."""
        t = self._context
        t.enter(Phase.RECOVERING)
        t.writing.lose_segment()
        self.stop()
        if self._mend_after_s:
            t.out.append(SetTimer(RECHECK_TIMER, self._mend_after_s))
        else:
            self.look_again()
        least, most = t.options.retry_after_s, t.options.retry_after_max_s
        self._mend_after_s = min(max(least, self._mend_after_s * 2), most)

    def calm(self) -> None:
        """The store confirms entries: reset the back-off."""
        self._mend_after_s = 0.0

    def look_again(self) -> None:
        """Read the stream again; `refreshed` goes on if the claim still stands."""
        if self._context.phase is Phase.RECOVERING and self._recovery is None:
            self._context.register.want(Refresh())

    def refreshed(self) -> None:
        """Start recovery, unless a StartSegment is queued: the Refresh after it comes here again."""
        t = self._context
        if t.phase is Phase.RECOVERING and self._recovery is None and not t.register.wants(StartSegment):
            self.begin()
