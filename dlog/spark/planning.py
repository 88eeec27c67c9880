"""Plans which entries are read by how many tasks: arithmetic over metadata.

Invariants:
- a plan names entries that can be read for ever or fail loudly, never "everything there is by then";
- a plan covers each record of its span once, in the order of the stream within a partition.

Small ranges share a partition, large ones are split between entries; no segment is opened here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dlog.spark.offsets import BEGINNING, StreamPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """A segment as it was when the plan was made.

    first, first_slot: the first position that may still be read. last: the last entry that may be read, -1 if there is
    none yet. bytes, records: of entries first..last, about. counted: records of entries 0..last, -1 if unknown.
    is_final: its store has decided where it ends. idle: number of entries at its end that are known to hold no record.
    is_enveloped: False for what DistributedLog wrote below version 4.
    """

    number: int
    name: str
    store: str
    first: int = 0
    first_slot: int = 0
    last: int = -1
    bytes: int = 0
    records: int = 0
    counted: int = -1
    is_completed: bool = True
    is_final: bool = True
    idle: int = 0
    is_enveloped: bool = True
    start_sequence_id: int = -1
    first_txid: int = -1
    last_txid: int = -1
    completed_unix_ms: int = 0

    @property
    def begin(self) -> StreamPosition:
        return StreamPosition(self.number, self.first, self.first_slot)

    @property
    def end(self) -> StreamPosition:
        """The position after everything that may be read."""
        return StreamPosition(self.number, self.last + 1)

    @property
    def entries(self) -> int:
        return max(0, self.last + 1 - self.first)


class Tally(NamedTuple):
    """Counts of an ended segment, from the list: records before it, and its own."""

    number: int
    start_sequence_id: int
    records: int


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream as it was when the plan was made: its segments in order, all of them final except the last.

    floor: its latest position if no segment has an entry. past: of segments that may not be read any more, the number
    and the last entry with a record, where their ends are known. tallies: counts of the same segments, where known.
    incarnation: of the stream; empty if none.
    """

    name: str
    segments: tuple[SegmentView, ...] = ()
    floor: StreamPosition = BEGINNING
    past: tuple[tuple[int, int], ...] = ()
    tallies: tuple[Tally, ...] = ()
    incarnation: str = ""

    @property
    def earliest(self) -> StreamPosition:
        """The position of the first record that may be read now or later."""
        for segment in self.segments:
            if segment.entries or not segment.is_completed:
                return segment.begin
        return self.latest

    @property
    def latest(self) -> StreamPosition:
        """The position after the last entry that may be read; views.py says why never in an empty segment after it."""
        for segment in reversed(self.segments):
            if segment.entries:
                return segment.end
        return self.floor

    def latest_after(self, begun: StreamPosition) -> StreamPosition:
        """As `latest`, but `begun` if only entries known to hold no record lie between: else a stream that falls silent
        would cause an empty batch."""
        latest = self.latest
        for segment in reversed(self.segments):
            border = StreamPosition(segment.number, segment.last + 1 - segment.idle)
            if segment.entries and border <= begun <= latest:
                return begun
            if segment.entries and border > segment.begin:
                break
        return latest

    def segment(self, number: int) -> SegmentView | None:
        return next((s for s in self.segments if s.number == number), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Entries first..last of a segment: the first one from `first_slot` on, the last one up to `end_slot` (exclusive;
    0: all of it). bytes, records: about. counted: records of the segment up to `last` if that is its end and they are
    counted, else -1. incarnation: of the stream; with it the segment is found again after a move to another store;
    "": only `name` is read."""

    stream: str
    segment: int
    name: str
    store: str
    first: int
    last: int
    first_slot: int = 0
    end_slot: int = 0
    bytes: int = 0
    records: int = 0
    is_enveloped: bool = True
    start_sequence_id: int = -1
    counted: int = -1
    incarnation: str = ""

    @property
    def entries(self) -> int:
        return self.last + 1 - self.first


def span(view: StreamView, start: StreamPosition, end: StreamPosition) -> list[Range]:
    """The ranges from `start` up to `end` (exclusive), in order."""
    found = []
    for segment in view.segments:
        low = max(segment.begin, start)
        high = min(segment.end, end)
        if low.segment == high.segment == segment.number and low < high:
            found.append(_range(view, segment, low, high))
    return found


def _range(view: StreamView, segment: SegmentView, low: StreamPosition, high: StreamPosition) -> Range:
    last = high.entry if high.slot else high.entry - 1
    share = (last + 1 - low.entry) / segment.entries
    return Range(
        stream=view.name,
        segment=segment.number,
        name=segment.name,
        store=segment.store,
        first=low.entry,
        last=last,
        first_slot=low.slot,
        end_slot=high.slot,
        bytes=max(1, int(segment.bytes * share)),
        records=int(segment.records * share),
        is_enveloped=segment.is_enveloped,
        start_sequence_id=segment.start_sequence_id,
        counted=segment.counted if high == segment.end else -1,
        incarnation=view.incarnation,
    )


def prefix(segments: Sequence[SegmentView]) -> tuple[SegmentView, ...] | None:
    """The segments that may be shown: up to the first without a decided end. None if a later one has entries already:
    acknowledged records would be missing; read the stream again.

    An owner begins the next segment while the last entries of the previous one are in flight: showing both would omit
    those for ever.
    """
    shown = next((i + 1 for i, segment in enumerate(segments) if not segment.is_final), len(segments))
    return None if any(segment.entries for segment in segments[shown:]) else tuple(segments[:shown])


# ---- a share of a backlog -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Amount:
    """About how much lies between two positions."""

    records: int = 0
    bytes: int = 0


def amount(view: StreamView, start: StreamPosition, end: StreamPosition) -> Amount:
    """The amount that `span` covers."""
    parts = span(view, start, end)
    return Amount(sum(r.records for r in parts), sum(r.bytes for r in parts))


def advance(view: StreamView, start: StreamPosition, end: StreamPosition, share: float) -> StreamPosition:
    """A position after about this share (0..1) of the records, between two entries and at least one entry on."""
    parts = span(view, start, end)
    left = share * sum(r.entries for r in parts)
    for part in parts:
        if left < part.entries:
            whole = max(1, int(left)) if part is parts[0] else int(left)
            if not whole:
                break  # stay after the previous range
            return min(end, StreamPosition(part.segment, part.first + whole))
        left -= part.entries
        start = StreamPosition(part.segment, part.last + 1)
    return min(end, start) if parts else end


def advance_segments(view: StreamView, start: StreamPosition, end: StreamPosition, segments: int) -> StreamPosition:
    """The position after this many segments, or `end`."""
    parts = span(view, start, end)
    return end if len(parts) <= segments else StreamPosition(parts[segments - 1].segment, parts[segments - 1].last + 1)


# ---- partitions -----------------------------------------------------------------------------------------------------


def partitions(
    ranges: Sequence[Range],
    *,
    split_bytes: int,
    open_cost_bytes: int,
    partitions_min: int = 0,
    records_max: int = 0,
) -> list[list[Range]]:
    """Pack into partitions of about `split_bytes` each, and of `records_max` records (0: any number); at least
    `partitions_min` of them if there are enough entries. Opening a segment counts as `open_cost_bytes`."""
    if partitions_min > 1:
        whole = sum(r.bytes for r in ranges)
        split_bytes = min(split_bytes, max(1, -(-whole // partitions_min)))
        open_cost_bytes = min(open_cost_bytes, split_bytes // 4)
    packed: list[list[Range]] = []
    weight = records = 0
    for part in _split_all(ranges, split_bytes, records_max):
        cost = part.bytes + open_cost_bytes
        is_full = weight + cost > split_bytes + open_cost_bytes or (
            records_max and records + part.records > records_max
        )
        if not packed or is_full:
            packed.append([])
            weight = records = 0
        packed[-1].append(part)
        weight += cost
        records += part.records
    return packed


def _split_all(ranges: Iterable[Range], split_bytes: int, records_max: int) -> Iterator[Range]:
    for whole in ranges:
        pieces = -(-whole.bytes // split_bytes)
        if records_max:
            pieces = max(pieces, -(-whole.records // records_max))
        yield from _split(whole, min(max(1, pieces), whole.entries))


def _split(whole: Range, pieces: int) -> Iterator[Range]:
    """Split into pieces of about equally many entries."""
    if pieces == 1:
        yield whole
        return
    borders = [whole.first + whole.entries * i // pieces for i in range(pieces + 1)]
    for i, (first, end) in enumerate(itertools.pairwise(borders)):
        share = (end - first) / whole.entries
        yield replace(
            whole,
            first=first,
            last=end - 1,
            first_slot=whole.first_slot if i == 0 else 0,
            end_slot=whole.end_slot if i == pieces - 1 else 0,
            bytes=max(1, int(whole.bytes * share)),
            records=int(whole.records * share),
            counted=whole.counted if i == pieces - 1 else -1,
        )
