"""Open segment readers of one stream: opened once however many ask, a few at a time, closed when not used.

The law of this room: a reader that is handed out may be closed under the feet of who uses it only after it was dropped
on purpose; the error it then raises is retryable by asking again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping

from dlog.model.ids import EntryId, StreamName
from dlog.model.segment import Segment
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentReader,
    SegmentRef,
    SegmentStore,
    StoreUnavailableError,
)

READERS_MAX = 8  # of one stream, open at once


def segment_key(segment: Segment) -> str:
    """Names a segment's bytes for ever: places are never used twice."""
    return f"{segment.store}:{segment.place}"


class SegmentReaders:
    """Readers by segment key."""

    def __init__(self, stream: StreamName, stores: Mapping[str, SegmentStore]) -> None:
        self._stream = stream
        self._stores = stores
        self._open: OrderedDict[str, SegmentReader] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._dropped: list[SegmentReader] = []

    async def open(self, segment: Segment) -> SegmentReader:
        """The reader of a segment, opened if need be. Raises what the store raises, MisconfiguredError."""
        key = segment_key(segment)
        await self._close_dropped()
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            reader = self._open.get(key)
            if reader is not None:
                self._open.move_to_end(key)
                return reader
            sealed_at = segment.last_entry if segment.completed else None
            reader = await self._store(segment).open_reader(self._ref(segment), sealed_at=sealed_at)
            if self._locks.get(key) is not lock:  # dropped meanwhile: good for who waits for it, and kept for nobody
                self._dropped.append(reader)
                return reader
            self._open[key] = reader
        while len(self._open) > READERS_MAX:
            oldest, _ = next(iter(self._open.items()))
            self.drop(oldest)
        return reader

    async def find_end(self, segment: Segment) -> EntryId:
        """Where a completed segment ends, as its store has it. Raises what the store raises."""
        reader = await self.open(segment)
        if reader.end is None:
            self.discard(segment_key(segment), reader)
            raise StoreUnavailableError(f"the end is not decided yet: place={segment.place}")
        return reader.end

    async def find_tail(self, segment: Segment) -> EntryId:
        """The tail of a segment as of now, as the store finds it without the owner. Raises what the store raises."""
        return await self._store(segment).find_tail(self._ref(segment))

    def discard(self, key: str, reader: SegmentReader) -> None:
        """Forget this reader, which is of no use any more, unless there is another one by now."""
        if self._open.get(key) is reader:
            self.drop(key)

    def drop(self, key: str) -> None:
        """Forget a reader; the next `open` makes a new one."""
        reader = self._open.pop(key, None)
        self._locks.pop(key, None)
        if reader is not None:
            self._dropped.append(reader)

    async def close(self) -> None:
        """Close all of them."""
        for key in tuple(self._open):
            self.drop(key)
        await self._close_dropped()

    def _store(self, segment: Segment) -> SegmentStore:
        store = self._stores.get(segment.store)
        if store is None:
            raise MisconfiguredError(f"this proxy has no such segment store: store={segment.store}")
        return store

    def _ref(self, segment: Segment) -> SegmentRef:
        return SegmentRef(self._stream, segment.number, segment.place)

    async def _close_dropped(self) -> None:
        dropped, self._dropped = self._dropped, []
        for reader in dropped:
            await reader.close()
