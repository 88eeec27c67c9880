"""Truncation: one change moves the truncation point; the segments before it are deleted in portions afterwards.

    truncated by a request or by retention -> marked for Java readers -> deleted at their stores -> out of metadata

Invariants:
- the truncation point only moves forward, and nothing before it is read again;
- a segment's data are deleted only after metadata marks it, also in DistributedLog's format, as truncated;
- segments leave metadata oldest first, after their stores confirmed the deletion, at most `truncate_portion` in one
  change, which bounds the size of a change for any number of truncated segments.

A new owner continues with the truncated segments that metadata still lists.
"""

from __future__ import annotations

from dlog.errors import DLogError, NotReadyError, PositionBeyondEndError
from dlog.events import SegmentDeleted
from dlog.log.changes import Deallocate, ForgetTruncated, MarkTruncated, TruncateTo, allocated_location
from dlog.log.owner_context import OwnerContext, Phase
from dlog.log.segment_deletion import PendingDeletion
from dlog.machine import Answer, Emit, Ticket
from dlog.model.dlsn import DLSN, of
from dlog.model.segment import Location, Segment


class StreamTruncation:
    __slots__ = ("_context", "_deleting", "_portion", "_waiting")

    def __init__(self, context: OwnerContext) -> None:
        self._context = context
        self._waiting: tuple[tuple[Ticket, TruncateTo], ...] = ()
        self._portion: tuple[Segment, ...] = ()  # truncated segments being deleted, by number
        self._deleting: dict[Location, None] = {}  # not confirmed as deleted

    @property
    def end(self) -> DLSN | None:
        """The DLSN after the last confirmed record. None while it is not certain:
        - while the log is being recovered, which may also show that a Java writer listed too low an end;
        - while the last segment listed is not ours but a Java writer's, which took over without a claim;
        - while none is listed: the number of a dropped empty segment is used again, perhaps by a Java writer that this
          owner does not know of."""
        t = self._context
        segment, listed = t.writing.current, t.value.segments
        if segment is not None:
            if listed and (listed[-1].number, listed[-1].location) != (segment.number, segment.location):
                return None
            return of(segment.number, segment.lac + 1, 0)
        if t.phase is Phase.RECOVERING or t.value.in_progress or not t.value.segments:
            return None
        return of(t.value.segments[-1].number + 1, 0, 0)

    def ask(self, ticket: Ticket, dlsn: DLSN, *, is_confirmed: bool = False) -> bool:
        """Truncate; answered with the first readable DLSN once metadata is changed. A point beyond the end is refused:
        records written later would be lost as soon as they are acknowledged. While the end is not certain, which lasts
        as long as a stream has no space, the point is at most the start of the first segment in progress, or of the
        last one.
        Returns False, without an answer, if it is to be refused and the claim is not confirmed yet: call again with
        `is_confirmed` (see dlog/log/deferred_refusals.py)."""
        t = self._context
        end = self.end if t.is_held else None
        if end is None and t.is_held and t.value.segments:
            start = of((t.value.in_progress or t.value.segments[-1:])[0].number, 0, 0)
            if dlsn > start:
                what = f"the segment at {start} is being recovered: truncate to its start, or try again"
                t.out.append(Answer(ticket, NotReadyError(what)))
                return True
            end = start
        if end is None:
            t.out.append(Answer(ticket, NotReadyError("the stream is being claimed or recovered, try again")))
        elif dlsn > end and not is_confirmed:
            return False
        elif dlsn > end:
            text = f"the truncation point is beyond the stream's end at {end}: stream={t.stream} dlsn={dlsn}"
            t.out.append(Answer(ticket, PositionBeyondEndError(text, end=str(end))))
        else:
            change = TruncateTo(dlsn)
            self._waiting += ((ticket, change),)
            t.register.want(change)
        return True

    def done(self, change: TruncateTo) -> None:
        """The truncation point is moved."""
        self._answer(change, self._context.value.first_dlsn)
        self.delete_next()

    def refused(self, change: TruncateTo, error: DLogError) -> None:
        """Metadata refused the change."""
        self._answer(change, error)

    def _answer(self, change: TruncateTo, result: DLSN | DLogError) -> None:
        answered = [ticket for ticket, asked in self._waiting if asked is change]
        self._waiting = tuple(waiting for waiting in self._waiting if waiting[1] is not change)
        self._context.out.extend(Answer(ticket, result) for ticket in answered)

    def delete_next(self) -> None:
        """Start deleting the oldest truncated segments, unless some are being deleted."""
        t = self._context
        if t.value.truncated and not self._portion:
            self._portion = t.value.truncated[: t.options.truncate_portion]
            t.register.want(MarkTruncated(self._portion[-1].number))

    def marked(self) -> None:
        """The portion is marked, so no reader starts on it: delete its data, also where a moved segment was written:
        once metadata no longer names that copy, it could be imported as a stage again."""
        for segment in self._portion:
            for location in segment.locations:
                self._deleting[location] = None
                self._context.disposal.add(PendingDeletion(location, segment.number, None))

    def deleted(self, deletion: PendingDeletion | None) -> None:
        """A store carried `deletion` out; after the last one of the portion, remove the portion from metadata."""
        t = self._context
        if deletion is None:
            return
        if deletion.then is not None:
            t.register.want(deletion.then)
        if deletion.location in self._deleting:
            del self._deleting[deletion.location]
            if not self._deleting:
                t.register.want(ForgetTruncated(self._portion[-1].number))

    def forgotten(self) -> None:
        """The portion is removed from metadata."""
        t = self._context
        portion, self._portion = self._portion, ()
        t.out.extend(Emit(SegmentDeleted(t.stream, s.number, s.name)) for s in portion)
        self.delete_next()

    def delete_allocated(self, name: str, number: int) -> None:
        """Delete the segment that `allocated` names, and then clear `allocated`."""
        self._context.disposal.add(PendingDeletion(allocated_location(name), number, Deallocate(name)))

    def fail(self, error: DLogError) -> None:
        self._context.out.extend(Answer(ticket, error) for ticket, _ in self._waiting)
        self._waiting = ()
