"""Reads a segment object by ranges: its end first, then the required parts of index and entries.

A sequential reader gets a few MiB at a time, the next ones prefetched meanwhile; a read of a single entry fetches only
that one.

Invariants:
- no byte is returned that was not checked;
- data that fail their checksum are fetched once more before they count as damaged.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dlog.errors import DamagedError
from dlog.model.ids import EntryId
from dlog.options import KiB
from dlog.stores.cold.format import (
    BLOCK_ENTRIES,
    FOOTER_BYTES,
    Row,
    Summary,
    is_sound,
    parse_footer,
    parse_header,
    parse_rows,
    parse_summary,
    rows_from,
)
from dlog.stores.cold.options import ColdOptions
from dlog.stores.contract import ReaderClosedError, SegmentCorruptError
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Objects

END_BYTES = 64 * KiB  # read first: footer, summary, and often the whole index
_BULK_BYTES = 64 * KiB  # a request for this much is for more than one entry
_FOLLOWED_MAX = 16  # sequential reads tracked per segment
_RANGES_MAX = 64


@dataclass(frozen=True, slots=True)
class Extent:
    """Payloads of consecutive entries; None for a damaged one."""

    first: int
    payloads: Sequence[bytes | None]
    size: int

    @property
    def last(self) -> int:
        return self.first + len(self.payloads) - 1


@dataclass(frozen=True, slots=True)
class Rows:
    """A checked block of the index."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


Key = tuple[str, str, int]  # location, kind, number


class OpenObject:
    """An object whose end and header were read and checked."""

    def __init__(self, reads: ObjectReads, location: Location, summary: Summary, header: bytes) -> None:
        self.summary = summary
        self.location = location
        self.header = header
        self._reads = reads

    @property
    def last(self) -> int:
        return self.summary.head.last_entry

    async def rows(self, number: int) -> Rows:
        """Return a block of the index."""
        rows = await self._reads.cache.get((str(self.location), "rows", number), partial(self._load_rows, number))
        assert isinstance(rows, Rows)
        return rows

    async def plan(self, first: int, last: int, bytes_max: int) -> list[Row]:
        """Return the rows of entries from `first` to at most `last` that hold bytes_max together; at least one."""
        found: list[Row] = []
        size = 0
        while first + len(found) <= last:
            entry = first + len(found)
            block = await self.rows(self.summary.block_of(entry))
            for row in rows_from(block.data, entry % BLOCK_ENTRIES):
                if first + len(found) > last or (found and size + row.length > bytes_max):
                    return found
                found.append(row)
                size += row.length
        return found

    async def extent(self, first: int, rows: Sequence[Row]) -> Extent:
        """Read the payloads of these rows."""
        size = sum(row.length for row in rows)
        payloads = _cut(await self._reads.fetch(self.location, rows[0].offset, size), rows)
        if None in payloads:
            payloads = _cut(await self._reads.fetch(self.location, rows[0].offset, size), rows)
        return Extent(first, payloads, size)

    async def load(self, first: int, last: int, bytes_max: int) -> Extent:
        return await self.extent(first, await self.plan(first, last, bytes_max))

    async def _load_rows(self, number: int) -> Rows:
        block = self.summary.blocks[number]
        data = await self._reads.fetch(self.location, block.offset, block.bytes)
        try:
            parse_rows(data, block, self.summary)
        except DamagedError as error:
            raise SegmentCorruptError(f"{error.message}: location={self.location}") from error
        return Rows(data)


class ObjectReads:
    """State shared by a process's readers: the cache, and the limit of concurrent reads."""

    def __init__(self, objects: Objects, options: ColdOptions, cache: AsyncLruCache[Key, Extent | Rows]) -> None:
        self.objects = objects
        self.options = options
        self.cache = cache
        self._turns = asyncio.Semaphore(options.fetches_max)

    async def fetch(self, location: Location, offset: int, size: int) -> bytes:
        async with self._turns:
            return await self.objects.read(location, offset, size)

    async def open(self, location: Location) -> OpenObject:
        """Read the end and the header. Raises SegmentNotFoundError, SegmentCorruptError, StoreUnavailableError."""
        async with self._turns:
            end, size = await self.objects.read_end(location, END_BYTES)
        try:
            footer = parse_footer(end[-FOOTER_BYTES:], size)
            begin = size - len(end)  # offset of `end` in the object
            if footer.summary_at < begin:
                more = await self.fetch(location, footer.summary_at, begin - footer.summary_at)
                begin, end = footer.summary_at, more + end
            at = footer.summary_at - begin
            summary = parse_summary(end[at : at + footer.summary_bytes], footer)
            header = end[: summary.header_bytes] if not begin else await self.fetch(location, 0, summary.header_bytes)
            parse_header(header, summary)
        except DamagedError as error:
            raise SegmentCorruptError(f"{error.message}: location={location}") from error
        return OpenObject(self, location, summary, header)


