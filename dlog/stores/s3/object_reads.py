"""Reads entries of object streams from objects: indexes and blocks, through a cache.

Objects never change, so what was read and checked stays true. Which objects have an entry, the image says.

Invariants:
- no byte is returned that was not checked;
- data that fail their checks are read once more before they count as damaged;
- an object that is not what its key says is damaged, and never read as another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
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
from dlog.stores.s3.places import object_location
from dlog.stores.s3.ports import FindObjects
from dlog.values import value
from dlog.wire.stream_object import (
    BLOCK_HEAD_BYTES,
    BlockRow,
    ObjectIndex,
    decode_block,
    decode_footer,
    decode_index,
    index_in,
    tail_bytes,
)

_ROW_BYTES = 8  # of an entry in a block without spans
_SPAN_ROW_BYTES = 41  # of an entry in a block with spans
_INDEX_ROW_MEMORY = 300
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


def payload_bytes(row: BlockRow) -> int:
    """The bytes of all payloads of a block."""
    row_bytes = _ROW_BYTES if row.span is None else _SPAN_ROW_BYTES
    return row.bytes - BLOCK_HEAD_BYTES - (row.end - row.start) * row_bytes


def object_name(image: Image, object: ObjectId) -> ObjectName:
    """Raises ObjectGoneError if this image has it as destroyed."""
    if image.objects.state(object) not in (ObjectState.COMMITTED, ObjectState.MARKED):
        raise ObjectGoneError(f"the object is deleted: object={object}")
    return ObjectName(object, *image.objects.owner(object), image.objects.bytes_of(object))


class ObjectReads:
    """Reads objects for all segments of a process. fetches_max: requests at a time. reads_ahead: blocks."""

    def __init__(
        self,
        objects: Objects,
        find_folder: FindObjects,
        cache: AsyncLruCache[Key, Any],
        *,
        fetches_max: int,
        reads_ahead: int,
    ) -> None:
        self._objects = objects
        self._find_folder = find_folder
        self._cache = cache
        self._turns = asyncio.Semaphore(fetches_max)
        self._reads_ahead = reads_ahead

    async def index(self, name: ObjectName) -> ObjectIndex:
        """Raises ObjectGoneError, SegmentCorruptError, StoreUnavailableError."""
        found: CachedIndex = await self._cache.get(("index", name.object), partial(self._load_index, name))
        return found.index

    async def rows(self, name: ObjectName, stream: ObjectStreamId, start: int, end: int) -> list[BlockRow]:
        """The blocks with the entries start..end-1 of a stream, which the object has by the metadata. Raises as
        `index`."""
        index = await self.index(name)
        rows = [index.blocks[at] for at in index.find(stream, start, end)]
        at = start
        for row in rows:
            if row.start > at:
                break
            at = row.end
        if at < end:
            text = "an object lacks entries that the metadata has in it:"
            raise SegmentCorruptError(f"{text} object={name.object} stream={stream} entry={at}")
        return rows

    async def read(
        self, name: ObjectName, ref: ObjectRef, stream: ObjectStreamId, start: int, end: int, max_bytes: int
    ) -> list[memoryview]:
        """Entries from `start` on, below `end`, at least one, from as many blocks as max_bytes takes. Raises as
        `index`."""
        rows = await self.rows(name, stream, start, min(end, ref.end))
        ahead = await self.rows(name, stream, start, ref.end) if end < ref.end else rows
        found: list[memoryview] = []
        size = 0
        for at, row in enumerate(rows):
            for following in ahead[at + 1 : at + 1 + self._reads_ahead]:
                self._cache.ahead(_block_key(name, following), partial(self._load_block, name, following))
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

    async def _fetch(self, name: ObjectName, position: int, size: int) -> bytes:
        location = object_location(await self._find_folder(), name.object, name.node, name.node_epoch)
        async with self._turns:
            try:
                return await self._objects.read(location, position, size)
            except SegmentNotFoundError as error:
                raise ObjectGoneError(f"{error.message}: object={name.object}") from error

    async def _twice(self, name: ObjectName, load: Callable[[], Awaitable[T]]) -> T:
        """Load, and once more if the data are damaged. Raises SegmentCorruptError."""
        try:
            return await load()
        except DamagedError:
            pass
        except UnsupportedVersionError as error:
            raise SegmentCorruptError(f"{error.message}: object={name.object}") from error
        try:
            return await load()
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

    async def _read_block(self, name: ObjectName, row: BlockRow) -> CachedEntries:
        data = await self._fetch(name, row.position, row.bytes)
        if len(data) >= _THREAD_BYTES:
            entries = await asyncio.to_thread(decode_block, row, data)
        else:
            entries = decode_block(row, data)
        return CachedEntries(tuple(memoryview(entry.payload) for entry in entries), len(data))


def _block_key(name: ObjectName, row: BlockRow) -> Key:
    return ("block", name.object, row.position)
