"""Reads the write-ahead logs of other processes' nodes: what is confirmed and not uploaded yet.

A node's log is scanned once for all streams, from its flush point on, and then followed. Of its entries only the places
are kept in memory; the payloads go through the cache.

Invariants:
- Entries are noted in the order of the log, and only those that the log's store shows as confirmed, so none of them is
  ever dropped.
- The scan goes on in the next segment once it has all entries of the one before: that one is sealed, or the next one
  has an entry already, which a node appends only then.
- What lies below the flush point of the image is forgotten: it is in objects.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.model.ids import EntryId
from dlog.model.object_streams import NodeId, ObjectStreamId, WalPosition, WalSegment
from dlog.options import MiB
from dlog.stores.contract import (
    Buffer,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentReader,
    SegmentStore,
    StoreError,
)
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.s3.metadata import MetadataView
from dlog.stores.s3.tasks import Tasks
from dlog.stores.s3.wal_segments import wal_ref, wal_store
from dlog.wire.node_wal import WalEntry, decode_wal_entry

READ_BYTES = 1 * MiB  # at once
AHEAD = 4  # entries of the log that are loaded before a read of one stream needs them
LOADED_BYTES = 1 * MiB  # of such an entry, about
Seen = Callable[[ObjectStreamId, int], None]  # stream, end


@dataclass(frozen=True, slots=True)
class _Noted:
    """A frame: entries first..end-1 of a stream, in a WAL entry. bytes: of the payloads."""

    first: int
    end: int
    segment: int
    entry: int
    frame: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A WAL entry in the cache. bytes: of it."""

    entry: WalEntry
    bytes: int

    @property
    def size(self) -> int:
        return 2 * self.bytes + 200


