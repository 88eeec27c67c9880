"""Reads chunks of segments from an object storage: names, heads, rows and payloads.

Chunks never change, so what was read stays true and is cached. Whether a chunk still exists is never answered from the
cache.

Invariants:
- no byte is returned that was not checked;
- data that fail their checksum are read once more before they count as damaged.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgpack

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.ids import Epoch, SegmentNumber, StreamName
from dlog.options import KiB
from dlog.stores.contract import SegmentCorruptError, SegmentNotFoundError
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.object_storage.locations import Location, parse_location
from dlog.stores.object_storage.port import Found, Objects
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.wire.chunk import HEAD_BYTES, ChunkHead, ChunkKind, decode_body, decode_head, decode_rows
from dlog.wire.chunk_index import ChunkIndex, decode_index
from dlog.wire.digest import crc32c

INDEX_BYTES_MAX = 1 << 30
START_BYTES = 64 * KiB  # of a chunk, read first: its head, often all of it
_SEGMENTS_REMEMBERED = 64
_NUMBER_DIGITS = 20
_NAME = re.compile(r"[0-9a-f]{32}\Z")
_NUMBER = re.compile(rf"[0-9]{{{_NUMBER_DIGITS}}}\Z")
_DATA = "data-"
_MERGED = re.compile(rf"(?:index|{_DATA}[0-9a-f]{{32}})\Z")

Key = tuple[str, int, int]  # segment, chunk, extent; -1 for the start of the chunk


@dataclass(frozen=True, slots=True)
class Chain:
    """Where the chunks of a segment are. name: of the segment's location, 32 hexadecimal digits."""

    segments: Location
    name: str

    @property
    def folder(self) -> Location:
        return self.segments.below(self.name)

    @property
    def segment(self) -> bytes:
        return bytes.fromhex(self.name)

    def place(self, number: int) -> Location:
        return self.folder.below(f"{number:0{_NUMBER_DIGITS}d}")

    @property
    def index(self) -> Location:
        """Of a merged segment's index."""
        return self.folder.below("index")

    def data(self, nonce: bytes) -> Location:
        """Of merged chunks."""
        return self.folder.below(f"{_DATA}{nonce.hex()}")


def check_name(name: str) -> None:
    """Raises SegmentNotFoundError if no segment here can have this name."""
    if not _NAME.match(name):
        raise SegmentNotFoundError(f"not the location of a segment in objects: location={name[:200]!r}")


def number_of(folder: Location, found: Found) -> int | None:
    """The number of a chunk by its location; None for another object."""
    rest = found.location.removeprefix(f"{folder}/")
    return int(rest) if _NUMBER.match(rest) else None


def segment_of(segments: Location, found: Found) -> str | None:
    """The segment of a chunk, or of what is made of chunks, by its location; None for another object."""
    name, _, rest = found.location.removeprefix(f"{segments}/").partition("/")
    return name if _NAME.match(name) and (_NUMBER.match(rest) or _MERGED.match(rest)) else None


def is_merged(folder: Location, found: Found) -> bool:
    """Whether an object is an index or merged chunks."""
    return _MERGED.match(found.location.removeprefix(f"{folder}/")) is not None


@dataclass(frozen=True, slots=True)
class Description:
    """What BEGIN says of its segment."""

    stream: StreamName
    number: SegmentNumber
    epoch: Epoch

    def encode(self) -> bytes:
        encoded: bytes = msgpack.packb([self.stream, self.number, self.epoch])
        return encoded


def parse_description(data: bytes) -> Description:
    """Raises DamagedError."""
    try:
        stream, number, epoch = msgpack.unpackb(data)
        if (type(stream), type(number), type(epoch)) == (str, int, int):
            return Description(StreamName(stream), SegmentNumber(number), Epoch(epoch))
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    raise DamagedError(f"the first chunk of a segment does not describe it: description={data[:80]!r}")


