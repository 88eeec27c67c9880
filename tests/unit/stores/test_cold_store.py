"""Tests reading by ranges, over objects in memory: what is fetched, what is cached, and what is never returned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from dlog.errors import DamagedError
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber, StreamName
from dlog.stores.cold.format import parse_footer
from dlog.stores.cold.options import ColdOptions
from dlog.stores.cold.reader import Extent
from dlog.stores.cold.store import ColdStore
from dlog.stores.contract import (
    MisconfiguredError,
    ReaderClosedError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentReader,
    StoreError,
    StoreUnavailableError,
)
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from tests.memory_objects import MemoryObjects
from tests.unit.stores.cold import built, head, ref


@asynccontextmanager
async def kept(payloads: list[bytes], **options: Any) -> AsyncIterator[tuple[ColdStore, MemoryObjects]]:
    objects = MemoryObjects()
    objects.objects[ref().name] = built(payloads)
    async with ColdStore(objects, ColdOptions(**options)) as store:
        yield store, objects


async def read_all(reader: SegmentReader, bytes_max: int) -> list[bytes]:
    found: list[bytes] = []
    assert reader.end is not None
    while len(found) <= reader.end:
        found += await reader.read(EntryId(len(found)), reader.end, bytes_max)
    return found


async def settled(store: ColdStore) -> None:
    """Wait until everything that is prefetched has arrived."""
    for _ in range(20):
        await asyncio.sleep(0)


PAYLOADS = [b"%03d" % i + bytes([i % 256]) * 997 for i in range(300)]


@pytest.mark.parametrize("bytes_max", [1, 3_500, 100_000, 1 << 22])
@pytest.mark.parametrize("extent", [1_000, 20_000, 1 << 22])
@pytest.mark.parametrize("cache", [1, 50_000, 1 << 26])
async def test_what_is_read_is_what_was_written_whatever_is_kept(bytes_max: int, extent: int, cache: int) -> None:
    async with kept(PAYLOADS, extent_bytes=extent, cache_bytes_max=cache) as (store, _):
        reader = await store.open_reader(ref())
        assert (reader.end, reader.last_confirmed) == (299, 299)
        assert await read_all(reader, bytes_max) == PAYLOADS
        assert await reader.read(EntryId(123), EntryId(123), 1) == [PAYLOADS[123]]
        assert store._cache.bytes <= max(cache, extent + 1000)


async def test_who_reads_on_gets_extents_and_the_next_one_is_fetched_meanwhile() -> None:
    async with kept(PAYLOADS, extent_bytes=10_000) as (store, objects):
        reader = await store.open_reader(ref())
        objects.reads.clear()
        position = 0
        while position < 40:
            position += len(await reader.read(EntryId(position), EntryId(299), 4_000))
            await settled(store)
        sizes = [size for _, size in objects.reads]
        assert sizes[0] == 300 * 48, "the index: all of it is one block"
        assert sizes[1] == 4_000, "nobody knows yet that more is wanted"
        assert sizes[2:] == [10_000] * len(sizes[2:]) and 4 <= len(sizes[2:]) <= 5
        offsets = [offset for offset, _ in objects.reads[1:]]
        assert offsets == sorted(set(offsets)), "nothing twice"


async def test_who_looks_at_single_entries_fetches_those_alone() -> None:
    async with kept(PAYLOADS, extent_bytes=100_000) as (store, objects):
        reader = await store.open_reader(ref())
        objects.reads.clear()
        for entry in (150, 75, 225, 10):
            await reader.read(EntryId(entry), EntryId(entry), 1)
        await settled(store)
        assert [size for _, size in objects.reads[1:]] == [1000] * 4


async def test_many_who_want_the_same_wait_for_one_fetch() -> None:
    async with kept(PAYLOADS, extent_bytes=100_000) as (store, objects):
        readers = [await store.open_reader(ref()) for _ in range(10)]
        objects.reads.clear()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(r.read(EntryId(5), EntryId(299), 1 << 20), name="read") for r in readers]
        assert {len(task.result()) for task in tasks} == {100}
        assert len(objects.reads) == 2, "the index once, the entries once"


async def test_a_small_object_is_read_whole_at_once() -> None:
    async with kept([b"a", b"b"]) as (store, objects):
        await store.open_reader(ref())
        assert objects.reads == []


async def test_an_object_with_a_long_index_is_opened_by_its_end_alone() -> None:
    payloads = [b"%d" % i for i in range(20_000)]
    async with kept(payloads) as (store, objects):
        reader = await store.open_reader(ref())
        summary = reader.summary
        assert objects.reads == [(0, summary.header_bytes)], "the header, which must be of the same object"
        assert await reader.read(EntryId(19_999), EntryId(19_999), 1) == [b"19999"]
        assert objects.reads[1][1] == (20_000 - 19 * 1024) * 48, "one block of the index"
        assert summary.footer.entries == 20_000


# ---- damage ---------------------------------------------------------------------------------------------------------


async def test_every_byte_that_is_damaged_is_told_and_no_wrong_one_is_handed_out() -> None:
    payloads = [b"first entry", b"the second", b"the third"]
    whole = built(payloads)
    for at in range(len(whole)):
        async with kept(payloads) as (store, objects):
            damaged = bytearray(whole)
            damaged[at] ^= 0x10
            objects.objects[ref().name] = bytes(damaged)
            found: list[bytes] = []
            with pytest.raises(SegmentCorruptError):
                reader = await store.open_reader(ref())
                while len(found) < 3:
                    found += await reader.read(EntryId(len(found)), EntryId(2), 1 << 20)
            assert found == payloads[: len(found)]
            with suppress(SegmentCorruptError):
                assert (await store.verify(ref())).damaged


async def test_what_lies_before_a_damaged_entry_is_read_and_what_lies_behind_too() -> None:
    async with kept(PAYLOADS, extent_bytes=50_000) as (store, objects):
        data = bytearray(objects.objects[ref().name])
        data[data.index(PAYLOADS[20]) + 500] ^= 1
        objects.objects[ref().name] = bytes(data)
        reader = await store.open_reader(ref())
        assert await reader.read(EntryId(0), EntryId(299), 1 << 20) == PAYLOADS[:20]
        with pytest.raises(SegmentCorruptError, match="entry=20"):
            await reader.read(EntryId(20), EntryId(299), 1 << 20)
        assert (await reader.read(EntryId(21), EntryId(299), 1 << 20))[0] == PAYLOADS[21]
        verified = await store.verify(ref())
        assert verified.entries == 300 and [entry for entry, _ in verified.damaged] == [20]


async def test_a_wrong_answer_is_asked_for_once_more() -> None:
    async with kept(PAYLOADS) as (store, objects):
        reader = await store.open_reader(ref())
        await reader.read(EntryId(0), EntryId(0), 1)
        objects.lie = b"x" * 1000
        assert await reader.read(EntryId(7), EntryId(7), 1) == [PAYLOADS[7]]


async def test_an_object_of_another_segment_is_refused() -> None:
    async with kept([b"entry"]) as (store, objects):
        for other in (ref(number=8), ref(stream="others")):
            objects.objects[other.name] = objects.objects[ref().name]
            with pytest.raises(SegmentCorruptError, match="another segment's"):
                await store.open_reader(other)


async def test_sums_that_match_and_say_something_else_are_told_by_who_reads_all() -> None:
    """An invented footer: the entries are sound, the whole is not."""
    async with kept([b"entry", b"other"]) as (store, objects):
        from dlog.stores.cold.format import FOOTER_BYTES
        from dlog.wire.digest import crc32c

        data = bytearray(objects.objects[ref().name])
        data[-FOOTER_BYTES + 25] ^= 1  # of the records
        data[-4:] = crc32c(bytes(data[-FOOTER_BYTES:-4])).to_bytes(4, "big")
        objects.objects[ref().name] = bytes(data)
        with pytest.raises(SegmentCorruptError, match="do not match its footer"):
            await store.verify(ref())


# ---- requests to a store --------------------------------------------------------------------------------------------


async def test_nothing_is_created_here() -> None:
    async with kept([b"entry"]) as (store, _):
        assert not store.capabilities.is_written
        with pytest.raises(MisconfiguredError, match="dlog pipeline offload"):
            await store.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())


async def test_the_end_is_the_object_s_and_known_at_once() -> None:
    async with kept([b"a", b"b", b"c"]) as (store, _):
        assert (await store.recover(ref())).end == 2
        assert await store.find_tail(ref()) == 2
        assert await store.stage_of(ref().name) is None
        reader = await store.open_reader(ref(), sealed_at=NO_ENTRY)
        reader.learn_lac(EntryId(50))
        assert (reader.end, reader.last_confirmed, await reader.wait_lac(EntryId(2), 60.0)) == (2, 2, 2)
        with pytest.raises(AssertionError):
            await reader.read(EntryId(3), EntryId(3), 1)
        await reader.close()
        with pytest.raises(ReaderClosedError):
            await reader.read(EntryId(0), EntryId(0), 1)


async def test_only_objects_below_the_roots_are_touched() -> None:
    objects = MemoryObjects()
    objects.objects[ref().name] = built([b"entry"])
    async with ColdStore(objects, ColdOptions(roots=("file:///cold/cluster/other", "s3://bucket/a"))) as store:
        for call in (store.open_reader, store.verify, store.delete):
            with pytest.raises(MisconfiguredError, match="none of the roots"):
                await call(ref())
        assert ref().name in objects.objects
    async with ColdStore(objects, ColdOptions(roots=("file:///cold",))) as store:
        assert [place async for place in store.list()] == [ref().name]
        await store.delete(ref())
        await store.delete(ref())
        assert [place async for place in store.list()] == []
        with pytest.raises(SegmentNotFoundError):
            await store.open_reader(ref())


@pytest.mark.parametrize("place", ["4711", "file:///etc/passwd", "", "file:///cold/../x/" + ref().name[-40:]])
async def test_a_place_that_is_no_object_s_is_left_alone(place: str) -> None:
    async with kept([b"entry"]) as (store, objects):
        objects.objects[place] = b"precious"
        from dataclasses import replace

        strange = replace(ref(), name=place)
        with pytest.raises(SegmentNotFoundError):
            await store.open_reader(strange)
        await store.delete(strange)
        assert place in objects.objects


async def test_a_scan_adds_up_what_it_goes_through() -> None:
    async with kept(PAYLOADS, extent_bytes=30_000) as (store, _):
        scanned, extents = await store.scan(ref())
        found: list[bytes | None] = []
        async with aclosing(extents) as going:
            async for extent in going:
                assert extent.first == len(found)
                found += extent.payloads
        assert found == PAYLOADS
        assert (scanned.entries, scanned.payload_bytes) == (300, 300_000)
        assert scanned.records == scanned.summary.footer.records == 450
        assert (scanned.first_txid, scanned.last_txid) == (100, 399)


# ---- caching --------------------------------------------------------------------------------------------------------


async def test_a_failure_is_told_to_all_who_wait_and_kept_for_nobody() -> None:
    calls = 0

    async def load() -> Extent:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 1:
            raise StoreUnavailableError("not now")
        return Extent(0, [b"x"], 1)

    async with AsyncLruCache[str, Extent](10) as cache:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_outcome(cache.get("k", load)), name="get") for _ in range(3)]
        assert [type(task.result()) for task in tasks] == [StoreUnavailableError] * 3
        assert calls == 1
        assert (await cache.get("k", load)).payloads == [b"x"]


async def _outcome(asked: Any) -> Any:
    try:
        return await asked
    except StoreError as error:
        return error


async def test_who_stops_waiting_stops_nothing_and_who_waits_at_the_end_is_told() -> None:
    go = asyncio.Event()

    async def load() -> Extent:
        await go.wait()
        return Extent(0, [b"x"], 1)

    async with asyncio.TaskGroup() as group, AsyncLruCache[str, Extent](10) as cache:
        one = group.create_task(_outcome(cache.get("k", load)), name="one")
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.wait((one,))
        go.set()
        assert (await cache.get("k", load)).size == 1
        go.clear()
        two = group.create_task(_outcome(cache.get("other", load)), name="two")
        three = group.create_task(_outcome(cache.get("third", load)), name="three")
        await asyncio.sleep(0)
    assert one.cancelled()
    assert [type(task.result()) for task in (two, three)] == [ReaderClosedError] * 2
    with pytest.raises(ReaderClosedError):
        await cache.get("late", load)


def test_a_summary_names_its_segment() -> None:
    of = head(3)
    assert (of.first_dlsn, of.last_dlsn) == ((7, 0, 0), (7, 2, 3))
    with pytest.raises(DamagedError):
        parse_footer(b"", 0)
