"""What an owner changes in its stream's metadata, as values.

The law of this room: a change is a function of the stream as it stands, and applying it twice is applying it once. So
a change whose outcome is unknown may be applied again to whatever a new read shows, and changes that wait together
travel in one compare-and-set. None of them looks at who owns the stream: dlog/log/register.py does, before each write.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlog.model.dlsn import DLSN
from dlog.model.ids import EntryId, SegmentNumber, Txid
from dlog.model.segment import LEDGER, Segment, StreamMetadata, Truncation
from dlog.model.sink import SINKS_MAX, SinkRecord, Standing, standing


@dataclass(frozen=True, slots=True)
class Refresh:
    """Changes nothing; done once the stream was read anew and is still ours."""

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value


@dataclass(frozen=True, slots=True)
class Touch:
    """Write the stream as it is: metadata then says when, by its own clock."""

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value


@dataclass(frozen=True, slots=True)
class StartSegment:
    """Put a segment in progress into the list. Its place is allocated no longer.

    Changes nothing if the number was given to another place meanwhile (see `took_place`): somebody who does not ask for
    the claim, a Java writer, was there before us.
    """

    segment: Segment
    allocated: str  # what `allocated` held for it, "" if nothing

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        if value.segment(self.segment.number) is not None:
            return value
        allocated = "" if self.allocated and value.allocated == self.allocated else value.allocated
        return replace(value.with_segment(self.segment), allocated=allocated)

    def took_place(self, value: StreamMetadata) -> bool:
        """Whether the list has it."""
        present = value.segment(self.segment.number)
        return present is not None and present.place == self.segment.place


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """What a segment holds, known at its end."""

    last_entry: EntryId
    last_slot: int
    last_txid: Txid
    records: int


@dataclass(frozen=True, slots=True)
class CompleteSegment:
    """Record the end of a segment; the stream's highest txid follows a real last txid, never a guess.

    The end is the store's, for good. A Java writer that was fenced may have completed its segment at another one, with
    records counted that are in no ledger: that is put right.
    """

    number: SegmentNumber
    place: str
    end: SegmentEnd
    unix_ms: int

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        segment = value.segment(self.number)
        if segment is None or segment.place != self.place:
            return value
        ended = replace(
            segment,
            last_txid=self.end.last_txid,
            last_entry=self.end.last_entry,
            last_slot=self.end.last_slot,
            record_count=self.end.records,
        )
        if not segment.completed:
            start = _start_sequence_id(value, self.number)
            ended = replace(ended, completed=True, completed_unix_ms=self.unix_ms, start_sequence_id=start)
        return replace(value.with_segment(ended), max_txid=Txid(max(value.max_txid, self.end.last_txid)))


def _start_sequence_id(value: StreamMetadata, number: int) -> int:
    """Of segment `number`: records of the stream before it, as far as the list counts them."""
    before = value.segment(number - 1) or value.truncated_segment(number - 1)
    if before is None or not before.completed or before.start_sequence_id < 0:
        return 0
    return before.start_sequence_id + before.record_count


@dataclass(frozen=True, slots=True)
class DropEmptySegment:
    """Take a segment without a single entry out of the list; its number is given to the next one, which is what other
    writers and readers of the format expect (numbers in the list are dense)."""

    number: SegmentNumber
    place: str
    remember: str  # as `allocated` names it: kept there until deleted, if the slot is free

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        segment = value.segment(self.number)
        if segment is None or segment.place != self.place or segment.completed:
            return value
        return replace(value.without_segment(self.number), allocated=value.allocated or self.remember)


@dataclass(frozen=True, slots=True)
class Allocate:
    """Remember a place created ahead of need, so that whoever comes next can delete it."""

    allocated: str

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return replace(value, allocated=self.allocated)


@dataclass(frozen=True, slots=True)
class Deallocate:
    """The place is deleted; forget it."""

    allocated: str

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return replace(value, allocated="") if value.allocated == self.allocated else value


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Records before `dlsn` may go: the trim point moves to the segment that holds it, which becomes PARTIAL, be it in
    progress or not. Only moves forward. dlsn: not beyond what was confirmed when this was wanted.

    The trim point stops at the last segment of the list and at any in progress: the list keeps what the next one
    follows. One small change however many segments are truncated; `MarkTruncated` and `ForgetTruncated` follow it.
    """

    dlsn: DLSN

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        holding = value.segment(self.dlsn.segment)
        is_behind = holding is not None and holding.completed and holding.last_dlsn < self.dlsn
        value = value.trimmed(self.dlsn.segment + is_behind)
        if not value.segments:
            return value
        first = value.segments[0]
        point = min(self.dlsn, first.last_dlsn.next_slot()) if first.completed else self.dlsn
        if point.segment != first.number or point <= first.first_dlsn:
            return value
        partial = replace(first, truncation=Truncation.PARTIAL, min_entry=point.entry, min_slot=point.slot)
        return value.with_segment(partial)


@dataclass(frozen=True, slots=True)
class Expire:
    """Completed segments are truncated for which the stream's retention is over at `now_unix_ms`, oldest first, never
    the last of the list. A retention that was changed meanwhile counts as it is now.
    """

    now_unix_ms: int

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        for segment in value.segments:
            expires_ms = value.expires_unix_ms(segment)
            if expires_ms is None or self.now_unix_ms <= expires_ms:
                return value.trimmed(segment.number)
        return value.trimmed(value.segments[-1].number) if value.segments else value


