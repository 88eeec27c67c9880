"""Reads the current state of streams for a plan: segments with their ends; resolves txid and time bounds to positions.

Invariants:
- what is shown of a stream is a prefix of it;
- a segment ends where its store decided. One that is still written ends at its tail, which covers all records
  acknowledged before the request and which no recovery takes back; no later segment is shown;
- nothing is fenced. If an owner died between two segments, a proxy is asked to get the stream owned.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlog.errors import DLogError, MetadataUnavailableError
from dlog.log.contents import EntryContents, read_contents
from dlog.log.seeking import BinarySearch, SeekTarget
from dlog.machine import Missing, Versioned
from dlog.model.ids import SEGMENT_FIRST, EntryId, StreamName, is_reserved, stream_name
from dlog.model.segment import Location, Segment, StreamKey, StreamMetadata
from dlog.spark.cluster_connection import Cluster
from dlog.spark.offsets import BEGINNING, StreamPosition
from dlog.spark.options import Bound, Kind, SourceOptions
from dlog.spark.planning import SegmentView, StreamView, Tally, prefix
from dlog.spark.proxies import ensure_owned
from dlog.stores.contract import SegmentNotFoundError, SegmentReader, SegmentRef, StoreUnavailableError

_AT_ONCE = 16
_LOOKS, _LOOK_AGAIN_S = 40, 0.05  # retries while an owner changes segments
_IDLE_MAX = 4  # control records at a tail that are examined: an idle owner writes one
_PAST_MAX = 10_000  # segment ends that are remembered for one stream


@dataclass(frozen=True, slots=True)
class Seen:
    """A stream's metadata, and its view for a plan."""

    value: StreamMetadata
    view: StreamView


@dataclass(frozen=True, slots=True)
class _End:
    """The last entry of a segment, and about how many bytes and records it holds up to there. is_final: this will not
    change. idle: how many entries at its end are known to hold no record."""

    last: int
    bytes: int
    records: int
    is_final: bool
    idle: int = 0


