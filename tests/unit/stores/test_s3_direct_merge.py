"""Tests the merge of segments of the store `s3-direct`: readers, interruptions, two merges, deletion, damage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from unittest.mock import patch

import pytest

from dlog.events import Event, MergeFailed
from dlog.model.ids import WAL_STREAM, EntryId, Epoch, SegmentNumber
from dlog.objects.merge import Merged
from dlog.stores.contract import (
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentRef,
    StoreUnavailableError,
)
from dlog.stores.object_storage.locations import Location
from dlog.stores.s3_direct.merger import SegmentMerger
from tests.memory_objects import MemoryWriter, PutFault
from tests.unit.stores.test_s3_direct import Cluster, Objects, created, read_all, written

PAYLOADS = [b"%d" % entry * (1 + entry % 5) for entry in range(40)]
NEVER_S = 1e12


class KilledObjects(Objects):
    """The process that uses it is killed after so many requests that change something."""

    def __init__(self) -> None:
        super().__init__()
        self.changes_left: int | None = None

    def change(self) -> None:
        if self.changes_left is not None:
            if not self.changes_left:
                raise StoreUnavailableError("killed")
            self.changes_left -= 1

    async def create(self, location: Location, *, marker: Location | None = None) -> MemoryWriter:
        self.change()
        return await super().create(location)

    def _put(self, location: str, body: bytes):  # type: ignore[no-untyped-def]  # as the base
        self.change()
        return super()._put(location, body)

    async def delete(self, location: Location) -> None:
        self.change()
        await super().delete(location)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    made.objects = KilledObjects()
    yield made
    await made.aclose()


def objects_of(cluster: Cluster, ref: SegmentRef) -> list[str]:
    """Names of a segment's objects."""
    return [place.rpartition("/")[2] for place in sorted(cluster.objects.objects) if ref.name in place]


async def merged(cluster: Cluster, payloads: Sequence[bytes] = PAYLOADS, *, cleans: bool = True) -> SegmentRef:
    store = await cluster.store(merged_grace_s=0.0)
    ref = await written(store, payloads)
    assert await store.merge(ref.name) is Merged.MERGED
    if cleans:
        assert await store.merge(ref.name) is Merged.CLEANED
    return ref


async def test_a_merged_segment_has_four_objects_and_all_entries(cluster: Cluster) -> None:
    ref = await merged(cluster)
    names = objects_of(cluster, ref)
    assert [name[:5] for name in names] == ["00000", "00000", "data-", "index"]
    store = await cluster.store()
    assert await read_all(store, ref) == PAYLOADS
    assert (await store.recover(ref)).end == await store.find_tail(ref) == 39
    stat = await store.stat(ref, sealed_at=EntryId(39))
    assert (stat.end, stat.payload_bytes) == (39, sum(map(len, PAYLOADS)))
    assert (await store.verify(ref)).damaged == ()
    assert objects_of(cluster, ref) == names
    reader = await store.open_reader(ref)
    rng = random.Random(3)
    for entry in (rng.randrange(40) for _ in range(40)):
        assert await reader.read(EntryId(entry), EntryId(entry), 1) == [PAYLOADS[entry]]
    assert "data-" in await reader.object_of(EntryId(7))
    await reader.close()


async def test_chunks_stay_for_the_grace_period(cluster: Cluster) -> None:
    ref = await merged(cluster, cleans=False)
    before = objects_of(cluster, ref)
    store = await cluster.store(merged_grace_s=NEVER_S)
    assert await store.merge(ref.name) is Merged.MERGED
    assert objects_of(cluster, ref) == before and len(before) == 44


async def test_a_reader_that_is_open_reads_on(cluster: Cluster) -> None:
    store = await cluster.store(merged_grace_s=0.0)
    ref = await written(store, PAYLOADS)
    reader = await (await cluster.store(cache_bytes_max=1)).open_reader(ref)
    found = await reader.read(EntryId(0), EntryId(0), 1)
    for _ in range(2):
        await store.merge(ref.name)
    while len(found) < 40:
        found += await reader.read(EntryId(len(found)), EntryId(39), 30)
    assert found == PAYLOADS
    await reader.close()


@pytest.mark.parametrize("seals", [True, False])
async def test_a_follower_finds_the_end_of_what_was_merged(cluster: Cluster, seals: bool) -> None:
    store = await cluster.store(merged_grace_s=0.0)
    writer, ref = await created(store)
    await writer.append(EntryId(0), [PAYLOADS[0]])
    reader = await (await cluster.store()).open_reader(ref)
    for entry in range(1, 40):
        await writer.append(EntryId(entry), [PAYLOADS[entry]])
    await (writer.seal() if seals else (await cluster.store()).recover(ref))
    for _ in range(2):
        await store.merge(ref.name)
    assert await reader.wait_lac(EntryId(0), 0.0) == 39 and reader.end == 39
    assert await reader.read(EntryId(1), EntryId(1), 1) == [PAYLOADS[1]]
    await reader.close()


