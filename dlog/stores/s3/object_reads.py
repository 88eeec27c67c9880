"""Reads entries of object streams from objects: indexes and blocks, through a cache.

Objects never change, so what was read and checked stays true. Which objects have an entry, the image says. Adjacent
blocks are read in one request where dlog/stores/s3/read_plan.py says so; each is checked and cached by itself.

Invariants:
- no byte is returned that was not checked;
- data that fail their checks are read once more before they count as damaged;
- an object that is not what its key says is damaged, and never read as another one;
- a block is in one request at most at a time, for all that wait for it;
- a damaged block is requested once more without its neighbours, and does not make them damaged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectRef, ObjectStreamId
from dlog.objects.image import Image, ObjectState
from dlog.options import KiB
from dlog.stores.contract import SegmentCorruptError, SegmentNotFoundError
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.object_storage.port import Objects
from dlog.stores.object_storage.read_limits import ReadLimits
from dlog.stores.s3.places import object_location
from dlog.stores.s3.ports import FindObjects
from dlog.stores.s3.read_plan import needed_blocks, plan_requests
from dlog.values import value
from dlog.wire.stream_object import (
    BlockRow,
    ObjectIndex,
    decode_block,
    decode_footer,
    decode_index,
    index_in,
    tail_bytes,
)

_INDEX_ROW_MEMORY = 300
_STREAMS_REMEMBERED = 64
_THREAD_BYTES = 256 * KiB  # from here on blocks are checked in a thread

T = TypeVar("T")
Key = Hashable


class ObjectGoneError(SegmentNotFoundError):
    """An object is not in the storage. It was compacted, or its stream deleted; or it is lost, if metadata has it."""


@value
class ObjectName:
    """What an object's key consists of, and its size."""

    object: ObjectId
    node: NodeId
    node_epoch: NodeEpoch
    bytes: int


@dataclass(frozen=True, slots=True)
class CachedIndex:
    """An index in the cache."""

    index: ObjectIndex

    @property
    def size(self) -> int:
        return _INDEX_ROW_MEMORY * (len(self.index.blocks) + 1)


@dataclass(frozen=True, slots=True)
class FetchedAhead:
    """Stands in the cache for an object whose index and first block of a stream were fetched ahead."""

    size: int = 200


@dataclass(frozen=True, slots=True)
class CachedEntries:
    """Payloads of consecutive entries, in the cache. bytes: of all."""

    payloads: tuple[memoryview, ...]
    bytes: int

    @property
    def size(self) -> int:
        return self.bytes + 200 * len(self.payloads) + 200


Decoded = CachedEntries | DamagedError  # a block that was read


def object_name(image: Image, object: ObjectId) -> ObjectName:
    """Raises ObjectGoneError if this image has it as destroyed."""
    if image.objects.state(object) not in (ObjectState.COMMITTED, ObjectState.MARKED):
        raise ObjectGoneError(f"the object is deleted: object={object}")
    return ObjectName(object, *image.objects.owner(object), image.objects.bytes_of(object))


