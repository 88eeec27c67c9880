"""Tests reading of blocks of objects: which requests a reader causes, what they have in common, and damage in them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectRef, ObjectStreamId
from dlog.stores.contract import SegmentCorruptError, StoreUnavailableError
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.read_limits import ReadLimits
from dlog.stores.s3.object_reads import ObjectName, ObjectReads
from dlog.stores.s3.places import object_location
from dlog.stores.s3.read_plan import needed_blocks, plan_requests
from dlog.wire.stream_object import BlockRow, ObjectEncoder, ObjectEntry
from tests.memory_objects import MemoryObjects

STREAM, OTHER = ObjectStreamId(1), ObjectStreamId(2)
FOLDER = parse_root("s3://bucket/objects")
NODE, EPOCH, OBJECT = NodeId("w1"), NodeEpoch(1), ObjectId(7)
BLOCKS, ENTRIES, ENTRY_BYTES = 64, 10, 100  # entries of a block
BLOCK_BYTES = 1200  # somewhat more than a block has
LIMITS = ReadLimits(group_bytes=8 * BLOCK_BYTES, ahead_bytes=24 * BLOCK_BYTES, all_ahead_bytes=200 * BLOCK_BYTES)


class HeldObjects(MemoryObjects):
    """Reads wait for `go`. fails: the next read fails."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.fails = False

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        data = await super().read(location, offset, size)
        await self.go.wait()
        if self.fails:
            self.fails = False
            raise StoreUnavailableError("not now")
        return data


class Bench:
    """One object: BLOCKS blocks of STREAM, and one of OTHER behind them."""

    def __init__(self, cache: AsyncLruCache[Any, Any], limits: ReadLimits) -> None:
        async def find_folder() -> Location:
            return FOLDER

        self.objects = HeldObjects()
        self.cache = cache
        self.reads = ObjectReads(self.objects, find_folder, cache, fetches_max=16, limits=limits)
        encoder = ObjectEncoder(OBJECT, NODE, EPOCH, block_bytes=ENTRIES * (ENTRY_BYTES + 41))
        parts = [part for at in range(BLOCKS * ENTRIES) for part in encoder.add(STREAM, at, ObjectEntry(payload(at)))]
        parts += encoder.add(OTHER, 0, ObjectEntry(b"other")) + encoder.finish()
        self.data = b"".join(map(bytes, parts))
        self.rows = encoder.blocks[:BLOCKS]
        self.ref = ObjectRef(OBJECT, 0, BLOCKS * ENTRIES, True)
        self.name = ObjectName(OBJECT, NODE, EPOCH, len(self.data))
        self.place = str(object_location(FOLDER, OBJECT, NODE, EPOCH))
        self.objects.objects[self.place] = self.data

    async def read(self, start: int, end: int = BLOCKS * ENTRIES, max_bytes: int = 1) -> list[bytes]:
        found = await self.reads.read(self.name, self.ref, STREAM, start, end, max_bytes)
        return [bytes(view) for view in found]

    async def read_blocks(self, first: int, end: int) -> None:
        """Read these blocks one after another, as a reader of the stream does."""
        at = first * ENTRIES
        while at < end * ENTRIES:
            found = await self.read(at, max_bytes=ENTRIES * ENTRY_BYTES)
            assert found == [payload(number) for number in range(at, at + len(found))]
            at += len(found)

    def requested(self) -> list[range]:
        """The requests since the last call, as numbers of blocks; those that are not of whole blocks are refused."""
        numbers = {row.position: number for number, row in enumerate(self.rows)}
        ends = {row.position + row.bytes: number + 1 for number, row in enumerate(self.rows)}
        asked = [range(numbers[at], ends[at + size]) for at, size in self.objects.reads]
        self.objects.reads.clear()
        return asked

    def damage(self, *numbers: int) -> None:
        data = bytearray(self.data)
        for number in numbers:
            data[self.rows[number].position + self.rows[number].bytes - 1] ^= 1
        self.objects.objects[self.place] = bytes(data)


def payload(at: int) -> bytes:
    return f"{at:06}".encode().ljust(ENTRY_BYTES, b".")