@dataclass(frozen=True, slots=True)
class ChunkStart:
    """The first bytes of a chunk: head and rows, and of a short chunk everything.

    offsets: where in the chunk each entry's payload begins, and where the last one ends. cuts: the entries with which
    extents begin, counted from the chunk's first, and the number of its entries. damaged: entries, counted likewise,
    whose payload is in `data` and does not verify.
    """

    head: ChunkHead
    data: bytes
    offsets: array[int]
    crcs: array[int]
    cuts: tuple[int, ...]
    damaged: frozenset[int]

    @property
    def size(self) -> int:
        return len(self.data) + 12 * len(self.crcs) + 200

    @property
    def is_whole(self) -> bool:
        return len(self.data) == HEAD_BYTES + self.head.body_bytes

    @property
    def extents(self) -> int:
        """How many extents are read besides the start."""
        return 0 if self.is_whole else len(self.cuts) - 1

    def extent_of(self, index: int) -> int:
        return bisect_right(self.cuts, index) - 1

    def extent_bytes(self, extent: int) -> int:
        return self.offsets[self.cuts[extent + 1]] - self.offsets[self.cuts[extent]]


@dataclass(frozen=True, slots=True)
class Extent:
    """Payloads of consecutive entries of a chunk. offset: of the data in the chunk. damaged: see ChunkStart."""

    offset: int
    data: bytes
    damaged: frozenset[int]

    @property
    def size(self) -> int:
        return len(self.data) + 100


