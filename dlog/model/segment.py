"""A stream's metadata as an immutable value: segments in order, truncation, settings, and the owner's claim.

Stored format: dlog/wire/stream_metadata.py and dlog/io/stream_metadata.py. Source: DistributedLog `LogSegmentMetadata`
version 5; the claim and the settings are ours, in znodes that Java skips.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from dlog.model.dlsn import DLSN, of
from dlog.model.ids import NO_ENTRY, NO_TXID, EntryId, Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.segment_list import EMPTY, SegmentList, differences
from dlog.model.sink import SinkRecord
from dlog.values import value

LEDGER = "ledger"  # name of the store of ledgers

StoreSettings = tuple[tuple[str, int], ...]  # settings by name, which only the store of that stream reads


class Location(NamedTuple):
    """Where a segment's entries lie: the store, and the segment's name there (is_location_name). It never means another
    segment."""

    store: str
    name: str

    def __str__(self) -> str:
        return f"{self.store}:{self.name}"


@value
class StreamKey:
    """Metadata key of one stream: segment list, claim and settings are read and changed as one (dlog/machine.py)."""

    stream: StreamName


class Truncation(enum.IntEnum):
    """State; numbers as in the stored format."""

    ACTIVE = 0
    PARTIAL = 1
    TRUNCATED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One log segment. name: its name in its store (the ledger id in decimal, or the object path).

    Completed: `last_*`, `record_count` and `completed_unix_ms` are set. In progress: last_entry is NO_ENTRY and
    completed_unix_ms 0. completed_unix_ms: the writer's time, at least the latest label of its records;
    metadata_unix_ms: when the completed segment was written to metadata, by metadata's clock, 0 if unknown.
    former: where it was written, if it was moved since; that copy may still exist.
    """

    number: SegmentNumber
    name: str
    store: str = LEDGER
    former: Location | None = None
    first_txid: Txid
    completed: bool = False
    last_txid: Txid = NO_TXID
    last_entry: EntryId = NO_ENTRY
    last_slot: int = -1
    record_count: int = 0
    completed_unix_ms: int = 0
    metadata_unix_ms: int = field(default=0, compare=False)  # set by metadata, not written
    metadata_version: int = field(default=0, compare=False)  # version of its znode; set by metadata, not written
    truncation: Truncation = Truncation.ACTIVE
    min_entry: EntryId = EntryId(0)
    min_slot: int = 0
    start_sequence_id: int = -1
    region: int = 0
    version: int = 5  # of the stored format

    @property
    def first_dlsn(self) -> DLSN:
        """The first DLSN that may be read."""
        return of(self.number, self.min_entry, self.min_slot)

    @property
    def last_dlsn(self) -> DLSN:
        return of(self.number, self.last_entry, self.last_slot)

    @property
    def location(self) -> Location:
        return Location(self.store, self.name)

    @property
    def locations(self) -> tuple[Location, ...]:
        """Its location, and if it was moved, where it was written."""
        return (self.location,) if self.former is None else (self.location, self.former)

    def is_move_of(self, known: Segment) -> bool:
        """Whether this is the segment `known`, maybe moved since: only completed segments are moved, with the same
        entries and ids (`SetSegmentLocation` in dlog/log/changes.py)."""
        is_same = (self.number, self.first_txid) == (known.number, known.first_txid)
        return self.completed and is_same and known.completed_unix_ms in (0, self.completed_unix_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The newest claim: its proxy may write. Only a compare-and-set that adds one to the epoch replaces it."""

    epoch: Epoch = Epoch(0)
    proxy: ProxyId = ProxyId("")
    address: str = ""  # host:port to which clients connect
    claim: str = ""  # nonce of the claim, to recognise our own write after a lost reply
    released: bool = False  # released on purpose: any proxy may claim without evidence
    deleted: bool = False  # the stream is deleted: it is not read or claimed, its remains are being removed


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Settings of a stream. A change applies from the next segment on, that of retention at once.

    store_settings: those of `store`, see `settings` of dlog/stores/contract.py; one that is missing has its default.
    """

    store: str = LEDGER
    store_settings: StoreSettings = ()
    segment_bytes: int = 256 * 1024 * 1024
    segment_age_s: float = 7200.0
    retention_s: float = 0.0  # since a segment was completed; 0: it is kept for ever
    version: int = 0  # how often they were altered


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMetadata:
    """A stream's metadata; one compare-and-set changes all of it at once."""

    name: StreamName
    segments: tuple[Segment, ...] = EMPTY  # readable ones, by number; numbers are dense
    truncated: tuple[Segment, ...] = EMPTY  # before the truncation point, lower numbers than `segments`: to be deleted
    max_segment: SegmentNumber = SegmentNumber(0)  # highest number ever assigned
    max_txid: Txid = Txid(0)  # of completed segments; 2**63-1 once sealed
    allocated: str = ""  # name of a segment that is created, or dropped, and not in `segments`; see `allocated_name`
    owner: Owner = field(default_factory=Owner)
    settings: StreamSettings = field(default_factory=StreamSettings)
    sinks: tuple[SinkRecord, ...] = ()  # by name, one each
    incarnation: str = field(
        default="", compare=False
    )  # incarnation: set at creation, unique among streams of this name
    changed_unix_ms: int = field(default=0, compare=False)  # metadata's own clock at the last change; not written

    def __post_init__(self) -> None:
        for name in ("segments", "truncated"):
            given = getattr(self, name)
            if type(given) is not SegmentList:
                object.__setattr__(self, name, SegmentList(given))

    @property
    def _segments(self) -> SegmentList:
        return cast(SegmentList, self.segments)

    @property
    def _truncated(self) -> SegmentList:
        return cast(SegmentList, self.truncated)

    @property
    def listed(self) -> SegmentList:
        """Every segment in metadata, the truncated ones first."""
        return self._truncated.joined(self._segments)

    def changes_since(self, before: StreamMetadata) -> Iterator[tuple[Segment | None, Segment | None]]:
        """Segments in metadata that differ from `before`, as pairs (before, now), by number; None: not there. A
        segment that became truncated without another change is not among them."""
        return differences(before.listed, self.listed)

    def readable_changes_since(self, before: StreamMetadata) -> Iterator[tuple[Segment | None, Segment | None]]:
        """As `changes_since`, of readable segments: one that became truncated is there in `before` and not now."""
        return differences(before._segments, self._segments)

    def stamped(self, unix_ms: int) -> StreamMetadata:
        """This value after metadata wrote it at `unix_ms` by its own clock: segments completed by that change are
        stamped with it. Looks at every segment."""
        completed = [s for s in self.listed if s.completed and not s.metadata_unix_ms]
        value = replace(self, changed_unix_ms=unix_ms)
        return value.with_stamps({s.number: replace(s, metadata_unix_ms=unix_ms) for s in completed})

    def with_stamps(self, stamped: Mapping[int, Segment]) -> StreamMetadata:
        """Replace segments by these, which differ only in the fields that metadata sets. stamped: by number."""
        if not stamped:
            return self
        below = {number: s for number, s in stamped.items() if number < self.first_number}
        above = {number: s for number, s in stamped.items() if number >= self.first_number}
        return replace(self, segments=self._segments.updated(above), truncated=self._truncated.updated(below))

    def segment(self, number: int) -> Segment | None:
        """The readable segment with this number."""
        return self._segments.find(number)

    def expires_unix_ms(self, segment: Segment) -> int | None:
        """When the stream's retention is over for a segment; None: never, as far as is known.

        Its age starts at the later of two times: its completion by its writer's clock, and the write of the completed
        segment by metadata's clock. A segment without the latter has no age.
        """
        if self.settings.retention_s <= 0 or not segment.completed or segment.metadata_unix_ms <= 0:
            return None
        completed_ms = max(segment.completed_unix_ms, segment.metadata_unix_ms)
        return completed_ms + int(self.settings.retention_s * 1000)

    def truncated_segment(self, number: int) -> Segment | None:
        """The truncated segment with this number, if it is still in metadata."""
        return self._truncated.find(number)

    @property
    def in_progress(self) -> tuple[Segment, ...]:
        return self._segments.in_progress

    @property
    def is_sealed(self) -> bool:
        return self.max_txid == 2**63 - 1

    @property
    def first_number(self) -> int:
        """Segment of the truncation point: those with lower numbers may not be read. 0: there was never a segment."""
        if self.segments:
            return self.segments[0].number
        return self.truncated[-1].number + 1 if self.truncated else self.max_segment

    @property
    def first_dlsn(self) -> DLSN:
        """The first DLSN that may be read; for an empty list the start of the next segment."""
        return self.segments[0].first_dlsn if self.segments else of(self.next_number(), 0, 0)

    @property
    def last_completed(self) -> Segment | None:
        return next((s for s in reversed(self.segments) if s.completed), None)

    def next_number(self, dropped: Collection[int] = ()) -> SegmentNumber:
        """The number of the next segment; numbers are dense. dropped: numbers of empty segments in progress that leave
        the list; the first of them is reused."""
        last = next((s for s in reversed(self.segments) if s.completed or s.number not in dropped), None)
        if last is not None:
            return SegmentNumber(last.number + 1)
        return SegmentNumber(max(1, self.first_number))

    def segment_at(self, location: Location) -> Segment | None:
        """The segment, truncated or not, that has this location, or had it before it was moved from a ledger."""
        return self._segments.find_location(location) or self._truncated.find_location(location)

    def first_reaching(self, least: int, *, by_time: bool) -> Segment | None:
        """The first readable segment that is in progress, or ends with a txid (by_time: at a time) of at least
        `least`."""
        return self._segments.first_reaching(least, by_time=by_time)

    def sink(self, name: str) -> SinkRecord | None:
        return next((record for record in self.sinks if record.last.sink == name), None)

    def with_sink(self, record: SinkRecord) -> StreamMetadata:
        """Set the record of its sink."""
        others = [known for known in self.sinks if known.last.sink != record.last.sink]
        return replace(self, sinks=tuple(sorted([*others, record], key=lambda r: r.last.sink)))

    def has_lost(self, number: int) -> bool:
        """Whether a segment, and every earlier one, was truncated."""
        return number < self.first_number

    def is_number_final(self, number: int) -> bool:
        """Whether it is known that no later segment gets this number. An empty list does not show if its last segments
        were truncated, or were empty and dropped, so that the first of their numbers is reused."""
        return bool(self.segments or (self.truncated and number <= self.truncated[-1].number))

    def has_dropped(self, number: int, location: Location) -> bool:
        """Whether a segment that was listed was removed as empty; its number may have been reused."""
        listed = self.segment(number)
        return listed.location != location if listed is not None else not self.has_lost(number)

    def with_segment(self, *segments: Segment) -> StreamMetadata:
        """Add segments, or replace those with the same numbers."""
        return replace(
            self,
            segments=self._segments.updated({s.number: s for s in segments}),
            max_segment=SegmentNumber(max(self.max_segment, *(s.number for s in segments))),
        )

    def without_segment(self, number: int) -> StreamMetadata:
        """Remove a readable segment."""
        return replace(self, segments=self._segments.updated({number: None}))

    def with_truncated_before(self, number: int) -> StreamMetadata:
        """Truncate the segments before this one. Stops at the first segment in progress, which may still be written,
        and at the last one, which the next one's number follows."""
        bounds = [number, *(s.number for s in self.in_progress[:1]), *(s.number for s in self.segments[-1:])]
        at = self._segments.index_of(min(bounds))
        if at == 0:
            return self
        below, kept = self._segments.split(at)
        return replace(self, segments=kept, truncated=self._truncated.joined(below))

    def with_marks(self, upto: int) -> StreamMetadata:
        """Mark the truncated segments up to this number as truncated in DistributedLog's format."""
        marked: dict[int, Segment | None] = {}
        for segment in self.truncated:
            if segment.number > upto:
                break
            if segment.truncation is not Truncation.TRUNCATED:
                marked[segment.number] = replace(segment, truncation=Truncation.TRUNCATED)
        return replace(self, truncated=self._truncated.updated(marked)) if marked else self

    def without_truncated(self, upto: int) -> StreamMetadata:
        """Remove the truncated segments up to this number; their data are deleted."""
        return replace(self, truncated=self._truncated.split(self._truncated.index_of(upto + 1))[1])