class ObjectReads:
    """Reads objects for all segments of a process. fetches_max: requests at a time. limits: of one stream's reads."""

    def __init__(
        self,
        objects: Objects,
        find_folder: FindObjects,
        cache: AsyncLruCache[Key, Any],
        *,
        fetches_max: int,
        limits: ReadLimits,
    ) -> None:
        self._objects = objects
        self._find_folder = find_folder
        self._cache = cache
        self._turns = asyncio.Semaphore(fetches_max)
        self._limits = limits
        self._streams: deque[ObjectStreamId] = deque(maxlen=_STREAMS_REMEMBERED)  # of the last reads

    async def index(self, name: ObjectName) -> ObjectIndex:
        """Raises ObjectGoneError, SegmentCorruptError, StoreUnavailableError."""
        found: CachedIndex = await self._cache.get(("index", name.object), partial(self._load_index, name))
        return found.index

    async def rows(self, name: ObjectName, stream: ObjectStreamId, start: int, end: int) -> list[BlockRow]:
        """The blocks with the entries start..end-1 of a stream, which the object has by the metadata. Raises as
        `index`."""
        index = await self.index(name)
        return [index.blocks[at] for at in _blocks_of(index, stream, start, end)]

    async def read(
        self, name: ObjectName, ref: ObjectRef, stream: ObjectStreamId, start: int, end: int, max_bytes: int
    ) -> list[memoryview]:
        """Entries from `start` on, below `end`, at least one, from as many blocks as max_bytes takes. Raises as
        `index`. Cancelling stops the wait only."""
        index = await self.index(name)
        wanted = _blocks_of(index, stream, start, min(end, ref.end))
        available = index.find(stream, ref.start, ref.end)
        found: list[memoryview] = []
        size = 0
        for number in wanted:
            row = index.blocks[number]
            if number == wanted.start or not self._cache.has(_block_key(name, row)):
                left = range(number, wanted.stop)
                needed = needed_blocks(index.blocks, left, start, max_bytes - size)
                self._request(name, index, available, needed)
            try:
                block = await self.block(name, row)
            except SegmentCorruptError:
                if found:
                    return found
                raise
            for payload in block.payloads[start - row.start : end - row.start]:
                size += len(payload)
                if found and size > max_bytes:
                    return found
                found.append(payload)
                start += 1
            if size >= max_bytes:
                break
        return found

    def fetch_ahead(self, name: ObjectName, ref: ObjectRef, stream: ObjectStreamId) -> None:
        """Begin to fetch the index of an object that is read soon, and its first block of a stream. A stream that is
        written slowly has one small block in each of many objects."""
        self._cache.ahead(("ahead", name.object, stream), partial(self._fetch_first, name, ref, stream))

    async def _fetch_first(self, name: ObjectName, ref: ObjectRef, stream: ObjectStreamId) -> FetchedAhead:
        [row, *_] = await self.rows(name, stream, ref.start, ref.end)
        await self.block(name, row)
        return FetchedAhead()

    async def block(self, name: ObjectName, row: BlockRow, *, past_cache: bool = False) -> CachedEntries:
        """The entries of a block. Raises as `index`."""
        load = partial(self._load_block, name, row)
        found: CachedEntries = await (load() if past_cache else self._cache.get(_block_key(name, row), load))
        return found

    # ---- internal ---------------------------------------------------------------------------------------------------

    def _request(self, name: ObjectName, index: ObjectIndex, available: range, needed: range) -> None:
        """Begin to load the blocks that are needed, and those that are needed soon."""
        blocks, keys = index.blocks, partial(_block_key, name)
        self._streams.append(blocks[needed.start].stream)
        limits = self._limits.shared(len(set(self._streams)))
        for group in plan_requests(
            blocks, available, needed, limits, lambda number: self._cache.has(keys(blocks[number]))
        ):
            rows = [blocks[number] for number in group]
            if len(rows) == 1:
                self._cache.ahead(keys(rows[0]), partial(self._load_block, name, rows[0]))
                continue
            reading = self._cache.start(partial(self._read_group, name, rows), f"read {len(rows)} blocks of {name}")
            for number, row in enumerate(rows):
                self._cache.ahead(keys(row), partial(self._load_from_group, name, row, reading, number))

    async def _fetch(self, name: ObjectName, position: int, size: int) -> bytes:
        location = object_location(await self._find_folder(), name.object, name.node, name.node_epoch)
        async with self._turns:
            try:
                return await self._objects.read(location, position, size)
            except SegmentNotFoundError as error:
                raise ObjectGoneError(f"{error.message}: object={name.object}") from error

    async def _twice(
        self, name: ObjectName, load: Callable[[], Awaitable[T]], again: Callable[[], Awaitable[T]] | None = None
    ) -> T:
        """Load, and once more if the data are damaged. again: how, if not in the same way. Raises
        SegmentCorruptError."""
        try:
            return await load()
        except DamagedError:
            pass
        except UnsupportedVersionError as error:
            raise SegmentCorruptError(f"{error.message}: object={name.object}") from error
        try:
            return await (again or load)()
        except (DamagedError, UnsupportedVersionError) as error:
            raise SegmentCorruptError(f"{error.message}: object={name.object} node={name.node}") from error

    async def _load_index(self, name: ObjectName) -> CachedIndex:
        return await self._twice(name, partial(self._read_index, name))

    async def _read_index(self, name: ObjectName) -> CachedIndex:
        size = tail_bytes(name.bytes)
        tail = await self._fetch(name, name.bytes - size, size + 1)
        if len(tail) != size:
            raise DamagedError(f"the object has another size than the metadata say: expected={name.bytes}")
        footer = decode_footer(tail, name.bytes)
        if (footer.object, footer.node, footer.node_epoch) != (name.object, name.node, name.node_epoch):
            raise DamagedError(f"an object says that it is another: says={footer.object} node={footer.node}")
        data: memoryview | bytes | None = index_in(footer, tail)
        if data is None:
            data = await self._fetch(name, footer.index_position, footer.index_bytes)
        return CachedIndex(decode_index(footer, data))

    async def _load_block(self, name: ObjectName, row: BlockRow) -> CachedEntries:
        return await self._twice(name, partial(self._read_block, name, row))

    async def _load_from_group(
        self, name: ObjectName, row: BlockRow, reading: asyncio.Future[list[Decoded]], number: int
    ) -> CachedEntries:
        async def from_group() -> CachedEntries:
            await asyncio.wait((reading,))
            decoded = reading.result()[number]
            if isinstance(decoded, DamagedError):
                raise decoded
            return decoded

        return await self._twice(name, from_group, partial(self._read_block, name, row))

    async def _read_block(self, name: ObjectName, row: BlockRow) -> CachedEntries:
        [decoded] = await self._read_group(name, [row])
        if isinstance(decoded, DamagedError):
            raise decoded
        return decoded

    async def _read_group(self, name: ObjectName, rows: Sequence[BlockRow]) -> list[Decoded]:
        """Read adjacent blocks in one request, and check each."""
        first, last = rows[0], rows[-1]
        data = await self._fetch(name, first.position, last.position + last.bytes - first.position)
        if len(data) >= _THREAD_BYTES:
            return await asyncio.to_thread(_decode_blocks, rows, data)
        return _decode_blocks(rows, data)