class ChunkReads:
    """Reads chunks for all segments of a process."""

    def __init__(
        self, objects: Objects, options: ObjectsOptions, cache: AsyncLruCache[Key, ChunkStart | Extent | ChunkIndex]
    ) -> None:
        self._objects = objects
        self._options = options
        self._cache = cache
        self._turns = asyncio.Semaphore(options.fetches_max)
        self._segments: deque[str] = deque(maxlen=_SEGMENTS_REMEMBERED)  # of the last sequential reads

    async def numbers_behind(self, chain: Chain, behind: int, most: int) -> tuple[int, ...]:
        """The numbers of the chunks above `behind`, in order; at most so many."""
        after = chain.place(behind) if behind >= 0 else None
        numbers: list[int] = []
        while True:
            listed = [one async for one in self._objects.list(chain.folder, behind=after, limit=most)]
            numbers += [number for one in listed if (number := number_of(chain.folder, one)) is not None]
            if len(listed) < most or len(numbers) >= most:
                return tuple(numbers[:most])
            after = parse_location(listed[-1].location)
            assert after is not None, "it was listed"

    async def heads(self, chain: Chain, numbers: Sequence[int]) -> tuple[ChunkHead, ...]:
        """The heads of chunks that exist. Raises SegmentNotFoundError, SegmentCorruptError, StoreUnavailableError."""
        loading = [
            self._cache.start(partial(self.start, chain, number), f"head {number} of {chain.name}")
            for number in numbers
        ]
        if loading:
            await asyncio.wait(loading)
        return tuple(one.result().head for one in loading)

    async def kinds(self, chain: Chain, numbers: Sequence[int]) -> tuple[ChunkKind | None, ...]:
        """The kinds of chunks, past the cache; None for one that is missing, or has no head that can be read. Raises
        StoreUnavailableError."""
        reading = [
            self._cache.start(partial(self._kind, chain, number), f"kind of {number} of {chain.name}")
            for number in numbers
        ]
        return tuple([await one for one in reading])

    async def start(self, chain: Chain, number: int) -> ChunkStart:
        """The start of a chunk, perhaps from the cache. Raises as `heads`."""
        found = await self._cache.get((chain.name, number, -1), partial(self.load_start, chain, number))
        assert isinstance(found, ChunkStart)
        return found

    async def load_start(self, chain: Chain, number: int) -> ChunkStart:
        """`start`, past the cache: shows that the chunk exists."""
        try:
            return await self._load_start(chain, number)
        except (DamagedError, UnsupportedVersionError):
            pass
        try:
            return await self._load_start(chain, number)
        except (DamagedError, UnsupportedVersionError) as error:
            raise SegmentCorruptError(f"{error.message}: object={chain.place(number)}") from error

    async def payloads(
        self, chain: Chain, start: ChunkStart, entry: int, last: int, max_bytes: int
    ) -> list[memoryview]:
        """Payloads from `entry` to at most `last` of a chunk with this entry, at least one; none if the first one is
        damaged. One extent is read at most."""
        index, end = entry - start.head.first, min(last + 1, start.head.end) - start.head.first
        data, offset, damaged = memoryview(start.data), 0, start.damaged
        if start.offsets[index + 1] > len(start.data):
            extent = await self._extent(chain, start, start.extent_of(index))
            data, offset, damaged = memoryview(extent.data), extent.offset, extent.damaged
        found: list[memoryview] = []
        size = 0
        while index < end and index not in damaged:
            begin, stop = start.offsets[index] - offset, start.offsets[index + 1] - offset
            size += stop - begin
            if stop > len(data) or (found and size > max_bytes):
                break
            found.append(data[begin:stop])
            index += 1
        return found

    async def payload(self, chain: Chain, start: ChunkStart, entry: int) -> memoryview | None:
        """The payload of one entry of a chunk, without its neighbours; None if it is damaged."""
        index = entry - start.head.first
        begin, end = start.offsets[index], start.offsets[index + 1]
        if end <= len(start.data):
            return None if index in start.damaged else memoryview(start.data)[begin:end]
        data = await self._fetch(chain, start.head.number, begin, end - begin)
        return memoryview(data) if len(data) == end - begin and crc32c(data) == start.crcs[index] else None

    def read_ahead(self, chain: Chain, start: ChunkStart, entry: int, next_number: int) -> None:
        """Begin reads that a sequential reader needs after `entry` of this chunk. next_number: of the first chunk that
        does not exist."""
        self._segments.append(chain.name)
        left = self._options.read_limits.shared(len(set(self._segments))).ahead_bytes
        extent = start.extent_of(min(entry - start.head.first, start.head.entries - 1)) + 1
        left = self._request(chain, start, extent, left)
        first = start.head.number + 1
        for number in range(first, min(first + self._options.reads_ahead, next_number)):
            found = self._cache.find((chain.name, number, -1))
            if isinstance(found, ChunkStart):
                left = self._request(chain, found, 0, left - len(found.data))
            else:
                self._cache.ahead((chain.name, number, -1), partial(self.load_start, chain, number))

    async def whole(self, chain: Chain, number: int) -> tuple[ChunkHead, bytes]:
        """Read a chunk and check every byte; return its head and all of it. Raises DamagedError, SegmentNotFoundError,
        SegmentCorruptError, StoreUnavailableError."""
        start = await self.load_start(chain, number)
        data = await self._fetch(chain, number, HEAD_BYTES, start.head.body_bytes)
        decode_body(start.head, data)
        return start.head, start.data[:HEAD_BYTES] + data

    async def index(self, chain: Chain) -> ChunkIndex | None:
        """The index of a merged segment, perhaps from the cache; None if there is none. Raises SegmentCorruptError,
        StoreUnavailableError."""
        try:
            found = await self._cache.get((chain.name, -1, -1), partial(self._load_index, chain))
        except SegmentNotFoundError:
            return None
        assert isinstance(found, ChunkIndex)
        return found

    async def place_of(self, chain: Chain, number: int) -> Location:
        """The location of the object with a chunk. Raises as `index`."""
        index = await self.index(chain)
        return chain.place(number) if index is None else chain.data(index.nonce)

    # ---- internal ---------------------------------------------------------------------------------------------------

    def _request(self, chain: Chain, start: ChunkStart, first: int, bytes_max: int) -> int:
        """Begin reads of the extents of a chunk from `first` on, at most so many bytes; return how many are left."""
        for extent in range(first, start.extents):
            bytes_max -= start.extent_bytes(extent)
            if bytes_max < 0:
                break
            key = (chain.name, start.head.number, extent)
            self._cache.ahead(key, partial(self._load_extent, chain, start, extent))
        return bytes_max

    async def _kind(self, chain: Chain, number: int) -> ChunkKind | None:
        for _ in range(2):
            try:
                head = decode_head(await self._fetch(chain, number, 0, HEAD_BYTES))
            except SegmentNotFoundError:
                return None
            except (DamagedError, UnsupportedVersionError):
                continue
            if (head.segment, head.number) == (chain.segment, number):
                return head.kind
        return None

    async def _fetch(self, chain: Chain, number: int, offset: int, size: int) -> bytes:
        """Read a part of a chunk: of its object, or, once there is none, of the merged chunks."""
        index = self._cache.find((chain.name, -1, -1))
        if index is None:
            try:
                return await self._read(chain.place(number), offset, size)
            except SegmentNotFoundError:
                index = await self.index(chain) if number else None
                if index is None:
                    raise
        assert isinstance(index, ChunkIndex)
        place = index.place(number)
        if place is None:
            return await self._read(chain.place(number), offset, size)
        at, end = place
        return await self._read(chain.data(index.nonce), at + offset, min(size, end - offset))

    async def _read(self, location: Location, offset: int, size: int) -> bytes:
        async with self._turns:
            return await self._objects.read(location, offset, size)

    async def _load_index(self, chain: Chain) -> ChunkIndex:
        for is_last in (False, True):
            data = await self._read(chain.index, 0, INDEX_BYTES_MAX)
            try:
                found = decode_index(data)
                if found.segment != chain.segment:
                    raise DamagedError("the index is one of another segment")
            except (DamagedError, UnsupportedVersionError) as error:
                if is_last:
                    raise SegmentCorruptError(f"{error.message}: object={chain.index}") from error
            else:
                return found
        raise AssertionError("the last one returns or raises")

    async def _load_start(self, chain: Chain, number: int) -> ChunkStart:
        data = await self._fetch(chain, number, 0, START_BYTES)
        head = decode_head(data)
        if (head.segment, head.number) != (chain.segment, number):
            raise DamagedError(f"the object is a chunk of another segment: segment={head.segment.hex()}:{head.number}")
        offsets, crcs = array("Q"), array("I")
        if head.kind is not ChunkKind.DATA:
            decode_body(head, data[HEAD_BYTES:])
            return ChunkStart(head, data, offsets, crcs, (0,), frozenset())
        body_at = HEAD_BYTES + head.rows_bytes
        if body_at > len(data) == START_BYTES:
            data += await self._fetch(chain, number, len(data), body_at - len(data))
        for row in decode_rows(head, data[HEAD_BYTES:body_at]):
            offsets.append(row.offset)
            crcs.append(row.crc)
        offsets.append(HEAD_BYTES + head.body_bytes)
        cuts = [0]
        while cuts[-1] < head.entries:
            upto = offsets[cuts[-1]] + self._options.extent_bytes
            cuts.append(max(cuts[-1] + 1, bisect_right(offsets, upto) - 1))
        if (cut_short := min(len(data), offsets[-1]) < min(START_BYTES, offsets[-1])) or len(data) > offsets[-1]:
            raise DamagedError(f"the chunk is {'cut short' if cut_short else 'too long'}: bytes={len(data)}")
        here = bisect_right(offsets, len(data)) - 1
        damaged = _damaged(data, 0, offsets, crcs, range(here))
        if damaged:
            data = await self._fetch(chain, number, 0, len(data))
            damaged = _damaged(data, 0, offsets, crcs, range(here))
        return ChunkStart(head, data, offsets, crcs, tuple(cuts), damaged)

    async def _extent(self, chain: Chain, start: ChunkStart, extent: int) -> Extent:
        key = (chain.name, start.head.number, extent)
        found = await self._cache.get(key, partial(self._load_extent, chain, start, extent))
        assert isinstance(found, Extent)
        return found

    async def _load_extent(self, chain: Chain, start: ChunkStart, extent: int) -> Extent:
        entries = range(start.cuts[extent], start.cuts[extent + 1])
        offset, end = start.offsets[entries.start], start.offsets[entries.stop]
        data = await self._fetch(chain, start.head.number, offset, end - offset)
        damaged = _damaged(data, offset, start.offsets, start.crcs, entries)
        if damaged:
            data = await self._fetch(chain, start.head.number, offset, end - offset)
            damaged = _damaged(data, offset, start.offsets, start.crcs, entries)
        return Extent(offset, data, damaged)


def _damaged(data: bytes, at: int, offsets: Sequence[int], crcs: Sequence[int], entries: range) -> frozenset[int]:
    """Those of these entries that do not verify. at: the offset of the data in the chunk."""
    view = memoryview(data)
    return frozenset(
        index
        for index in entries
        if offsets[index + 1] - at > len(data)
        or crc32c(view[offsets[index] - at : offsets[index + 1] - at]) != crcs[index]
    )