@asynccontextmanager
async def bench(limits: ReadLimits = LIMITS, cache_bytes: int = 1 << 20) -> AsyncIterator[Bench]:
    async with AsyncLruCache[Any, Any](cache_bytes) as cache:
        made = Bench(cache, limits)
        await made.reads.index(made.name)
        made.objects.reads.clear()
        yield made


async def settled() -> None:
    """Let what was begun end."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("entry", [0, 5, 317, BLOCKS * ENTRIES - 1])
async def test_a_single_read_requests_one_block(entry: int) -> None:
    async with bench() as one:
        assert await one.read(entry, entry + 1) == [payload(entry)]
        assert await one.read(entry, max_bytes=1) == [payload(entry)], "the same, by a reader that may go on"
        await settled()
        assert one.requested() == [range(entry // ENTRIES, entry // ENTRIES + 1)]


async def test_a_read_of_several_blocks_is_one_request() -> None:
    async with bench() as one:
        assert len(await one.read(15, max_bytes=3 * ENTRIES * ENTRY_BYTES)) == 3 * ENTRIES
        await settled()
        assert one.requested() == [range(1, 5)]


async def test_a_sequential_read_requests_groups_and_no_block_twice() -> None:
    async with bench() as one:
        await one.read_blocks(0, BLOCKS)
        requests = one.requested()
        assert sorted(number for request in requests for number in request) == list(range(BLOCKS))
        assert len(requests) <= BLOCKS // 8 + 4, requests  # some are small, at the beginning
        assert max(map(len, requests)) == 8


async def test_a_sequential_reader_is_served_ahead_and_not_further() -> None:
    async with bench() as one:
        await one.read_blocks(0, 16)
        await settled()
        last = max(request.stop for request in one.requested())
        assert 24 <= last <= 15 + 1 + 24


async def test_the_last_group_ends_with_the_stream_in_the_object() -> None:
    async with bench() as one:
        await one.read_blocks(BLOCKS - 6, BLOCKS)
        await settled()
        requests = one.requested()
        assert requests[-1].stop == BLOCKS, "the block of another stream behind it is not requested"
        assert sum(map(len, requests)) == 6
        assert len(requests) <= 3


async def test_readers_share_a_request_under_way() -> None:
    async with bench() as one, asyncio.TaskGroup() as group:
        one.objects.go.clear()
        size = 8 * ENTRIES * ENTRY_BYTES
        readers = [group.create_task(one.read(start, max_bytes=size), name="reader") for start in (0, 0, 20, 30)]
        await settled()
        readers[0].cancel()
        await asyncio.wait(readers[:1])
        one.objects.go.set()
        found = [await reader for reader in readers[1:]]
        assert [entries[0] for entries in found] == [payload(0), payload(20), payload(30)]
        numbers = [number for request in one.requested() for number in request]
        assert len(numbers) == len(set(numbers)), "no block was requested twice, and none again after the cancelled one"


@pytest.mark.parametrize("damaged", [(3,), (0,), (7,), (2, 3)])
async def test_damage_in_a_group_is_of_its_blocks_only(damaged: tuple[int, ...]) -> None:
    async with bench() as one:
        one.damage(*damaged)
        for number in range(8):
            if number in damaged:
                with pytest.raises(SegmentCorruptError, match=f"start={number * ENTRIES}"):
                    await one.read(number * ENTRIES, max_bytes=(8 - number) * ENTRIES * ENTRY_BYTES)
            else:
                end = next((at for at in damaged if at > number), 8)
                found = await one.read(number * ENTRIES, 8 * ENTRIES, 1 << 20)
                assert found == [payload(at) for at in range(number * ENTRIES, end * ENTRIES)]
        one.objects.objects[one.place] = one.data
        for number in damaged:
            assert (await one.read(number * ENTRIES))[0] == payload(number * ENTRIES), "damage is not cached"


async def test_a_block_that_arrives_damaged_once_is_requested_again_alone() -> None:
    async with bench() as one:
        one.damage(3)
        wrong = one.objects.objects[one.place]
        one.objects.objects[one.place] = one.data
        one.objects.lie = wrong[one.rows[0].position : one.rows[7].position + one.rows[7].bytes]
        found = await one.read(0, 8 * ENTRIES, 1 << 20)
        assert found == [payload(at) for at in range(8 * ENTRIES)]
        assert one.requested() == [range(8), range(3, 4)]


async def test_a_group_of_an_object_that_was_cut_short_has_the_blocks_before_the_cut() -> None:
    async with bench() as one:
        one.objects.objects[one.place] = one.data[: one.rows[5].position + 10]
        assert await one.read(0, 8 * ENTRIES, 1 << 20) == [payload(at) for at in range(5 * ENTRIES)]
        with pytest.raises(SegmentCorruptError, match="in part"):
            await one.read(5 * ENTRIES)


async def test_a_failed_request_fails_its_waiters_and_is_not_cached() -> None:
    async with bench() as one:
        one.objects.fails = True
        with pytest.raises(StoreUnavailableError):
            await one.read(0, 8 * ENTRIES, 1 << 20)
        assert len(await one.read(0, 8 * ENTRIES, 1 << 20)) == 8 * ENTRIES
        assert one.requested() == [range(8), range(8)]


async def test_blocks_of_a_group_do_not_keep_each_other_in_memory() -> None:
    async with bench() as one:
        [first, *_] = await one.reads.read(one.name, one.ref, STREAM, 0, 8 * ENTRIES, 1 << 20)
        assert isinstance(first.obj, bytes)
        assert len(first.obj) == one.rows[0].bytes


async def test_a_full_cache_makes_readers_slow_and_not_wrong() -> None:
    async with bench(cache_bytes=2 * BLOCK_BYTES) as one:
        await one.read_blocks(0, BLOCKS)
        assert one.cache.bytes <= 2 * BLOCK_BYTES + 4000


def test_streams_share_what_is_read_ahead() -> None:
    shared = LIMITS.shared(50)
    assert (shared.ahead_bytes, shared.group_bytes) == (4 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    assert LIMITS.shared(2) == LIMITS


# ---- plans ----------------------------------------------------------------------------------------------------------


def drawn_blocks(rng: random.Random) -> list[BlockRow]:
    blocks: list[BlockRow] = []
    position = 0
    for at in range(rng.randint(1, 40)):
        size = rng.randint(100, 3000)
        blocks.append(BlockRow(STREAM, at, at + 1, position, size, None, 0))
        position += size
    return blocks


@pytest.mark.parametrize("seed", range(200))
def test_plans_request_what_is_needed_once_and_stay_in_their_limits(seed: int) -> None:
    rng = random.Random(seed)
    blocks = drawn_blocks(rng)
    begin = rng.randrange(len(blocks))
    available = range(begin, rng.randint(begin + 1, len(blocks)))
    first = rng.choice(available)
    needed = range(first, rng.randint(first + 1, available.stop))
    limits = ReadLimits(rng.choice([0, 2000, 6000]), rng.choice([0, 5000, 20_000]), 1 << 30)
    known = {number for number in range(len(blocks)) if rng.random() < rng.choice([0.0, 0.5, 0.9])}
    requests = plan_requests(blocks, available, needed, limits, known.__contains__)
    numbers = [number for request in requests for number in request]
    assert numbers == sorted(set(numbers))
    assert not known & set(numbers)
    assert set(needed) <= known | set(numbers)
    assert all(len(one) == 1 or sum(blocks[at].bytes for at in one) <= limits.group_bytes for one in requests)
    assert set(numbers) <= set(available)
    assert sum(blocks[at].bytes for at in numbers if at >= needed.stop) <= limits.ahead_bytes
    if needed.start == available.start or needed.start - 1 not in known:
        assert set(numbers) <= set(needed), "no sequential reader"


def test_needed_blocks_have_as_many_bytes_as_a_read_wants() -> None:
    blocks = [BlockRow(STREAM, 10 * at, 10 * at + 10, 2000 * at, 2000, None, 0) for at in range(10)]
    assert needed_blocks(blocks, range(2, 10), 20, 0) == range(2, 3)
    assert needed_blocks(blocks, range(2, 10), 20, 1500) == range(2, 3)
    assert needed_blocks(blocks, range(2, 10), 25, 1500) == range(2, 4), "half of the first block is not wanted"
    assert needed_blocks(blocks, range(2, 5), 20, 1 << 20) == range(2, 5)
