"""Tests segment readers of a stream's source: all readers of a segment share one, and none is left open."""

from __future__ import annotations

import asyncio

from actors.segment_readers import SegmentReaders, segment_key
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment
from dlog.stores.contract import SegmentRef
from tests.memory_store import MemoryReader, MemoryStore

STREAM = StreamName("orders")


class Gated(MemoryStore):
    """Opens a reader when it may, and knows which are open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = asyncio.Semaphore(0)
        self.opened: list[MemoryReader] = []
        self.closed: list[MemoryReader] = []

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> MemoryReader:
        self.asked.release()
        await self.gate.wait()
        reader = await super().open_reader(ref, sealed_at=sealed_at)
        self.opened.append(reader)
        close = reader.close

        async def noted() -> None:
            self.closed.append(reader)
            await close()

        reader.close = noted  # type: ignore[method-assign]
        return reader


async def test_a_reader_that_is_dropped_while_it_is_opened_is_closed_like_any_other() -> None:
    store = Gated()
    writer = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
    segment = Segment(number=SegmentNumber(1), name=writer.name, store="memory", first_txid=Txid(0))
    readers = SegmentReaders(STREAM, {"memory": store})
    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(readers.open(segment))
        await store.asked.acquire()
        readers.drop(segment_key(segment))
        second = tasks.create_task(readers.open(segment))
        await store.asked.acquire()
        store.gate.set()
    assert first.result() is not second.result()
    assert await readers.open(segment) is second.result(), "the one that was opened since is kept"
    await readers.close()
    assert len(store.opened) == 2
    assert set(map(id, store.closed)) == set(map(id, store.opened))