class WalFollower:
    """Follows the log of one node. seen: called when more of a stream is known to be confirmed."""

    def __init__(
        self,
        node: NodeId,
        metadata: MetadataView,
        stores: Mapping[str, SegmentStore],
        cache: AsyncLruCache[Any, Any],
        seen: Seen,
        *,
        poll_s: float,
    ) -> None:
        self.node = node
        self.users = 0
        self._metadata = metadata
        self._stores = stores
        self._cache = cache
        self._seen = seen
        self._poll_s = poll_s
        self._segment = self._entry = 0  # where the scan goes on
        self._flush = WalPosition(0, 0)
        self._streams: dict[ObjectStreamId, list[_Noted]] = {}
        self._readers: dict[int, tuple[WalSegment, SegmentReader]] = {}
        self._turn = asyncio.Lock()
        self._is_closed = False

    def end_of(self, stream: ObjectStreamId) -> int | None:
        """The end of what the log has of a stream; None: nothing."""
        noted = self._streams.get(stream)
        return noted[-1].end if noted else None

    def bytes_of(self, stream: ObjectStreamId, start: int) -> tuple[int, int] | None:
        """The end of what the log has of a stream without a gap from `start` on, and the bytes of these entries if
        `start` begins a frame, else -1. None: it does not have `start`."""
        noted = self._streams.get(stream, [])
        at = bisect_right(noted, start, key=_first) - 1
        if at < 0 or noted[at].end <= start:
            return None
        total = sum(one.bytes for one in noted[at:]) if noted[at].first == start else -1
        return noted[-1].end, total

    def place_of(self, stream: ObjectStreamId, offset: int) -> WalPosition | None:
        """The entry of the log that has an entry of a stream, for tools; None: the log does not have it, or not any
        more."""
        noted = self._streams.get(stream, [])
        at = bisect_right(noted, offset, key=_first) - 1
        if at < 0 or noted[at].end <= offset:
            return None
        return WalPosition(noted[at].segment, noted[at].entry)

    async def read(self, stream: ObjectStreamId, start: int, end: int, bytes_max: int) -> list[Buffer]:
        """Entries from `start` on, below `end`, without a gap; none if the log does not have `start`, or not any more.
        Raises StoreError."""
        found: list[Buffer] = []
        size = 0
        noted = self._streams.get(stream, [])
        at = bisect_right(noted, start, key=_first) - 1
        for index in range(max(at, 0), len(noted)):
            one = noted[index]
            if not one.first <= start < one.end or start >= end or (found and size >= bytes_max):
                break
            self._fetch_ahead(noted, index + 1, end, bytes_max - size - one.bytes)
            try:
                decoded = await self._decoded(one.segment, one.entry)
            except SegmentNotFoundError:
                break  # deleted, so it is in objects
            for entry in decoded.entry.frames[one.frame].entries[start - one.first : end - one.first]:
                size += len(entry.payload)
                if found and size > bytes_max:
                    return found
                found.append(entry.payload)
                start += 1
        return found

    async def catch_up(self) -> None:
        """Scan everything that was confirmed before this call, by what the image has of the log. Raises StoreError."""
        async with self._turn:
            await self._scan()

    async def follow(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow_once()
            except SegmentNotFoundError:  # deleted, so all of it is in objects
                gone = self._readers.pop(self._segment, None)
                if gone is not None:
                    await gone[1].close()
                await self._metadata.wait_newer(self._poll_s)
            except StoreError:
                await asyncio.sleep(self._poll_s)
            await asyncio.sleep(0)

    async def close(self) -> None:
        self._is_closed = True
        readers, self._readers = self._readers, {}
        for _, reader in readers.values():
            await reader.close()

    # ---- internal ---------------------------------------------------------------------------------------------------

    async def _follow_once(self) -> None:
        current = self._readers.get(self._segment)
        if current is not None:
            reader = current[1]
            if reader.end is not None and self._entry > reader.end:
                await self._metadata.wait_newer(self._poll_s)
            elif await reader.wait_lac(EntryId(self._entry - 1), self._poll_s) >= self._entry:
                async with self._turn:
                    if self._readers.get(self._segment) is current:
                        await self._read(*current)
                return
        await self.catch_up()
        if self._segment not in self._readers:  # the image has no segment from there on
            await self._metadata.wait_newer(self._poll_s)

    async def _scan(self) -> None:
        segments = await self._segments()
        for at, segment in enumerate(segments):
            if segment.number < self._segment:
                continue
            if segment.number > self._segment:
                self._segment, self._entry = segment.number, 0
                if segment.number == self._flush.segment:
                    self._entry = self._flush.entry
            reader = await self._reader(segment)
            if reader.end is None:
                following = segments[at + 1] if at + 1 < len(segments) else None
                is_left = following is not None and await self._tail(following) >= 0
                reader.learn_lac(await self._tail(segment))
                await self._read(segment, reader)
                if not is_left:
                    return
            else:
                await self._read(segment, reader)

    async def _segments(self) -> list[WalSegment]:
        """The segments from the flush point on; what lies below it is forgotten."""
        node = (await self._metadata.read()).nodes.get(self.node)
        if node is None:
            return []
        if node.flush_point != self._flush:
            self._flush = node.flush_point
            below = (self._flush.segment, self._flush.entry)
            if (self._segment, self._entry) < below:
                self._segment, self._entry = below
            for stream, noted in tuple(self._streams.items()):
                kept = [one for one in noted if (one.segment, one.entry) >= below]
                if kept:
                    self._streams[stream] = kept
                else:
                    del self._streams[stream]
            for number in [number for number in self._readers if number < self._flush.segment]:
                await self._readers.pop(number)[1].close()
        return [segment for segment in node.wal if segment.number >= self._flush.segment]

    async def _tail(self, segment: WalSegment) -> EntryId:
        return await wal_store(self._stores, segment.store).find_tail(wal_ref(segment))

    async def _reader(self, segment: WalSegment) -> SegmentReader:
        found = self._readers.get(segment.number)
        if found is not None and found[0] == segment:
            return found[1]
        reader = await wal_store(self._stores, segment.store).open_reader(wal_ref(segment))
        if self._is_closed:
            await reader.close()
        self._readers[segment.number] = (segment, reader)
        return reader

    async def _read(self, segment: WalSegment, reader: SegmentReader) -> None:
        """Note the entries of a segment up to its LAC."""
        while self._entry <= (lac := reader.last_confirmed):
            payloads = await reader.read(EntryId(self._entry), lac, READ_BYTES)
            moved: dict[ObjectStreamId, int] = {}
            for payload in payloads:
                decoded = _decode(self.node, segment.number, self._entry, payload)
                self._cache.keep(self._key(segment.number, self._entry), decoded)
                self._note(segment.number, self._entry, decoded.entry, moved)
                self._entry += 1
            for stream, end in moved.items():
                self._seen(stream, end)

    def _note(self, segment: int, number: int, entry: WalEntry, moved: dict[ObjectStreamId, int]) -> None:
        for at, frame in enumerate(entry.frames):
            noted = self._streams.setdefault(frame.stream, [])
            if noted and noted[-1].end != frame.first:
                raise SegmentCorruptError(
                    f"entries of a stream are missing in the log of its node: node={self.node} stream={frame.stream} "
                    f"expected={noted[-1].end} found={frame.first}"
                )
            size = sum(len(one.payload) for one in frame.entries)
            noted.append(_Noted(frame.first, frame.end, segment, number, at, size))
            moved[frame.stream] = frame.end

    def _key(self, segment: int, entry: int) -> tuple[str, NodeId, int, int]:
        return ("wal", self.node, segment, entry)

    def _fetch_ahead(self, noted: list[_Noted], index: int, end: int, left_bytes: int) -> None:
        """Begin to load the entries of the log that a read needs next, so that it does not wait for each in turn: its
        stream may have a little in each of many. Those that are loaded at once take an eighth of the cache at most."""
        for one in noted[index : index + min(AHEAD, self._cache.bytes_max // (16 * LOADED_BYTES))]:
            if one.first >= end or left_bytes <= 0:
                return
            self._cache.ahead(self._key(one.segment, one.entry), partial(self._load, one.segment, one.entry))
            left_bytes -= one.bytes

    async def _decoded(self, segment: int, entry: int) -> _Decoded:
        found: _Decoded = await self._cache.get(self._key(segment, entry), partial(self._load, segment, entry))
        return found

    async def _load(self, segment: int, entry: int) -> _Decoded:
        found = self._readers.get(segment)
        if found is None:
            raise SegmentNotFoundError(f"the segment of the log is deleted: node={self.node} number={segment}")
        [payload] = await found[1].read(EntryId(entry), EntryId(entry), READ_BYTES)
        return _decode(self.node, segment, entry, payload)


def _first(noted: _Noted) -> int:
    return noted.first


def _decode(node: NodeId, segment: int, entry: int, payload: bytes) -> _Decoded:
    try:
        return _Decoded(decode_wal_entry(payload), len(payload))
    except (DamagedError, UnsupportedVersionError) as error:
        raise SegmentCorruptError(f"{error.message}: node={node} segment={segment} entry={entry}") from error


class WalFollowers:
    """The followers of one process, each as long as it is used."""

    def __init__(self, new: Callable[[NodeId], WalFollower], tasks: Tasks) -> None:
        self._new = new
        self._tasks = tasks
        self._followers: dict[NodeId, tuple[WalFollower, asyncio.Task[None]]] = {}

    def acquire(self, node: NodeId) -> WalFollower:
        """The follower of a node's log; the caller releases it. Raises ReaderClosedError."""
        found = self._followers.get(node)
        if found is None:
            follower = self._new(node)
            task = self._tasks.start(follower.follow, f"follows the log of {node}")
            found = self._followers[node] = follower, task
        found[0].users += 1
        return found[0]

    def release(self, follower: WalFollower) -> None:
        follower.users -= 1
        found = self._followers.get(follower.node)
        if not follower.users and found is not None and found[0] is follower:
            del self._followers[follower.node]
            found[1].cancel()
            if self._tasks.is_open:
                self._tasks.start(follower.close, f"closes the log of {follower.node}")

    @asynccontextmanager
    async def use(self, node: NodeId) -> AsyncIterator[WalFollower]:
        follower = self.acquire(node)
        try:
            yield follower
        finally:
            self.release(follower)

    async def close(self) -> None:
        for follower, task in tuple(self._followers.values()):
            task.cancel()
            with suppress(StoreError):
                await follower.close()
        self._followers.clear()
