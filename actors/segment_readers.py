"""Keeps segment readers of one stream open: one per segment, a few at a time, the least recently used closed first.

Invariants:
- a reader is closed while in use only after it was dropped; the error it then raises is retryable;
- every dropped reader is closed in the end, also if closing another one fails, or if an `open` is cancelled while it
  closes dropped ones.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AsyncExitStack

from dlog.log.source_messages import Locate, Located
from dlog.model.ids import EntryId, StreamName
from dlog.model.segment import Segment
from dlog.stores.contract import (
    UNKNOWN_STORE,
    MisconfiguredError,
    ReaderClosedError,
    SegmentReader,
    SegmentRef,
    SegmentStore,
    StoreUnavailableError,
)
from dlog.stores.kinds import not_configured

READERS_MAX = 8  # of one stream, open at once


def segment_key(segment: Segment) -> str:
    """Identifies a segment's bytes for ever: locations are never reused."""
    return str(segment.location)


class SegmentReaders:
    """Readers by segment key."""

    def __init__(self, stream: StreamName, stores: Mapping[str, SegmentStore]) -> None:
        self._stream = stream
        self._stores = stores
        self._open: OrderedDict[str, SegmentReader] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._dropped: list[SegmentReader] = []

    async def open(self, segment: Segment) -> SegmentReader:
        """The reader of a segment, opened if needed. Raises the store's errors, MisconfiguredError."""
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
            if self._locks.get(key) is not lock:  # dropped meanwhile: use it once, do not keep it
                self._dropped.append(reader)
                return reader
            self._open[key] = reader
        while len(self._open) > READERS_MAX:
            oldest, _ = next(iter(self._open.items()))
            self.drop(oldest)
        return reader

    def reads_ahead(self, segment: Segment) -> int:
        """How many blocks of this segment to fetch before a sequential reader asks for them."""
        store = self._stores.get(segment.store)
        return UNKNOWN_STORE.reads_ahead if store is None else store.capabilities.reads_ahead

    async def find_end(self, segment: Segment) -> EntryId:
        """The last entry of a completed segment, according to its store. Raises the store's errors."""
        reader = await self.open(segment)
        if reader.end is None:
            self.discard(segment_key(segment), reader)
            raise StoreUnavailableError(f"the segment's end is not decided yet, try again: location={segment.name}")
        return reader.end

    async def find_tail(self, segment: Segment) -> EntryId:
        """The current tail of a segment, found by the store without the owner. Raises the store's errors."""
        return await self._store(segment).find_tail(self._ref(segment))

    async def locate(self, question: Locate) -> Located:
        """Have the store narrow a search. Raises the store's errors, MisconfiguredError."""
        segment, target, first, last = question.segment, question.target, question.first, question.last
        reader = await self.open(segment)
        reader.learn_lac(last)
        try:
            found = await reader.locate(first, last, target.least, by_time=target.by_time)
        except ReaderClosedError:
            self.discard(segment_key(segment), reader)
            raise
        return Located(question, *found)

    def discard(self, key: str, reader: SegmentReader) -> None:
        """Drop this unusable reader, unless it was replaced already."""
        if self._open.get(key) is reader:
            self.drop(key)

    def drop(self, key: str) -> None:
        """Drop a reader, to be closed; the next `open` makes a new one."""
        reader = self._open.pop(key, None)
        self._locks.pop(key, None)
        if reader is not None:
            self._dropped.append(reader)

    async def close(self) -> None:
        """Close all readers, also if closing one fails: then the error is raised at the end."""
        for key in tuple(self._open):
            self.drop(key)
        async with AsyncExitStack() as stack:
            while self._dropped:
                stack.push_async_callback(self._dropped.pop().close)

    def _store(self, segment: Segment) -> SegmentStore:
        store = self._stores.get(segment.store)
        if store is None:
            raise MisconfiguredError(not_configured(segment.store))
        return store

    def _ref(self, segment: Segment) -> SegmentRef:
        return SegmentRef(self._stream, segment.number, segment.name)

    async def _close_dropped(self) -> None:
        """Close dropped readers. If it is cancelled or closing one fails, the next call closes the rest."""
        while self._dropped:
            reader = self._dropped.pop()
            try:
                await reader.close()
            except asyncio.CancelledError:
                self._dropped.append(reader)  # it may be open still
                raise