@pytest.mark.parametrize("killed_after", range(50))
async def test_an_interrupted_merge_loses_nothing_and_is_finished_later(cluster: Cluster, killed_after: int) -> None:
    store = await cluster.store(merged_grace_s=0.0, retry_s=0.2)
    ref = await written(store, PAYLOADS)
    assert isinstance(cluster.objects, KilledObjects)
    cluster.objects.changes_left = killed_after
    with suppress(StoreUnavailableError):
        for _ in range(2):
            await store.merge(ref.name)
    cluster.objects.changes_left = None
    other = await cluster.store(merged_grace_s=0.0)
    assert await read_all(other, ref) == PAYLOADS
    assert (await other.recover(ref)).end == 39
    for _ in range(2):
        await other.merge(ref.name)
    assert await read_all(await cluster.store(), ref) == PAYLOADS
    assert len(objects_of(cluster, ref)) == 4


@pytest.mark.parametrize("fault", list(PutFault))
async def test_an_index_with_an_unclear_answer_is_created_once(cluster: Cluster, fault: PutFault) -> None:
    store = await cluster.store(merged_grace_s=0.0)
    ref = await written(store, PAYLOADS)
    cluster.objects.faults.extend([fault] * 2)
    assert await store.merge(ref.name) is Merged.MERGED
    cluster.objects.land_late()
    assert await store.merge(ref.name) is Merged.CLEANED
    assert await read_all(await cluster.store(), ref) == PAYLOADS


async def test_an_index_that_is_created_late_is_no_harm(cluster: Cluster) -> None:
    store = await cluster.store(merged_grace_s=0.0, retry_s=0.2)
    ref = await written(store, PAYLOADS)
    cluster.objects.faults.extend([PutFault.LATE] * 1000)
    assert await store.merge(ref.name) is Merged.UNKNOWN
    cluster.objects.faults.clear()
    cluster.objects.land_late()
    assert await store.merge(ref.name) is Merged.CLEANED
    assert await read_all(await cluster.store(), ref) == PAYLOADS


async def test_what_is_being_written_is_not_merged(cluster: Cluster) -> None:
    store = await cluster.store()
    writer, ref = await created(store)
    for entry in range(3):
        await writer.append(EntryId(entry), [b"x"])
    assert await store.merge(ref.name) is Merged.NOT_NEEDED
    await writer.append(EntryId(3), [b"x"])
    assert len(objects_of(cluster, ref)) == 5


@pytest.mark.parametrize("cleans", [True, False])
@pytest.mark.parametrize("seals", [True, False])
async def test_a_merged_segment_is_deleted_and_its_writer_stays_fenced(
    cluster: Cluster, cleans: bool, seals: bool
) -> None:
    store = await cluster.store(merged_grace_s=0.0)
    writer, ref = await created(store)
    for entry in range(5):
        await writer.append(EntryId(entry), [b"x"])
    await (writer.seal() if seals else (await cluster.store()).recover(ref))
    for _ in range(1 + cleans):
        await store.merge(ref.name)
    await (await cluster.store()).delete(ref)
    assert len(objects_of(cluster, ref)) == (0 if seals else 1)
    for call in (store.recover, store.open_reader, store.find_tail):
        with pytest.raises(SegmentNotFoundError):
            await call(ref)
    with pytest.raises(SegmentNotFoundError):
        await store.merge(ref.name)
    assert [name async for name in store.list()] == []
    if not seals:
        with pytest.raises(SegmentFencedError):
            await writer.append(EntryId(5), [b"late"])


@pytest.mark.parametrize("killed_after", range(1, 8))
async def test_an_interrupted_deletion_of_a_merged_segment_is_finished_later(
    cluster: Cluster, killed_after: int
) -> None:
    ref = await merged(cluster)
    assert isinstance(cluster.objects, KilledObjects)
    cluster.objects.changes_left = killed_after
    with suppress(StoreUnavailableError):
        await (await cluster.store()).delete(ref)
    cluster.objects.changes_left = None
    other = await cluster.store()
    with pytest.raises(SegmentNotFoundError):
        await other.open_reader(ref)
    assert bool(objects_of(cluster, ref)) == (ref.name in [name async for name in other.list()])
    await other.delete(ref)
    assert objects_of(cluster, ref) == []


