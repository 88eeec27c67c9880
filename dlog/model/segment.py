"""A stream's metadata as a value: its segments in order, truncation, settings, and the owner's claim.

Znodes and strings: dlog/wire/stream_metadata.py and dlog/io/stream_metadata.py. Source: DistributedLog
`LogSegmentMetadata` version 5; the owner's claim and the settings are ours and lie in znodes Java skips.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from dlog.model.dlsn import DLSN, of
from dlog.model.ids import NO_ENTRY, NO_TXID, EntryId, Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.quorum import Quorum
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
    segments: tuple[Segment, ...] = ()  # by number; numbers are dense from the first kept one
    max_segment: SegmentNumber = SegmentNumber(0)  # highest number ever given out
    max_txid: Txid = Txid(0)  # of completed segments; 2**63-1 once sealed
    allocated: str = ""  # place of a segment created ahead of need and not yet in `segments`
    owner: Owner = field(default_factory=Owner)
    settings: StreamSettings = field(default_factory=StreamSettings)
    sinks: tuple[SinkRecord, ...] = ()  # by name, one each
    life: str = field(default="", compare=False)  # given by the store at creation: another for each stream of the name
    changed_unix_ms: int = field(default=0, compare=False)  # metadata's own clock at the last change; not written

    def stamped(self, unix_ms: int) -> StreamMetadata:
        """As metadata has written it just now, when its own clock said `unix_ms`: segments whose completion was part of
        that change are stamped with it."""
        segments = tuple(
            replace(s, metadata_unix_ms=unix_ms) if s.completed and not s.metadata_unix_ms else s for s in self.segments
        )
        return replace(self, segments=segments, changed_unix_ms=unix_ms)

    def segment(self, number: int) -> Segment | None:
        return next((s for s in self.segments if s.number == number), None)

    @property
    def in_progress(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if not s.completed)

    @property
    def is_sealed(self) -> bool:
        return self.max_txid == 2**63 - 1

    def places(self) -> set[tuple[str, str]]:
        """Store and place of every segment, and the ledgers where those lay that were moved."""
        former = {(LEDGER, s.former_ledger) for s in self.segments if s.former_ledger}
        return former | {(s.store, s.place) for s in self.segments}

    def sink(self, name: str) -> SinkRecord | None:
        return next((record for record in self.sinks if record.last.sink == name), None)

    def with_sink(self, record: SinkRecord) -> StreamMetadata:
        """Remember this of its sink, in the place of what was."""
        others = [known for known in self.sinks if known.last.sink != record.last.sink]
        return replace(self, sinks=tuple(sorted([*others, record], key=lambda r: r.last.sink)))

    def has_lost(self, number: int) -> bool:
        """Whether a segment left the list with all that was before it."""
        return bool(self.segments) and number < self.segments[0].number

    def has_dropped(self, number: int, place: str) -> bool:
        """Whether a segment that was in the list was taken out as empty; its number may have come again."""
        listed = self.segment(number)
        return listed.place != place if listed is not None else not self.has_lost(number)

    def with_segment(self, segment: Segment) -> StreamMetadata:
        """Add a segment, or put it in the place of the one with its number."""
        others = [s for s in self.segments if s.number != segment.number]
        ordered = tuple(sorted([*others, segment], key=lambda s: s.number))
        return replace(self, segments=ordered, max_segment=SegmentNumber(max(self.max_segment, segment.number)))

    def without_segment(self, number: int) -> StreamMetadata:
        return replace(self, segments=tuple(s for s in self.segments if s.number != number))