@dataclass(frozen=True, slots=True)
class MarkTruncated:
    """Say of the truncated segments up to this number, in DistributedLog's form, that they are: Java readers, who know
    no trim point, skip them from then on, and their data may be deleted."""

    upto: SegmentNumber

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value.with_marks(self.upto)


@dataclass(frozen=True, slots=True)
class ForgetTruncated:
    """The stores have deleted the truncated segments up to this number; take them out of metadata."""

    upto: SegmentNumber

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value.without_truncated(self.upto)


@dataclass(frozen=True, slots=True)
class Stage:
    """A closed segment that is in no list yet, as it was found at its store."""

    store: str
    place: str
    first_txid: Txid
    end: SegmentEnd


@dataclass(frozen=True, slots=True)
class TakeSegmentsIn:
    """Put what was written elsewhere into the list, behind all there is, and remember whose batch it was.

    Changes nothing while a segment is in progress (somebody else writes), if the stream is sealed, if a segment lies at
    a place already, or lay there before it was moved, or if the batch is not the sink's next one: see `took_place`.
    """

    stages: tuple[Stage, ...]
    record: SinkRecord | None
    unix_ms: int

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        record = self.record
        if value.in_progress or value.is_sealed or any(value.segment_at(s.store, s.place) for s in self.stages):
            return value
        if record is not None and not may_remember(value, record, or_repeated=True):
            return value
        number, start = value.next_number(), _start_sequence_id(value, value.next_number())
        listed: list[Segment] = []
        for stage in self.stages:
            segment = Segment(
                number=number,
                place=stage.place,
                store=stage.store,
                first_txid=stage.first_txid,
                completed=True,
                last_txid=stage.end.last_txid,
                last_entry=stage.end.last_entry,
                last_slot=stage.end.last_slot,
                record_count=stage.end.records,
                completed_unix_ms=self.unix_ms,
                start_sequence_id=start,
            )
            listed.append(segment)
            number, start = SegmentNumber(number + 1), start + stage.end.records
        last_txids = [stage.end.last_txid for stage in self.stages]
        value = replace(value.with_segment(*listed), max_txid=Txid(max(value.max_txid, *last_txids)))
        return value if record is None else value.with_sink(record)

    def took_place(self, value: StreamMetadata) -> bool:
        """Whether the list has it, or the sink is known to have got this far."""
        if self.record is not None:
            return standing(value.sink(self.record.last.sink), self.record.last) is Standing.DONE
        return all(value.segment_at(stage.store, stage.place) is not None for stage in self.stages)


@dataclass(frozen=True, slots=True)
class RememberSink:
    """Remember which batch a sink appends next, before it does. Changes nothing if it is not its next one."""

    record: SinkRecord

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value.with_sink(self.record) if may_remember(value, self.record) else value


def may_remember(value: StreamMetadata, record: SinkRecord, *, or_repeated: bool = False) -> bool:
    """Whether this is the next batch of its sink (or the one that was to be appended), and there is room for it."""
    known = value.sink(record.last.sink)
    if known is None and len(value.sinks) >= SINKS_MAX:
        return False
    verdict = standing(known, record.last)
    return verdict is Standing.NEW or (or_repeated and verdict is Standing.REPEATED)


@dataclass(frozen=True, slots=True)
class Relocate:
    """A completed segment lies elsewhere from now on, the same entries under the same ids."""

    number: SegmentNumber
    store: str
    place: str
    to_store: str
    to_place: str

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        segment = value.segment(self.number)
        if segment is None or not segment.completed:
            return value
        if (segment.store, segment.place) != (self.store, self.place):
            return value
        former = segment.place if self.store == LEDGER else segment.former_ledger
        moved = replace(segment, store=self.to_store, place=self.to_place)
        return value.with_segment(replace(moved, former_ledger="" if self.to_store == LEDGER else former))

    def took_place(self, value: StreamMetadata) -> bool:
        segment = value.segment(self.number)
        return segment is not None and (segment.store, segment.place) == (self.to_store, self.to_place)


@dataclass(frozen=True, slots=True)
class MarkReleased:
    """Hand the stream back: anybody may claim it without evidence."""

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return replace(value, owner=replace(value.owner, released=True))


@dataclass(frozen=True, slots=True)
class MarkDeleted:
    """Delete the stream: from this change on it is missing to everybody.

    ended: places of the segments in progress that are fenced and ended; None: whatever is in progress. Changes nothing
    while another segment is in progress: somebody who does not ask for the claim, a Java writer, has begun it since.
    """

    ended: frozenset[str] | None

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        if self.ended is not None and any(segment.place not in self.ended for segment in value.in_progress):
            return value
        return replace(value, owner=replace(value.owner, deleted=True))


Change = (
    Refresh
    | Touch
    | StartSegment
    | CompleteSegment
    | DropEmptySegment
    | Allocate
    | Deallocate
    | TruncateTo
    | Expire
    | MarkTruncated
    | ForgetTruncated
    | TakeSegmentsIn
    | RememberSink
    | Relocate
    | MarkReleased
    | MarkDeleted
)


def allocated_name(store: str, place: str) -> str:
    """How `StreamMetadata.allocated` names a place: DistributedLog's plain ledger id, or store and place."""
    return place if store == LEDGER else f"{store}:{place}"


def allocated_place(name: str) -> tuple[str, str]:
    """Store and place of what `allocated_name` wrote."""
    store, colon, place = name.partition(":")
    return (store, place) if colon else (LEDGER, name)