class ColdSegmentReader:
    """A SegmentReader on an object: its end is known and final."""

    def __init__(self, opened: OpenObject, reads: ObjectReads) -> None:
        self._opened = opened
        self._reads = reads
        self._awaited: OrderedDict[int, None] = OrderedDict()  # entries that a sequential reader requests next
        self._ranges: OrderedDict[int, int] = OrderedDict()  # first and last entry of extents that may be cached
        self._is_open = True

    @property
    def last_confirmed(self) -> EntryId:
        return EntryId(self._opened.last)

    @property
    def end(self) -> EntryId | None:
        return EntryId(self._opened.last)

    @property
    def summary(self) -> Summary:
        return self._opened.summary

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        """See SegmentReader.read. Also raises UnsupportedVersionError, for an object of a newer format."""
        if not self._is_open:
            raise ReaderClosedError(f"the reader was closed, open another one: location={self._opened.location}")
        assert 0 <= first <= self._opened.last, f"read above the LAC: first={first} lac={self._opened.last}"
        goes_on = self._awaited.pop(first, False) is None
        upto = min(int(last), self._opened.last)
        extent = await self._extent(first, upto, max_bytes, goes_on)
        found: list[bytes] = []
        size = 0
        for payload in extent.payloads[first - extent.first : upto + 1 - extent.first]:
            size += 0 if payload is None else len(payload)
            if payload is None or (found and size > max_bytes):
                break
            found.append(payload)
        if not found:
            raise SegmentCorruptError(
                f"the entry's checksum does not match: location={self._opened.location} entry={first}"
            )
        self._expect(extent, first + len(found), goes_on)
        return found

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        return await self.read(first, last, max_bytes)

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        """Narrow nothing: there is no index of txids and times."""
        return first, last

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        """Return at once: the segment is complete."""
        return self.last_confirmed

    def learn_lac(self, lac: EntryId) -> None:
        """Does nothing: the LAC is final."""

    async def close(self) -> None:
        self._is_open = False

    async def _extent(self, first: int, last: int, max_bytes: int, goes_on: bool) -> Extent:
        """Return an extent that contains the entry `first`."""
        for begin, end in self._ranges.items():
            if begin <= first <= end:
                kept = self._reads.cache.find(self._key(begin))
                if isinstance(kept, Extent):
                    return kept
                del self._ranges[begin]
                break
        is_bulk = goes_on or max_bytes >= _BULK_BYTES
        upto, size = (self._opened.last, self._reads.options.extent_bytes) if is_bulk else (last, max_bytes)
        extent = await self._reads.cache.get(self._key(first), partial(self._opened.load, first, upto, size))
        assert isinstance(extent, Extent)
        self._remember(extent.first, extent.last)
        return extent

    def _expect(self, extent: Extent, after: int, goes_on: bool) -> None:
        """Expect a sequential read at `after`, and prefetch what it will need."""
        if after > self._opened.last:
            return
        self._awaited[after] = None
        if len(self._awaited) > _FOLLOWED_MAX:
            self._awaited.popitem(last=False)
        ahead = extent.last + 1
        if goes_on and ahead <= self._opened.last and ahead not in self._ranges:
            load = partial(self._opened.load, ahead, self._opened.last, self._reads.options.extent_bytes)
            self._reads.cache.ahead(self._key(ahead), load)

    def _key(self, first: int) -> Key:
        return (str(self._opened.location), "entries", first)

    def _remember(self, first: int, last: int) -> None:
        self._ranges[first] = last
        if len(self._ranges) > _RANGES_MAX:
            self._ranges.popitem(last=False)


def _cut(data: bytes, rows: Sequence[Row]) -> list[bytes | None]:
    """Cut out the payloads; None for those that fail their checksum."""
    view, begin = memoryview(data), rows[0].offset
    payloads: list[bytes | None] = []
    for row in rows:
        payload = view[row.offset - begin : row.offset - begin + row.length]
        payloads.append(bytes(payload) if is_sound(payload, row) else None)
    return payloads