def _blocks_of(index: ObjectIndex, stream: ObjectStreamId, start: int, end: int) -> range:
    """Numbers of the blocks with these entries of a stream. Raises SegmentCorruptError if the object lacks some."""
    found = index.find(stream, start, end)
    at = start
    for number in found:
        row = index.blocks[number]
        if row.start > at:
            break
        at = row.end
    if at < end:
        text = "an object lacks entries that the metadata has in it:"
        raise SegmentCorruptError(f"{text} object={index.footer.object} stream={stream} entry={at}")
    return found


def _decode_blocks(rows: Sequence[BlockRow], data: bytes) -> list[Decoded]:
    """Decode and check adjacent blocks. data: all of them, or less if the object is cut short."""
    return [_decode_block(row, data, row.position - rows[0].position) for row in rows]


def _decode_block(row: BlockRow, data: bytes, at: int) -> Decoded:
    if len(data) != row.bytes:
        data = data[at : at + row.bytes]  # a copy: in the cache, no block keeps its neighbours' bytes in memory
    try:
        entries = decode_block(row, data)
    except DamagedError as error:
        return error
    return CachedEntries(tuple(memoryview(entry.payload) for entry in entries), len(data))


def _block_key(name: ObjectName, row: BlockRow) -> Key:
    return ("block", name.object, row.position)
