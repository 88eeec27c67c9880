"""Changes that an owner makes to its stream's metadata, as values.

Invariants:
- a change is a function of the stream's current metadata and is idempotent: after an unknown outcome it is applied
  again to what a new read shows, and queued changes are written in one compare-and-set;
- no change checks the claim: dlog/log/metadata_updater.py does, before each write.
"""

from __future__ import annotations

from dataclasses import replace

from dlog.model.dlsn import DLSN
from dlog.model.ids import EntryId, SegmentNumber, Txid
from dlog.model.segment import LEDGER, Location, Segment, StreamMetadata, StreamSettings, Truncation
from dlog.model.sink import SINKS_MAX, SinkRecord, Standing, standing
from dlog.values import value


@value
class Refresh:
    """Changes nothing; done once the stream was read again and the claim still stands."""

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value


@value
class Touch:
    """Write the stream unchanged: metadata then shows the time of that write by its own clock."""

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value


@value
class StartSegment:
    """Add an in-progress segment to the list and clear it from `allocated`.

    Changes nothing (see `was_made`) if a Java writer, which does not check our claim, was faster: if the list has this
    number or a greater one, truncated or not (the segment of this number may be truncated and forgotten by now), or a
    segment in progress that nobody fenced. Of an empty list all segments were empty, and their numbers are reused.

    follows: the segment that is closed only after this one is listed; no other one may be in progress.
    """

    segment: Segment
    allocated: str  # the name under which `allocated` may hold it, "" if it does not
    follows: Location | None = None

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        newest = (value.segments or value.truncated)[-1:]
        if newest and self.segment.number <= newest[0].number:
            return value
        if any(segment.location != self.follows for segment in value.in_progress):
            return value
        allocated = "" if self.allocated and value.allocated == self.allocated else value.allocated
        return replace(value.with_segment(self.segment), allocated=allocated)

    def was_made(self, value: StreamMetadata) -> bool:
        """Whether the list holds this segment."""
        present = value.segment(self.segment.number)
        return present is not None and present.location == self.segment.location


@value
class SegmentEnd:
    """The contents of an ended segment."""

    last_entry: EntryId
    last_slot: int
    last_txid: Txid
    records: int


@value
class CompleteSegment:
    """Record the end of a segment, and raise the stream's highest txid to its last one.

    The end is final, as its store decided it. A fenced Java writer may have completed its segment at another entry and
    counted records that are in no ledger: this corrects it.
    """

    number: SegmentNumber
    location: Location
    end: SegmentEnd
    unix_ms: int

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        segment = value.segment(self.number)
        if segment is None or segment.location != self.location:
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
    """Number of records before segment `number`, as far as the list shows it."""
    before = value.segment(number - 1) or value.truncated_segment(number - 1)
    if before is None or not before.completed or before.start_sequence_id < 0:
        return 0
    return before.start_sequence_id + before.record_count


@value
class DropEmptySegment:
    """Remove a segment without entries from the list. Its number is reused, as other writers and readers of the format
    expect (numbers in the list are dense)."""

    number: SegmentNumber
    location: Location
    remember: str  # its name in `allocated`, which keeps it until it is deleted, unless that holds another

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        segment = value.segment(self.number)
        if segment is None or segment.location != self.location or segment.completed:
            return value
        return replace(value.without_segment(self.number), allocated=value.allocated or self.remember)


@value
class Allocate:
    """Record a segment created in advance in `allocated`, so that the next owner can delete it."""

    allocated: str

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return replace(value, allocated=self.allocated)


@value
class Deallocate:
    """Clear `allocated`: the segment is deleted."""

    allocated: str

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return replace(value, allocated="") if value.allocated == self.allocated else value


@value
class TruncateTo:
    """Move the truncation point to `dlsn`, only forward: earlier segments become truncated, the one that holds it
    PARTIAL, in progress or not. dlsn: not beyond the end of confirmed records when this was queued.

    The first readable segment is never after the last segment or one in progress: the next segment's number follows
    from the list. One small change for any number of segments; `MarkTruncated` and `ForgetTruncated` follow.
    """

    dlsn: DLSN

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        holding = value.segment(self.dlsn.segment)
        is_behind = holding is not None and holding.completed and holding.last_dlsn < self.dlsn
        value = value.with_truncated_before(self.dlsn.segment + is_behind)
        if not value.segments:
            return value
        first = value.segments[0]
        point = min(self.dlsn, first.last_dlsn.next_slot()) if first.completed else self.dlsn
        if point.segment != first.number or point <= first.first_dlsn:
            return value
        partial = replace(first, truncation=Truncation.PARTIAL, min_entry=point.entry, min_slot=point.slot)
        return value.with_segment(partial)


