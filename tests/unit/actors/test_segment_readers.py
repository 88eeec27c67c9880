"""Tests segment readers of a stream's source: all readers of a segment share one, and none is left open."""

from __future__ import annotations

import asyncio

import pytest

from actors.segment_readers import SegmentReaders, segment_key
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment
from dlog.stores.contract import SegmentRef, StoreUnavailableError
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
        self.closing = asyncio.Semaphore(0)
        self.stuck: list[MemoryReader] = []  # closing them takes for ever
        self.broken: list[MemoryReader] = []  # closing them fails

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> MemoryReader:
        self.asked.release()
        await self.gate.wait()
        reader = await super().open_reader(ref, sealed_at=sealed_at)
        self.opened.append(reader)
        close = reader.close

        async def noted() -> None:
            self.closing.release()
            if reader in self.stuck:
                await asyncio.Event().wait()
            if reader in self.broken:
                raise StoreUnavailableError("closing failed")
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


async def dropped(store: Gated, count: int) -> tuple[SegmentReaders, Segment]:
    """Readers of which `count` were dropped, and a segment that is not open."""
    store.gate.set()
    segments = []
    for number in range(1, count + 2):
        writer = await store.create(STREAM, SegmentNumber(number), Epoch(1), ())
        segments.append(Segment(number=SegmentNumber(number), name=writer.name, store="memory", first_txid=Txid(0)))
    readers = SegmentReaders(STREAM, {"memory": store})
    for segment in segments[:count]:
        await readers.open(segment)
    for segment in segments[:count]:
        readers.drop(segment_key(segment))
    return readers, segments[count]


@pytest.mark.parametrize("which", range(3))
async def test_readers_are_closed_though_an_open_is_cancelled_while_it_closes_them(which: int) -> None:
    store = Gated()
    readers, segment = await dropped(store, 3)
    store.stuck.append(store.opened[which])
    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(readers.open(segment))
        for _ in range(3 - which):  # the last one dropped is closed first
            await store.closing.acquire()
        opening.cancel()
    store.stuck.clear()
    await readers.close()
    assert set(map(id, store.closed)) == set(map(id, store.opened))


@pytest.mark.parametrize("which", range(3))
async def test_readers_are_closed_though_closing_one_fails(which: int) -> None:
    store = Gated()
    readers, segment = await dropped(store, 3)
    store.broken.append(store.opened[which])
    with pytest.raises(StoreUnavailableError):
        await readers.open(segment)
    await readers.open(segment)
    assert set(map(id, store.closed)) == set(map(id, store.opened[:3])) - {id(store.opened[which])}
    store.broken.append(store.opened[3])
    other = (await dropped(store, 0))[1]
    await readers.open(other)
    with pytest.raises(StoreUnavailableError):
        await readers.close()
    assert len(store.opened) == 5 and len(store.closed) == 3
