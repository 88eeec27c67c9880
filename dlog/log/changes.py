"""What an owner changes in its stream's metadata, as values.

The law of this room: a change is a function of the stream as it stands, and applying it twice is applying it once. So
a change whose outcome is unknown may be applied again to whatever a new read shows, and changes that wait together
travel in one compare-and-set. None of them looks at who owns the stream: dlog/log/register.py does, before each write.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlog.model.dlsn import DLSN
from dlog.model.ids import EntryId, SegmentNumber, Txid
from dlog.model.segment import Segment, StreamMetadata, Truncation


@dataclass(frozen=True, slots=True)
class Refresh:
    """Changes nothing; done once the stream was read anew and is still ours."""

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return value


@dataclass(frozen=True, slots=True)
class StartSegment:
    """Put a segment in progress into the list. Its place is allocated no longer."""

    segment: Segment
    allocated: str  # what `allocated` held for it, "" if nothing

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        present = value.segment(self.segment.number)
        if present is not None:
            assert present.place == self.segment.place, "a number is given to one place at a time"
            return value
        allocated = "" if self.allocated and value.allocated == self.allocated else value.allocated
        return replace(value.with_segment(self.segment), allocated=allocated)


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """What a segment holds, known at its end."""

    last_entry: EntryId
    last_slot: int
    last_txid: Txid
    records: int


@dataclass(frozen=True, slots=True)
class CompleteSegment:
    """Record the end of a segment; the stream's highest txid follows a real last txid, never a guess."""

    number: SegmentNumber
    end: SegmentEnd
    unix_ms: int

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        segment = value.segment(self.number)
        if segment is None or segment.completed:
            return value
        before = value.segment(self.number - 1)
        known = before is not None and before.completed and before.start_sequence_id >= 0
        start = before.start_sequence_id + before.record_count if known and before is not None else 0
        completed = replace(
            segment,
            completed=True,
            last_txid=self.end.last_txid,
            last_entry=self.end.last_entry,
            last_slot=self.end.last_slot,
            record_count=self.end.records,
            completed_unix_ms=self.unix_ms,
            start_sequence_id=start,
        )
        return replace(value.with_segment(completed), max_txid=Txid(max(value.max_txid, self.end.last_txid)))


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
    """Records before `dlsn` may go: whole segments are TRUNCATED, the one holding it PARTIAL. Only moves forward.

    The last segment of the list and any in progress are never TRUNCATED: the list keeps what the next one follows.
    """

    dlsn: DLSN

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return replace(value, segments=tuple(self._one(s, s is value.segments[-1]) for s in value.segments))

    def _one(self, segment: Segment, is_last: bool) -> Segment:
        if not segment.completed or segment.truncation is Truncation.TRUNCATED:
            return segment
        if segment.last_dlsn < self.dlsn and not is_last:
            return replace(segment, truncation=Truncation.TRUNCATED)
        if segment.first_dlsn < self.dlsn <= segment.last_dlsn:
            return replace(segment, truncation=Truncation.PARTIAL, min_entry=self.dlsn.entry, min_slot=self.dlsn.slot)
        return segment


@dataclass(frozen=True, slots=True)
class Expire:
    """Completed segments whose end is older than `before_unix_ms` may go, oldest first, never the last of the list."""

    before_unix_ms: int

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        kept: list[Segment] = []
        expiring = True
        for segment in value.segments:
            expiring = (
                expiring
                and segment.completed
                and segment.completed_unix_ms < self.before_unix_ms
                and segment is not value.segments[-1]
            )
            gone = expiring and segment.truncation is not Truncation.TRUNCATED
            kept.append(replace(segment, truncation=Truncation.TRUNCATED) if gone else segment)
        return replace(value, segments=tuple(kept))


@dataclass(frozen=True, slots=True)
class ForgetSegment:
    """The store has deleted a TRUNCATED segment; take it out of the list."""

    number: SegmentNumber
    place: str

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        segment = value.segment(self.number)
        if segment is None or segment.place != self.place or segment.truncation is not Truncation.TRUNCATED:
            return value
        return value.without_segment(self.number)


@dataclass(frozen=True, slots=True)
class MarkReleased:
    """Hand the stream back: anybody may claim it without evidence."""

    def apply(self, value: StreamMetadata) -> StreamMetadata:
        return replace(value, owner=replace(value.owner, released=True))


Change = (
    Refresh
    | StartSegment
    | CompleteSegment
    | DropEmptySegment
    | Allocate
    | Deallocate
    | TruncateTo
    | Expire
    | ForgetSegment
    | MarkReleased
)


def allocated_name(store: str, place: str) -> str:
    """How `StreamMetadata.allocated` names a place: DistributedLog's plain ledger id, or store and place."""
    return place if store == "ledger" else f"{store}:{place}"


def allocated_place(name: str) -> tuple[str, str]:
    """Store and place of what `allocated_name` wrote."""
    store, colon, place = name.partition(":")
    return (store, place) if colon else ("ledger", name)
