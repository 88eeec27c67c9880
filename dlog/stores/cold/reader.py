"""Reading a segment object by ranges: its end first, then of the index and of the entries what is asked for.

The law of this file: no byte is handed out that was not checked. Who reads on and on gets a few MiB at a time, the next
ones fetched while the last are used; who looks at a single entry fetches that one. What does not match its checksum is
fetched once more before it is called damaged.
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
from dlog.stores.cold.keeping import Keeping
from dlog.stores.cold.objects import Objects
from dlog.stores.cold.options import ColdOptions
from dlog.stores.cold.places import Location
from dlog.stores.contract import ReaderClosedError, SegmentCorruptError

END_BYTES = 64 * KiB  # of an object, read first: footer, summary, and often all of the index
_BULK_BYTES = 64 * KiB  # who asks for so much reads more than one entry
_FOLLOWED_MAX = 16  # readers going on and on in one segment at once
_RANGES_MAX = 64


@dataclass(frozen=True, slots=True)
class Extent:
    """Payloads of consecutive entries; None: damaged."""

    first: int
    payloads: Sequence[bytes | None]
    size: int

    @property
    def last(self) -> int:
        return self.first + len(self.payloads) - 1


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of the index, checked."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


Key = tuple[str, str, int]  # place, what, number


class Opened:
    """One object whose end and header were read and found sound."""

    def __init__(self, shelves: Shelves, place: Location, summary: Summary, header: bytes) -> None:
        self.summary = summary
        self.place = place
        self.header = header
        self._shelves = shelves

    @property
    def last(self) -> int:
        return self.summary.head.last_entry

    async def rows(self, number: int) -> Rows:
        """A block of the index."""
        rows = await self._shelves.keeping.get((str(self.place), "rows", number), partial(self._load_rows, number))
        assert isinstance(rows, Rows)
        return rows

    async def plan(self, first: int, last: int, bytes_max: int) -> list[Row]:
        """Rows of entries first..last as far as they have so many bytes together; at least one."""
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
        """The payloads that these rows name."""
        size = sum(row.length for row in rows)
        payloads = _cut(await self._shelves.fetch(self.place, rows[0].offset, size), rows)
        if None in payloads:
            payloads = _cut(await self._shelves.fetch(self.place, rows[0].offset, size), rows)
        return Extent(first, payloads, size)

    async def load(self, first: int, last: int, bytes_max: int) -> Extent:
        return await self.extent(first, await self.plan(first, last, bytes_max))

    async def _load_rows(self, number: int) -> Rows:
        block = self.summary.blocks[number]
        data = await self._shelves.fetch(self.place, block.offset, block.bytes)
        try:
            parse_rows(data, block, self.summary)
        except DamagedError as error:
            raise SegmentCorruptError(f"{error.message}: place={self.place}") from error
        return Rows(data)


class Shelves:
    """What all readers of a process share: what was read, and the bound on what is read at once."""

    def __init__(self, objects: Objects, options: ColdOptions, keeping: Keeping[Key, Extent | Rows]) -> None:
        self.objects = objects
        self.options = options
        self.keeping = keeping
        self._turns = asyncio.Semaphore(options.fetches_max)

    async def fetch(self, place: Location, offset: int, size: int) -> bytes:
        async with self._turns:
            return await self.objects.read(place, offset, size)

    async def open(self, place: Location) -> Opened:
        """Read the end and the header. Raises SegmentNotFoundError, SegmentCorruptError, StoreUnavailableError."""
        async with self._turns:
            end, size = await self.objects.read_end(place, END_BYTES)
        try:
            footer = parse_footer(end[-FOOTER_BYTES:], size)
            begin = size - len(end)  # where `end` begins
            if footer.summary_at < begin:
                more = await self.fetch(place, footer.summary_at, begin - footer.summary_at)
                begin, end = footer.summary_at, more + end
            at = footer.summary_at - begin
            summary = parse_summary(end[at : at + footer.summary_bytes], footer)
            header = end[: summary.header_bytes] if not begin else await self.fetch(place, 0, summary.header_bytes)
            parse_header(header, summary)
        except DamagedError as error:
            raise SegmentCorruptError(f"{error.message}: place={place}") from error
        return Opened(self, place, summary, header)


class ColdSegmentReader:
    """A SegmentReader on an object: its end is known, and nothing more comes."""

    def __init__(self, opened: Opened, shelves: Shelves) -> None:
        self._opened = opened
        self._shelves = shelves
        self._awaited: OrderedDict[int, None] = OrderedDict()  # entries that a reader who goes on asks for next
        self._ranges: OrderedDict[int, int] = OrderedDict()  # first and last entry of extents that may be kept
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
        """See SegmentReader.read. UnsupportedVersionError where the object is newer than this program."""
        if not self._is_open:
            raise ReaderClosedError(f"the reader was closed: place={self._opened.place}")
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
            raise SegmentCorruptError(f"the entry's checksum does not match: place={self._opened.place} entry={first}")
        self._expect(extent, first + len(found), goes_on)
        return found

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        return await self.read(first, last, max_bytes)

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        """At once: all there will ever be is there."""
        return self.last_confirmed

    def learn_lac(self, lac: EntryId) -> None:
        """Nothing is to be learnt."""

    async def close(self) -> None:
        self._is_open = False

    async def _extent(self, first: int, last: int, max_bytes: int, goes_on: bool) -> Extent:
        """One that holds the entry `first`."""
        for begin, end in self._ranges.items():
            if begin <= first <= end:
                kept = self._shelves.keeping.find(self._key(begin))
                if isinstance(kept, Extent):
                    return kept
                del self._ranges[begin]
                break
        is_bulk = goes_on or max_bytes >= _BULK_BYTES
        upto, size = (self._opened.last, self._shelves.options.extent_bytes) if is_bulk else (last, max_bytes)
        extent = await self._shelves.keeping.get(self._key(first), partial(self._opened.load, first, upto, size))
        assert isinstance(extent, Extent)
        self._remember(extent.first, extent.last)
        return extent

    def _expect(self, extent: Extent, after: int, goes_on: bool) -> None:
        """Who reads these reads on at `after`; fetch what that will need."""
        if after > self._opened.last:
            return
        self._awaited[after] = None
        if len(self._awaited) > _FOLLOWED_MAX:
            self._awaited.popitem(last=False)
        ahead = extent.last + 1
        if goes_on and ahead <= self._opened.last and ahead not in self._ranges:
            load = partial(self._opened.load, ahead, self._opened.last, self._shelves.options.extent_bytes)
            self._shelves.keeping.ahead(self._key(ahead), load)

    def _key(self, first: int) -> Key:
        return (str(self._opened.place), "entries", first)

    def _remember(self, first: int, last: int) -> None:
        self._ranges[first] = last
        if len(self._ranges) > _RANGES_MAX:
            self._ranges.popitem(last=False)


def _cut(data: bytes, rows: Sequence[Row]) -> list[bytes | None]:
    """The payloads, each if it is sound."""
    view, begin = memoryview(data), rows[0].offset
    payloads: list[bytes | None] = []
    for row in rows:
        payload = view[row.offset - begin : row.offset - begin + row.length]
        payloads.append(bytes(payload) if is_sound(payload, row) else None)
    return payloads
