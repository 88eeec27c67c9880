"""A stream's metadata as a value: its segments in order, truncation, settings, and the owner's claim.

Znodes and strings: dlog/wire/stream_metadata.py and dlog/io/stream_metadata.py. Source: DistributedLog
`LogSegmentMetadata` version 5; the owner's claim and the settings are ours and lie in znodes Java skips.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from dlog.model.dlsn import DLSN, of
from dlog.model.ids import NO_ENTRY, NO_TXID, EntryId, Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.quorum import Quorum
from dlog.model.segment_list import EMPTY, SegmentList, differences
from dlog.model.sink import SinkRecord

LEDGER = "ledger"  # name of the store of ledgers


@dataclass(frozen=True, slots=True)
class StreamKey:
    """Metadata key of one stream: segment list, owner claim, settings, read and changed as one (dlog/machine.py)."""

    stream: StreamName


class Truncation(enum.IntEnum):
    """Numbers are those of the stored form."""

    ACTIVE = 0
    PARTIAL = 1
    TRUNCATED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One log segment. `place` is the store's name for it: the ledger id in decimal on the ledger store.

    Completed: `last_*`, `record_count` and `completed_unix_ms` are set. In progress: last_entry is NO_ENTRY and
    completed_unix_ms 0. completed_unix_ms is what the writer says, at least the newest label of its records;
    metadata_unix_ms is when the completed segment was put into metadata by metadata's own clock, 0 if not known.
    former_ledger: in which ledger it lay, if it lies elsewhere now; that may be there still, or gone.
    """

    number: SegmentNumber
    place: str
    store: str = LEDGER
    former_ledger: str = ""
    first_txid: Txid
    completed: bool = False
    last_txid: Txid = NO_TXID
    last_entry: EntryId = NO_ENTRY
    last_slot: int = -1
    record_count: int = 0
    completed_unix_ms: int = 0
    metadata_unix_ms: int = field(default=0, compare=False)  # given by metadata, not written
    metadata_version: int = field(default=0, compare=False)  # of this segment there; given by metadata, not written
    truncation: Truncation = Truncation.ACTIVE
    min_entry: EntryId = EntryId(0)
    min_slot: int = 0
    start_sequence_id: int = -1
    region: int = 0
    version: int = 5  # of the stored form

    @property
    def first_dlsn(self) -> DLSN:
        """The first place that may still be read."""
        return of(self.number, self.min_entry, self.min_slot)

    @property
    def last_dlsn(self) -> DLSN:
        return of(self.number, self.last_entry, self.last_slot)

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Store and place where it lies, and the ledger where it lay before it was moved."""
        here = (self.store, self.place)
        return (here, (LEDGER, self.former_ledger)) if self.former_ledger else (here,)

    def is_move_of(self, known: Segment) -> bool:
        """Whether this is the segment `known`, moved to another place since: only completed segments are moved, with
        the same entries under the same ids (`Relocate` in dlog/log/changes.py)."""
        is_same = (self.number, self.first_txid) == (known.number, known.first_txid)
        return self.completed and is_same and known.completed_unix_ms in (0, self.completed_unix_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who may write: the newest claim. Only a compare-and-set that adds one to the epoch replaces it."""

    epoch: Epoch = Epoch(0)
    proxy: ProxyId = ProxyId("")
    address: str = ""  # host:port clients connect to
    claim: str = ""  # nonce of the claim, to recognise our own write after a lost reply
    released: bool = False  # handed back on purpose: anybody may claim without evidence
    deleted: bool = False  # the stream is deleted: nobody reads or claims it, what is left is removed


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What was chosen for a stream at its creation and may be changed for its next segment."""

    store: str = "ledger"
    quorum: Quorum = field(default_factory=Quorum)
    segment_bytes: int = 256 * 1024 * 1024
    segment_age_s: float = 7200.0
    retention_s: float = 0.0  # since a segment was completed; 0: it is kept for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMetadata:
    """A stream as metadata knows it; one compare-and-set changes all of it at once."""

    name: StreamName
    segments: tuple[Segment, ...] = EMPTY  # that may be read, by number; numbers are dense
    truncated: tuple[Segment, ...] = EMPTY  # before the trim point, lower numbers than `segments`: to be deleted
    max_segment: SegmentNumber = SegmentNumber(0)  # highest number ever given out
    max_txid: Txid = Txid(0)  # of completed segments; 2**63-1 once sealed
    allocated: str = ""  # place of a segment created ahead of need and not yet in `segments`
    owner: Owner = field(default_factory=Owner)
    settings: StreamSettings = field(default_factory=StreamSettings)
    sinks: tuple[SinkRecord, ...] = ()  # by name, one each
    life: str = field(default="", compare=False)  # given by the store at creation: another for each stream of the name
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
        """Every segment that metadata names: the truncated ones first."""
        return self._truncated.joined(self._segments)

    def changes_since(self, before: StreamMetadata) -> Iterator[tuple[Segment | None, Segment | None]]:
        """Segments that metadata names otherwise than in `before`, as pairs (before, now), by number; None: not at all.
        That a segment was truncated is none of them."""
        return differences(before.listed, self.listed)

    def readable_changes_since(self, before: StreamMetadata) -> Iterator[tuple[Segment | None, Segment | None]]:
        """Segments that may be read, as `changes_since`: one that was truncated is there in `before` and not now."""
        return differences(before._segments, self._segments)

    def stamped(self, unix_ms: int) -> StreamMetadata:
        """As metadata has written it just now, when its own clock said `unix_ms`: segments whose completion was part of
        that change are stamped with it. Looks at every segment."""
        completed = [s for s in self.listed if s.completed and not s.metadata_unix_ms]
        value = replace(self, changed_unix_ms=unix_ms)
        return value.with_stamps({s.number: replace(s, metadata_unix_ms=unix_ms) for s in completed})

    def with_stamps(self, stamped: Mapping[int, Segment]) -> StreamMetadata:
        """With these in the place of the segments of their numbers: as these are, but for what metadata gives them."""
        if not stamped:
            return self
        below = {number: s for number, s in stamped.items() if number < self.first_number}
        above = {number: s for number, s in stamped.items() if number >= self.first_number}
        return replace(self, segments=self._segments.updated(above), truncated=self._truncated.updated(below))

    def segment(self, number: int) -> Segment | None:
        """The segment with this number, if it may be read."""
        return self._segments.find(number)

    def expires_unix_ms(self, segment: Segment) -> int | None:
        """When the stream's retention is over for a segment; None: never, as far as is known now.

        Its age begins at the later of two moments: when its writer says that it was completed, and when metadata got to
        know of that by metadata's own clock. A segment of which one is not known has no age.
        """
        if self.settings.retention_s <= 0 or not segment.completed or segment.metadata_unix_ms <= 0:
            return None
        completed_ms = max(segment.completed_unix_ms, segment.metadata_unix_ms)
        return completed_ms + int(self.settings.retention_s * 1000)

    def truncated_segment(self, number: int) -> Segment | None:
        """The segment with this number, if it is truncated and metadata names it still."""
        return self._truncated.find(number)

    @property
    def in_progress(self) -> tuple[Segment, ...]:
        return self._segments.in_progress

    @property
    def is_sealed(self) -> bool:
        return self.max_txid == 2**63 - 1

    @property
    def first_number(self) -> int:
        """The trim point: no segment with a lower number may be read. 0: there was never a segment."""
        if self.segments:
            return self.segments[0].number
        return self.truncated[-1].number + 1 if self.truncated else self.max_segment

    @property
    def first_dlsn(self) -> DLSN:
        """The first place that may still be read; of an empty list where the next segment begins."""
        return self.segments[0].first_dlsn if self.segments else of(self.next_number(), 0, 0)

    @property
    def last_completed(self) -> Segment | None:
        return next((s for s in reversed(self.segments) if s.completed), None)

    def next_number(self, dropped: Collection[int] = ()) -> SegmentNumber:
        """The number that the next segment is given; numbers are dense. dropped: numbers of segments in progress that
        are empty and leave the list; the first of them comes again."""
        last = next((s for s in reversed(self.segments) if s.completed or s.number not in dropped), None)
        if last is not None:
            return SegmentNumber(last.number + 1)
        return SegmentNumber(max(1, self.first_number))

    def segment_at(self, store: str, place: str) -> Segment | None:
        """The segment, truncated or not, that lies at this place, or lay in this ledger before it was moved."""
        return self._segments.find_place(store, place) or self._truncated.find_place(store, place)

    def first_reaching(self, least: int, *, by_time: bool) -> Segment | None:
        """The first segment that may be read and is in progress, or ends with a txid (by_time: at a time) of at least
        `least`."""
        return self._segments.first_reaching(least, by_time=by_time)

    def sink(self, name: str) -> SinkRecord | None:
        return next((record for record in self.sinks if record.last.sink == name), None)

    def with_sink(self, record: SinkRecord) -> StreamMetadata:
        """Remember this of its sink, in the place of what was."""
        others = [known for known in self.sinks if known.last.sink != record.last.sink]
        return replace(self, sinks=tuple(sorted([*others, record], key=lambda r: r.last.sink)))

    def has_lost(self, number: int) -> bool:
        """Whether a segment was truncated, with all that was before it."""
        return number < self.first_number

    def has_dropped(self, number: int, place: str) -> bool:
        """Whether a segment that was in the list was taken out as empty; its number may have come again."""
        listed = self.segment(number)
        return listed.place != place if listed is not None else not self.has_lost(number)

    def with_segment(self, *segments: Segment) -> StreamMetadata:
        """Add segments, or put them in the places of those with their numbers."""
        return replace(
            self,
            segments=self._segments.updated({s.number: s for s in segments}),
            max_segment=SegmentNumber(max(self.max_segment, *(s.number for s in segments))),
        )

    def without_segment(self, number: int) -> StreamMetadata:
        """Take out a segment that may be read."""
        return replace(self, segments=self._segments.updated({number: None}))

    def trimmed(self, number: int) -> StreamMetadata:
        """Move the trim point to this segment: those before it may not be read any more. The trim point stops at a
        segment in progress, which somebody may still be writing, and at the last one, which the next one follows."""
        bounds = [number, *(s.number for s in self.in_progress[:1]), *(s.number for s in self.segments[-1:])]
        at = self._segments.index_of(min(bounds))
        if at == 0:
            return self
        below, kept = self._segments.split(at)
        return replace(self, segments=kept, truncated=self._truncated.joined(below))

    def with_marks(self, upto: int) -> StreamMetadata:
        """Say of the truncated segments up to this number, in DistributedLog's form, that they are."""
        marked: dict[int, Segment | None] = {}
        for segment in self.truncated:
            if segment.number > upto:
                break
            if segment.truncation is not Truncation.TRUNCATED:
                marked[segment.number] = replace(segment, truncation=Truncation.TRUNCATED)
        return replace(self, truncated=self._truncated.updated(marked)) if marked else self

    def without_truncated(self, upto: int) -> StreamMetadata:
        """Forget the truncated segments up to this number; their data are deleted."""
        return replace(self, truncated=self._truncated.split(self._truncated.index_of(upto + 1))[1])