class StreamViewer:
    """Reads streams repeatedly, and asks only once for what cannot change."""

    def __init__(self) -> None:
        self._ends: dict[Location, _End] = {}  # segments that are closed in their store and completed in the list
        self._tails: dict[Location, _End] = {}  # all others, as they were last seen
        self._past: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}  # name, incarnation -> number -> last, idle
        self._tallies: dict[tuple[str, str], dict[int, Tally]] = {}

    async def look(self, cluster: Cluster, options: SourceOptions) -> dict[str, Seen]:
        """Every selected stream that exists, by name. Raises as `_stream` does."""
        names: Sequence[str] = options.streams
        if not names:
            every = await cluster.metadata.streams()
            names = sorted(name for name in every if options.selects(name) and not is_reserved(name))
        found = {name: await self._stream(cluster, stream_name(name)) for name in names}
        return {name: seen for name, seen in found.items() if seen is not None}

    async def _stream(self, cluster: Cluster, name: StreamName) -> Seen | None:
        """The stream as of now, or None. Raises MetadataUnavailableError; StoreUnavailableError while the end of a
        segment cannot be determined."""
        for look in range(_LOOKS):
            if look == _LOOKS // 4:
                await self._have_owned(cluster, name)
            outcome = await cluster.metadata.read(StreamKey(name))
            if isinstance(outcome, Missing):
                return None
            if not isinstance(outcome, Versioned):
                raise MetadataUnavailableError(f"metadata cannot be read now, retry later: stream={name}")
            value: StreamMetadata = outcome.value
            try:
                shown = prefix(await self._segments(cluster, value))
            except SegmentNotFoundError:
                shown = None  # truncated during this attempt
            if shown is not None:
                return Seen(value, self._view_of(value, shown))
            await asyncio.sleep(_LOOK_AGAIN_S)
        raise StoreUnavailableError(
            f"a segment is not sealed although the next one has entries; its owner or the next owner will seal it: "
            f"retry, or append a record so that a proxy claims the stream: stream={name}"
        )

    async def _have_owned(self, cluster: Cluster, name: StreamName) -> None:
        """Get the stream owned: an owner that died between two segments left both open; the next owner seals them."""
        try:
            await ensure_owned(cluster, name, _LOOKS * _LOOK_AGAIN_S)
        except DLogError as error:
            print(f"dlog: no proxy took over stream {name}: {error.message}", file=sys.stderr)  # noqa: T201 - Spark shows it in the driver's log

    def _view_of(self, value: StreamMetadata, shown: Sequence[SegmentView]) -> StreamView:
        ends = self._past.setdefault((value.name, value.incarnation), {})
        ends |= {s.number: (s.last, s.idle) for s in shown if s.is_final}
        ends |= {s.number: (s.last_entry, 0) for s in value.listed if s.completed and s.number not in ends}
        tallies = self._tallies.setdefault((value.name, value.incarnation), {})
        tallies |= {s.number: Tally(s.number, s.start_sequence_id, s.record_count) for s in value.listed if s.completed}
        for known in (ends, tallies):
            for number in sorted(known)[:-_PAST_MAX]:
                del known[number]
        begin = shown[0].number if shown else value.max_segment + 1
        gone = [(number, *ends[number]) for number in sorted(ends) if number < begin]
        past = tuple((number, last - idle) for number, last, idle in gone)
        floor = next((StreamPosition(number, last + 1) for number, last, _ in reversed(gone) if last >= 0), None)
        if floor is None:
            floor = shown[0].begin if shown else StreamPosition(begin, 0) if value.max_segment else BEGINNING
        counted = tuple(tallies[number] for number in sorted(tallies) if number < begin)
        return StreamView(value.name, tuple(shown), floor, past, counted, value.incarnation)

    async def _segments(self, cluster: Cluster, value: StreamMetadata) -> list[SegmentView]:
        turns = asyncio.Semaphore(_AT_ONCE)

        async def view_of(segment: Segment) -> SegmentView:
            async with turns:
                return _view(value, segment, await self._end(cluster, value.name, segment))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(view_of(one), name=f"{value.name} {one.number}") for one in value.segments]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _end(self, cluster: Cluster, stream: StreamName, segment: Segment) -> _End:
        known = self._ends.get(segment.location)
        if known is not None:
            return known
        store = cluster.store(segment.store)
        ref = SegmentRef(stream, segment.number, segment.name)
        stat = await store.stat(ref, sealed_at=segment.last_entry if segment.completed else None)
        last = int(await store.find_tail(ref) if stat.end is None else stat.end)
        seen = self._tails.get(segment.location)
        if seen is not None and seen.last != last:
            seen = None
        if stat.end is None or not segment.completed:
            seen = self._tails[segment.location] = seen or await self._measured(cluster, ref, segment, last)
            return replace(seen, is_final=stat.end is not None)
        self._tails.pop(segment.location, None)
        idle = 0 if seen is None else seen.idle
        end = self._ends[segment.location] = _End(last, stat.payload_bytes, segment.record_count, True, idle)
        return end

    async def _measured(self, cluster: Cluster, ref: SegmentRef, segment: Segment, last: int) -> _End:
        """Estimate a segment that the list has not counted: its last entry counts the records; bytes are extrapolated
        from up to four entries."""
        if last < 0:
            return _End(-1, 0, 0, False)
        async with _Opened(cluster, ref, segment, last) as opened:
            sizes = [len(await opened.payload(entry)) for entry in {last // 3, last // 2, max(0, last - 1), last}]
            position = (await opened.contents(last)).position
            idle = 0
            while idle < min(_IDLE_MAX, last + 1) and not any((await opened.contents(last - idle)).counts):
                idle += 1
        return _End(last, sum(sizes) * (last + 1) // len(sizes), position, False, idle)


def _view(value: StreamMetadata, segment: Segment, end: _End) -> SegmentView:
    whole = max(1, end.last + 1)
    kept = max(0, end.last + 1 - segment.min_entry) / whole
    return SegmentView(
        number=segment.number,
        name=segment.name,
        store=segment.store,
        first=segment.min_entry,
        first_slot=segment.min_slot,
        last=end.last,
        bytes=int(end.bytes * kept),
        records=int(end.records * kept),
        counted=end.records,
        is_completed=segment.completed,
        is_final=end.is_final,
        idle=end.idle,
        is_enveloped=_is_enveloped(segment),
        start_sequence_id=_start_sequence_id(value, segment),
        first_txid=segment.first_txid,
        last_txid=segment.last_txid,
        completed_unix_ms=segment.completed_unix_ms,
    )


def _start_sequence_id(value: StreamMetadata, segment: Segment) -> int:
    """The value the list will have once the segment is completed (dlog/log/changes.py); -1 while it is uncertain."""
    if segment.completed:
        return segment.start_sequence_id
    before = value.segment(segment.number - 1)
    if before is not None and before.completed and before.start_sequence_id >= 0:
        return before.start_sequence_id + before.record_count
    return 0 if segment.number == SEGMENT_FIRST else -1


def _is_enveloped(segment: Segment) -> bool:
    return segment.version >= 4


class _Opened:
    """A segment, opened to read single entries up to `last`."""

    def __init__(self, cluster: Cluster, ref: SegmentRef, segment: Segment, last: int) -> None:
        self._cluster = cluster
        self._ref = ref
        self._segment = segment
        self._last = last
        self._reader: SegmentReader

    async def __aenter__(self) -> _Opened:
        self._reader = await self._cluster.store(self._segment.store).open_reader(self._ref)
        self._reader.learn_lac(EntryId(self._last))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.close()

    async def locate(self, goal: SeekTarget, first: int, last: int) -> tuple[EntryId, EntryId]:
        return await self._reader.locate(EntryId(first), EntryId(last), goal.least, by_time=goal.by_time)

    async def payload(self, entry: int) -> bytes:
        return (await self._reader.read(EntryId(entry), EntryId(entry), 1))[0]

    async def contents(self, entry: int) -> EntryContents:
        return read_contents(await self.payload(entry), enveloped=_is_enveloped(self._segment))


async def records_before(cluster: Cluster, seen: Seen, position: StreamPosition) -> int:
    """Number of records of its segment before a position, from the entry there. -1 if it cannot be read."""
    segment, view = seen.value.segment(position.segment), seen.view.segment(position.segment)
    if segment is None or view is None or position.entry > view.last:
        return -1
    ref = SegmentRef(seen.value.name, segment.number, segment.name)
    try:
        async with _Opened(cluster, ref, segment, view.last) as opened:
            holds = await opened.contents(position.entry)
    except DLogError:
        return -1
    slots = zip(holds.first_slots, holds.counts, strict=True)
    earlier = sum(min(count, max(0, position.slot - first)) for first, count in slots)
    return holds.position - sum(holds.counts) + earlier


# ---- bounds ---------------------------------------------------------------------------------------------------------


async def resolve(cluster: Cluster, seen: Seen, bound: Bound) -> StreamPosition | None:
    """The position that a bound names; None if no record is as late as it asks."""
    match bound.kind:
        case Kind.EARLIEST:
            return seen.view.earliest
        case Kind.LATEST:
            return seen.view.latest
        case Kind.POSITION:
            return bound.position
        case _:
            return await _seek(cluster, seen, SeekTarget(bound.kind is Kind.TIME, bound.value))


async def _seek(cluster: Cluster, seen: Seen, goal: SeekTarget) -> StreamPosition | None:
    """Search the first segment that may hold the goal, as far as its store narrows that, then entry by entry."""
    begin = goal.segment_of(seen.value)
    if begin is None:
        return None
    for segment in seen.value.segments:
        view = seen.view.segment(segment.number)
        if segment.number < begin.number or view is None or not view.entries:
            continue
        ref = SegmentRef(seen.value.name, segment.number, segment.name)
        async with _Opened(cluster, ref, segment, view.last) as opened:
            halving = BinarySearch(goal, *await opened.locate(goal, view.first, view.last))
            while not halving.is_done:
                halving.handle(await opened.contents(halving.middle))
            for entry in range(halving.low, view.last + 1):
                slot = goal.slot_in(await opened.contents(entry))
                if slot is not None:
                    return max(StreamPosition(view.number, entry, slot), view.begin)
    return None