async def test_a_segment_that_has_ended_is_merged_in_the_background(cluster: Cluster) -> None:
    told: list[Event] = []
    done = asyncio.Event()
    results: list[Merged | Exception] = [StoreUnavailableError("busy"), Merged.MERGED, Merged.CLEANED]

    async def merge(name: str) -> Merged:
        result = results.pop(0)
        if not results:
            done.set()
        if isinstance(result, Exception):
            raise result
        return result

    merger = SegmentMerger(merge, 0.0, told.append)
    with patch("dlog.stores.s3_direct.merger.RETRY_S", 0.0):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(merger.run(), name="merges")
            merger.add("a")
            merger.add("a")
            await done.wait()
            await asyncio.sleep(0)
            merger.add("a")
            running.cancel()
    assert told == [MergeFailed("a", "busy")]


class WatchedObjects(KilledObjects):
    """merged: set when a merge is over."""

    def __init__(self) -> None:
        super().__init__()
        self.merged = asyncio.Event()

    async def delete_many(self, locations: Sequence[Location]) -> None:
        await super().delete_many(locations)
        if not locations:  # the last step of a merge: no copy is left over
            self.merged.set()


async def test_a_store_merges_what_it_has_sealed(cluster: Cluster) -> None:
    cluster.objects = objects = WatchedObjects()
    store = await cluster.store(merged_grace_s=0.0, merges=True)
    ref = await written(store, PAYLOADS)
    await objects.merged.wait()
    assert len(objects_of(cluster, ref)) == 4
    assert await read_all(await cluster.store(), ref) == PAYLOADS


async def test_segments_of_a_write_ahead_log_are_not_merged(cluster: Cluster) -> None:
    """They are deleted as soon as their entries are uploaded. Segments are merged in the order in which they ended."""
    cluster.objects = objects = WatchedObjects()
    store = await cluster.store(merged_grace_s=0.0, merges=True)
    writer = await store.create(WAL_STREAM, SegmentNumber(1), Epoch(1), ())
    for entry, payload in enumerate(PAYLOADS):
        await writer.append(EntryId(entry), [payload])
    await writer.seal()
    log = SegmentRef(WAL_STREAM, SegmentNumber(1), writer.name)
    ref = await written(store, PAYLOADS)
    await objects.merged.wait()
    assert "index" in objects_of(cluster, ref)
    assert "index" not in objects_of(cluster, log)
    assert await read_all(store, log) == PAYLOADS


async def test_damaged_chunks_are_not_merged(cluster: Cluster) -> None:
    store = await cluster.store(merged_grace_s=0.0)
    ref = await written(store, PAYLOADS)
    place = cluster.chunks(ref.name)[7]
    sound = cluster.objects.objects[place]
    cluster.objects.objects[place] = sound[:-1] + b"?"
    with pytest.raises(SegmentCorruptError):
        await store.merge(ref.name)
    assert "index" not in objects_of(cluster, ref)
    del cluster.objects.objects[place]
    with pytest.raises((SegmentCorruptError, SegmentNotFoundError)):
        await store.merge(ref.name)
    assert "index" not in objects_of(cluster, ref)


async def test_a_flipped_byte_of_merged_objects_is_never_read_as_data(cluster: Cluster) -> None:
    ref = await merged(cluster, [b"first", b"", b"second and last"])
    rng = random.Random(7)
    for place in [
        one for one in cluster.objects.objects if (ref.name in one and not one[-1:].isdigit()) or "data-" in one
    ]:
        sound = cluster.objects.objects[place]
        for at in rng.sample(range(len(sound)), min(len(sound), 60)):
            for damaged in (sound[:at] + bytes([sound[at] ^ 1 << rng.randrange(8)]) + sound[at + 1 :], sound[:at]):
                cluster.objects.objects[place] = damaged
                with pytest.raises(SegmentCorruptError):
                    await read_all(await cluster.store(), ref)
        cluster.objects.objects[place] = sound


async def test_a_copy_that_differs_from_the_chunks_is_not_used(cluster: Cluster) -> None:
    class Flipping(KilledObjects):
        async def create(self, location: Location, *, marker: Location | None = None) -> MemoryWriter:
            writer = await super().create(location)
            finish = writer.finish

            async def finish_wrong() -> None:
                await finish()
                data = self.objects[str(location)]
                self.objects[str(location)] = data[:-1] + bytes([data[-1] ^ 1])

            writer.finish = finish_wrong  # type: ignore[method-assign]
            return writer

    cluster.objects = Flipping()
    store = await cluster.store()
    ref = await written(store, PAYLOADS)
    with pytest.raises(SegmentCorruptError):
        await store.merge(ref.name)
    assert "index" not in objects_of(cluster, ref)
    assert await read_all(store, ref) == PAYLOADS