@value
class Expire:
    """Truncate completed segments whose retention is over at `now_unix_ms`, oldest first, never the last in the list.
    Uses the stream's current retention.
    """

    now_unix_ms: int

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        for segment in value.segments:
            expires_ms = value.expires_unix_ms(segment)
            if expires_ms is None or self.now_unix_ms <= expires_ms:
                return value.with_truncated_before(segment.number)
        return value.with_truncated_before(value.segments[-1].number) if value.segments else value


@value
class MarkTruncated:
    """Mark the truncated segments up to this number in DistributedLog's format: Java readers then skip them, so their
    data may be deleted."""

    upto: SegmentNumber

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value.with_marks(self.upto)


@value
class ForgetTruncated:
    """Remove the truncated segments up to this number from metadata; the stores have deleted them."""

    upto: SegmentNumber

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value.without_truncated(self.upto)


@value
class Stage:
    """A closed segment that is in no list yet, as its store describes it."""

    location: Location
    first_txid: Txid
    end: SegmentEnd


@value
class ListImportedSegments:
    """Import stages: add them to the end of the list as completed segments, and record the sink's batch.

    Changes nothing while a segment is in progress (another writer is active), if the stream is sealed, if a stage's
    location is that of a segment, or was before the segment moved, or if the batch is not the sink's next: see
    `was_made`.
    """

    stages: tuple[Stage, ...]
    record: SinkRecord | None
    unix_ms: int

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        record = self.record
        if value.in_progress or value.is_sealed or any(value.segment_at(s.location) for s in self.stages):
            return value
        if record is not None and not may_remember(value, record, or_repeated=True):
            return value
        number, start = value.next_number(), _start_sequence_id(value, value.next_number())
        listed: list[Segment] = []
        for stage in self.stages:
            segment = Segment(
                number=number,
                name=stage.location.name,
                store=stage.location.store,
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

    def was_made(self, value: StreamMetadata) -> bool:
        """Whether the stages are listed; with a batch: whether the sink's record shows it, or a later one, as done."""
        if self.record is not None:
            return standing(value.sink(self.record.last.sink), self.record.last) is Standing.DONE
        return all(value.segment_at(stage.location) is not None for stage in self.stages)


@value
class RecordSinkBatch:
    """Record a sink's batch that is empty or about to be appended. Changes nothing if it is not the sink's next."""

    record: SinkRecord

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value.with_sink(self.record) if may_remember(value, self.record) else value


def may_remember(value: StreamMetadata, record: SinkRecord, *, or_repeated: bool = False) -> bool:
    """Whether this is its sink's next batch (or_repeated: or the recorded one) and there is room for the sink."""
    known = value.sink(record.last.sink)
    if known is None and len(value.sinks) >= SINKS_MAX:
        return False
    verdict = standing(known, record.last)
    return verdict is Standing.NEW or (or_repeated and verdict is Standing.REPEATED)


@value
class SetSegmentLocation:
    """Change the location of a completed segment; the copy has the same entries under the same ids.

    Changes nothing if the segment is not at `at`, or would move into a ledger where it was not written: its format in
    metadata, which Java reads too, could not name where it was written.
    """

    number: SegmentNumber
    at: Location
    to: Location

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        segment = value.segment(self.number)
        if segment is None or not segment.completed or segment.location != self.at:
            return value
        first = segment.locations[-1]
        if self.to.store == LEDGER and self.to != first:
            return value
        former = None if self.to == first else first
        return value.with_segment(replace(segment, store=self.to.store, name=self.to.name, former=former))

    def was_made(self, value: StreamMetadata) -> bool:
        segment = value.segment(self.number)
        return segment is not None and segment.location == self.to


@value
class AlterSettings:
    """Replace the stream's settings by `settings`, whose version is one above that of the settings they were made from.
    Changes nothing if the stream's settings have another version."""

    settings: StreamSettings

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        if value.settings.version != self.settings.version - 1:
            return value
        return replace(value, settings=self.settings)


@value
class MarkReleased:
    """Release the claim: any proxy may claim the stream without evidence."""

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return replace(value, owner=replace(value.owner, released=True))


@value
class MarkDeleted:
    """Mark the stream as deleted: from then on every read of it finds none.

    ended: locations of the in-progress segments that are fenced and ended; None: mark it anyway. Changes nothing while
    another segment is in progress: a Java writer, which does not check the claim, has started it since.
    """

    ended: frozenset[Location] | None

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        if self.ended is not None and any(segment.location not in self.ended for segment in value.in_progress):
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
    | ListImportedSegments
    | RecordSinkBatch
    | SetSegmentLocation
    | AlterSettings
    | MarkReleased
    | MarkDeleted
)


def allocated_name(location: Location) -> str:
    """A segment's name in `StreamMetadata.allocated`: a plain ledger id as in DistributedLog, or store:name."""
    return location.name if location.store == LEDGER else str(location)


def allocated_location(name: str) -> Location:
    """The location in a name made by `allocated_name`."""
    store, colon, in_store = name.partition(":")
    return Location(store, in_store) if colon else Location(LEDGER, name)
