"""Tests the store `s3-direct` on objects in memory: faults, deletions that are interrupted, wrong roots, bad input."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from dlog.errors import DLogError, MetadataUnavailableError
from dlog.io.s3_direct_store import folder_finder
from dlog.log.contents import entry_span
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentRef,
    StoreError,
    StoreOutOfReachError,
    StoreUnavailableError,
)
from dlog.stores.object_storage.locations import MARKER, Location, parse_root
from dlog.stores.object_storage.port import Creation
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.s3_direct.put_budget import PutBudget
from dlog.stores.s3_direct.store import SEGMENTS, S3DirectStore
from dlog.stores.s3_direct.writer import S3DirectWriter
from dlog.wire.chunk import HEAD_BYTES, ChunkKind, decode_head, encode_chunk
from dlog.wire.digest import crc32c
from tests.integration.stores.seeking import START_MS, check_locate, draw_entries, entry_payload
from tests.memory_objects import MemoryObjects, PutFault

ROOT = parse_root("s3://bucket/logs")
STREAM = StreamName("s")


class Objects(MemoryObjects):
    """Counts requests. deletions_left: until the process that deletes is killed. held: reads that wait for `release`;
    None: they are answered at once."""

    def __init__(self) -> None:
        super().__init__()
        self.deletions_left: int | None = None
        self.lists = 0
        self.held: list[asyncio.Future[None]] | None = None

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        if self.held is not None:
            self.held.append(asyncio.get_running_loop().create_future())
            await self.held[-1]
        return await super().read(location, offset, size)

    def release(self) -> None:
        """Answer the reads that wait."""
        waiting, self.held = self.held or [], []
        for one in waiting:
            one.set_result(None)

    async def delete(self, location: Location) -> None:
        if self.deletions_left is not None:
            if not self.deletions_left:
                raise StoreUnavailableError("killed")
            self.deletions_left -= 1
        await super().delete(location)

    async def delete_many(self, locations: Sequence[Location]) -> None:
        for location in reversed(locations):  # a storage may do it in any order
            await self.delete(location)

    async def list(self, folder: Location, **which: object) -> AsyncIterator:  # type: ignore[type-arg]
        self.lists += 1
        async for found in super().list(folder, **which):  # type: ignore[arg-type]
            yield found


class SlowObjects(Objects):
    """Answers requests to create in a random order, after all have begun."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.rng = random.Random(9)

    async def create_if_absent(self, location: Location, *given: Any, **more: Any) -> Creation:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.rng.uniform(0.001, 0.01))
        created = await super().create_if_absent(location, *given, **more)
        self.now -= 1
        return created


class Cluster:
    """Opens stores of one cluster. name: of its folder, as metadata has it."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.name: str | None = None
        self.has_metadata = True
        self._rng = random.Random(1)
        self._stack = AsyncExitStack()

    async def read(self) -> str | None:
        if not self.has_metadata:
            raise MetadataUnavailableError("no session")
        return self.name

    async def record(self, name: str) -> None:
        self.name = self.name or name

    async def store(self, *, creates: bool = True, **changes: object) -> S3DirectStore:
        fixed: dict[str, object] = {"root": str(ROOT), "linger_s": 0.0, "retry_s": 5.0, "puts_per_s": 1e6}
        options = ObjectsOptions(**{**fixed, "merges": False, **changes})  # type: ignore[arg-type]
        find = folder_finder(self.objects, ROOT, self.read, self.record, self._rng)
        rng = random.Random(self._rng.random())
        store = S3DirectStore(self.objects, find, options, rng, creates=creates, span_of=entry_span)
        return await self._stack.enter_async_context(store)

    async def aclose(self) -> None:
        await self._stack.aclose()

    def chunks(self, name: str) -> dict[int, str]:
        """Locations of a segment's chunks by number."""
        prefix = f"{ROOT}/{self.name}/{SEGMENTS}/{name}/"
        return {int(place.removeprefix(prefix)): place for place in sorted(self.objects.objects) if prefix in place}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.aclose()


async def created(store: S3DirectStore) -> tuple[S3DirectWriter, SegmentRef]:
    writer = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
    return writer, SegmentRef(STREAM, SegmentNumber(1), writer.name)


async def written(store: S3DirectStore, payloads: Sequence[bytes], *, seals: bool = True) -> SegmentRef:
    """A segment with each payload in a chunk of its own."""
    writer, ref = await created(store)
    for entry, payload in enumerate(payloads):
        await writer.append(EntryId(entry), [payload])
    await (writer.seal() if seals else writer.abandon())
    return ref


async def read_all(store: S3DirectStore, ref: SegmentRef, bytes_max: int = 1 << 20) -> list[bytes]:
    reader = await store.open_reader(ref)
    found: list[bytes] = []
    while len(found) <= reader.last_confirmed:
        found += await reader.read(EntryId(len(found)), reader.last_confirmed, bytes_max)
    await reader.close()
    return found


@asynccontextmanager
async def limit(seconds: float = 30.0) -> AsyncIterator[None]:
    async with asyncio.timeout(seconds):
        yield


# ---- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", list(PutFault))
async def test_after_any_fault_of_a_request_the_entries_are_written_once(cluster: Cluster, fault: PutFault) -> None:
    store = await cluster.store(chunk_bytes_max=20)
    writer, ref = await created(store)
    cluster.objects.faults.extend([fault, None, fault])
    appends = [writer.append(EntryId(entry), [b"%d" % entry * 15]) for entry in range(12)]
    async with limit():
        await asyncio.wait(appends)
    cluster.objects.land_late()
    assert await writer.seal() == 11
    assert await read_all(await cluster.store(), ref) == [b"%d" % entry * 15 for entry in range(12)]


async def test_eight_objects_are_on_their_way_and_entries_are_confirmed_in_order(cluster: Cluster) -> None:
    slow = cluster.objects = SlowObjects()
    writer, ref = await created(await cluster.store(chunk_bytes_max=1))
    heard: list[int] = []
    payloads = [b"%d" % entry for entry in range(100)]

    def confirmed(entry: int, error: StoreError | None) -> None:
        heard.append(entry if error is None else -1)

    for entry, payload in enumerate(payloads):
        writer.submit(EntryId(entry), [payload], partial(confirmed, entry))
        await asyncio.sleep(0)
    async with limit():
        await writer.seal()
    assert heard == list(range(100)) and slow.most == 8
    assert await read_all(await cluster.store(), ref) == payloads


async def test_a_sink_may_append_the_next_entries(cluster: Cluster) -> None:
    writer, ref = await created(await cluster.store(linger_s=0.001, chunk_bytes_max=2))
    done = asyncio.Event()
    submitted: list[bytes] = []

    def submit() -> None:
        entry = len(submitted)
        submitted.append(b"%d" % entry)
        writer.submit(EntryId(entry), [submitted[-1]], confirmed)

    def confirmed(error: StoreError | None) -> None:
        assert error is None
        if len(submitted) < 100:
            submit()
            submit()
        elif writer.last_confirmed == len(submitted) - 1:
            done.set()

    for _ in range(3):
        submit()
    async with limit():
        await done.wait()
        await writer.seal()
    assert await read_all(await cluster.store(), ref) == submitted


async def test_a_storage_that_stays_silent_ends_the_writer_with_an_unknown_outcome(cluster: Cluster) -> None:
    writer, ref = await created(await cluster.store(retry_s=0.2))
    cluster.objects.faults.extend([PutFault.LATE] * 1000)
    with pytest.raises(StoreOutOfReachError) as raised:
        await writer.append(EntryId(0), [b"x"])
    assert raised.value.outcome_unknown
    assert raised.value.message == (
        "the object storage cannot be used, mend it: the connection broke: root=s3://bucket/logs"
    )
    with pytest.raises(StoreOutOfReachError, match="the connection broke"):
        await (await cluster.store(retry_s=0.2)).recover(ref)  # it cannot create the FENCE
    with pytest.raises(StoreOutOfReachError, match="the connection broke"):
        await created(await cluster.store(retry_s=0.2))
    cluster.objects.faults.clear()
    cluster.objects.land_late()
    assert (await (await cluster.store()).recover(ref)).end == 0


async def test_requests_that_are_never_answered_end_with_the_reason(cluster: Cluster) -> None:
    store = await cluster.store(retry_s=0.2)
    ref = await written(store, [b"x"], seals=False)
    writer, _ = await created(store)
    cluster.objects.held = []  # of reads, with which a request to create begins or ends
    cluster.objects.faults.extend([PutFault.LOST_ANSWER] * 3)
    for call in (writer.append(EntryId(0), [b"x"]), store.recover(ref), created(store)):
        async with limit():
            with pytest.raises(StoreOutOfReachError, match="it does not answer, or says that it is busy"):
                await call
    cluster.objects.held = None
    assert (await (await cluster.store()).recover(ref)).end == 0


async def test_a_recovery_goes_on_by_itself_behind_a_failure_of_the_storage(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [b"x"], seals=False)
    cluster.objects.faults.extend([PutFault.LOST_REQUEST] * 7)
    assert (await (await cluster.store()).recover(ref)).end == 0


async def test_a_recovery_returns_the_payloads_that_it_has_read(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [b"0", b"1", b"2"], seals=False)
    found = await (await cluster.store()).recover(ref)
    assert (found.end, found.last_payloads) == (2, (b"2",))


def test_a_budget_may_be_saved_up_for_one_second() -> None:
    now_s = 100.0
    budget = PutBudget(10.0, lambda: now_s)
    delays = [budget.take_nowait() for _ in range(13)]
    assert delays[:11] == [0.0] * 11 and delays[11] == pytest.approx(0.1) and budget.delay_s == pytest.approx(0.3)
    now_s += 1000.0
    assert budget.delay_s == 0.0


async def test_slow_streams_share_the_budget_and_their_objects_become_larger(cluster: Cluster) -> None:
    store = await cluster.store(puts_per_s=20.0)
    writer, ref = await created(store)
    for _ in range(20):
        store.budget.take_nowait()
    appends = [writer.append(EntryId(entry), [b"x"]) for entry in range(100)]
    async with limit():
        await asyncio.wait(appends)
    assert await writer.seal() == 99
    assert len(cluster.chunks(ref.name)) <= 5, "BEGIN, SEAL, and all that waited together"


# ---- reading --------------------------------------------------------------------------------------------------------


async def test_an_entry_of_a_long_chain_is_found_with_few_reads(cluster: Cluster) -> None:
    payloads = [b"%d" % entry * (1 + entry % 7) for entry in range(600)]
    ref = await written(await cluster.store(), payloads)
    reader = await (await cluster.store(reads_ahead=1)).open_reader(ref)
    rng = random.Random(3)
    cluster.objects.reads.clear()
    for entry in (rng.randrange(600) for _ in range(20)):
        assert await reader.read(EntryId(entry), EntryId(entry), 1) == [payloads[entry]]
    assert len(cluster.objects.reads) <= 20 * 6
    await reader.close()


async def test_a_sequential_reader_of_many_large_chunks_waits_for_few_round_trips(cluster: Cluster) -> None:
    """Its reads ahead go on behind the end of a chunk."""
    entry_bytes, extent_bytes, chunks, extents = 50_000, 100_000, 12, 4
    store = await cluster.store(chunk_bytes_max=extents * extent_bytes)
    writer, ref = await created(store)
    payloads = [b"%d" % (at % 10) * entry_bytes for at in range(chunks * extents * 2)]
    for first in range(0, len(payloads), extents * 2):
        await asyncio.wait([writer.append(EntryId(first + at), [payloads[first + at]]) for at in range(extents * 2)])
    await writer.seal()
    store = await cluster.store(extent_bytes=extent_bytes, reads_ahead=8, cache_bytes_max=64 * extent_bytes)
    await store.check_root()
    round_trips = 0
    cluster.objects.held = []
    async with limit(), asyncio.TaskGroup() as group:
        reading = group.create_task(read_all(store, ref, entry_bytes * 2), name="reader")
        while not reading.done():
            for _ in range(200):
                await asyncio.sleep(0)
            round_trips += bool(cluster.objects.held)
            cluster.objects.release()
    assert reading.result() == payloads
    assert round_trips <= chunks, "about one for the bytes read ahead, not one or two for each chunk"


async def test_a_seek_in_a_long_chain_probes_several_objects_at_once(cluster: Cluster) -> None:
    store = await cluster.store()
    ref = await written(store, [entry_payload([at], START_MS + at) for at in range(600)])
    for wanted in (0, 1, 300, 599):
        reader = await (await cluster.store()).open_reader(ref)
        cluster.objects.reads.clear()
        low, high = await reader.locate(EntryId(0), EntryId(599), wanted, by_time=False)
        assert low <= wanted <= high < low + 2
        assert len(cluster.objects.reads) <= 3 * 8  # at most eight at once: three rounds
        await reader.close()


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_seek_in_large_chunks_leaves_one_of_them(cluster: Cluster, size: int) -> None:
    store = await cluster.store(chunk_bytes_max=100_000 if size > 1000 else 2_000)
    writer, ref = await created(store)
    rng = random.Random(size)
    payloads = draw_entries(rng, 60, size)
    for first in range(0, 60, 12):
        await asyncio.wait([writer.append(EntryId(at), [payloads[at]]) for at in range(first, first + 12)])
    reader = await (await cluster.store()).open_reader(ref)
    assert await check_locate(reader, payloads, rng) < 20
    await writer.seal()
    await reader.close()


async def test_a_damaged_chunk_narrows_nothing(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [entry_payload([at], START_MS + at) for at in range(5)])
    for place in list(cluster.chunks(ref.name).values())[1:-1]:
        cluster.objects.objects[place] = cluster.objects.objects[place][:-1] + b"?"
    reader = await (await cluster.store()).open_reader(ref)
    assert await reader.locate(EntryId(0), EntryId(4), 3, by_time=False) == (0, 4)
    await reader.close()


async def test_a_large_chunk_is_read_in_parts(cluster: Cluster) -> None:
    store = await cluster.store(chunk_bytes_max=1 << 20)
    writer, ref = await created(store)
    rng = random.Random(5)
    payloads = [rng.randbytes(rng.choice((0, 10, 5_000, 30_000))) for _ in range(80)]
    appends = [writer.append(EntryId(entry), [payload]) for entry, payload in enumerate(payloads)]
    await asyncio.wait(appends)
    await writer.seal()
    other = await cluster.store(extent_bytes=40_000)
    assert await read_all(other, ref) == payloads
    reader = await other.open_reader(ref)
    for entry in range(79, -1, -1):
        assert await reader.read(EntryId(entry), EntryId(79), 1) == [payloads[entry]]
    assert (await other.verify(ref)).damaged == ()
    await reader.close()


async def test_hints_of_the_owner_save_requests(cluster: Cluster) -> None:
    writer, ref = await created(await cluster.store())
    reader = await (await cluster.store()).open_reader(ref)
    await writer.append(EntryId(0), [b"x"])
    cluster.objects.lists = 0
    reader.learn_lac(EntryId(0))
    assert await reader.wait_lac(EntryId(-1), 30.0) == 0 and cluster.objects.lists == 0
    assert await reader.read(EntryId(0), EntryId(0), 1) == [b"x"]
    await reader.close()


async def test_a_hint_that_is_not_true_is_no_damage(cluster: Cluster) -> None:
    _, ref = await created(await cluster.store())
    reader = await (await cluster.store()).open_reader(ref)
    reader.learn_lac(EntryId(5))
    with pytest.raises(StoreUnavailableError, match="not found"):
        await reader.read(EntryId(5), EntryId(5), 1)
    await reader.close()


# ---- deleting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seals", [True, False])
@pytest.mark.parametrize("killed_after", range(8))
async def test_an_interrupted_deletion_reads_as_no_segment_and_is_finished_later(
    cluster: Cluster, killed_after: int, seals: bool
) -> None:
    ref = await written(await cluster.store(), [b"%d" % entry for entry in range(5)], seals=seals)
    kept = await written(await cluster.store(), [b"kept"])
    cluster.objects.deletions_left = killed_after
    store = await cluster.store()
    is_killed = False
    try:
        await store.delete(ref)
    except StoreUnavailableError:
        is_killed = True
    cluster.objects.deletions_left = None
    other = await cluster.store()
    left = [name async for name in other.list()]
    if killed_after:
        for call in (other.recover, other.open_reader, other.find_tail, other.stat, other.verify):
            with pytest.raises(SegmentNotFoundError):
                await call(ref)
    elif is_killed:
        assert len(await read_all(other, ref)) == 5
    assert kept.name in left and (ref.name in left) == (is_killed and len(cluster.chunks(ref.name)) > 1)
    await other.delete(ref)
    await other.delete(ref)
    assert [name async for name in other.list()] == [kept.name]
    kinds = [decode_head(cluster.objects.objects[place]).kind for place in cluster.chunks(ref.name).values()]
    assert kinds == ([] if seals else [ChunkKind.FENCE])


async def test_a_writer_that_wakes_up_after_its_segment_was_deleted_gets_nothing_acknowledged(cluster: Cluster) -> None:
    writer, ref = await created(await cluster.store())
    await writer.append(EntryId(0), [b"x"])
    other = await cluster.store()
    await other.recover(ref)
    await other.delete(ref)
    with pytest.raises(SegmentFencedError):
        await writer.append(EntryId(1), [b"late"])


async def test_a_segment_that_is_deleted_while_it_is_written_fences_its_writer(cluster: Cluster) -> None:
    writer, ref = await created(await cluster.store())
    await (await cluster.store()).delete(ref)
    with pytest.raises(SegmentFencedError):
        await writer.append(EntryId(0), [b"x"])


@pytest.mark.parametrize("damage", [b"damaged", b"?" * HEAD_BYTES, None], ids=["short", "long", "missing"])
@pytest.mark.parametrize("damaged", [{0}, {30}, {29, 30}, {14, 29}, set(range(20, 31)), set(range(31))], ids=str)
async def test_a_deletion_fences_the_writer_whatever_is_damaged(
    cluster: Cluster, damaged: set[int], damage: bytes | None
) -> None:
    writer, ref = await created(await cluster.store())
    for entry in range(30):
        await writer.append(EntryId(entry), [b"x"])
    chunks = cluster.chunks(ref.name)
    if damage is None:
        damaged = {number for number in damaged if number < 30}  # without the last one it is not known
    for number in damaged:
        if damage is None:
            del cluster.objects.objects[chunks[number]]
        else:
            cluster.objects.objects[chunks[number]] = damage
    other = await cluster.store()
    await other.delete(ref)
    await other.delete(ref)
    left = cluster.chunks(ref.name)
    with pytest.raises(SegmentFencedError):
        await writer.append(EntryId(30), [b"late"])
    assert cluster.chunks(ref.name) == left and 0 not in left
    assert len(left) <= 16 + len(damaged)


async def test_a_deletion_keeps_a_fence_that_it_cannot_read(cluster: Cluster) -> None:
    writer, ref = await created(await cluster.store())
    await writer.append(EntryId(0), [b"x"])
    other = await cluster.store()
    await other.recover(ref)
    cluster.objects.objects[cluster.chunks(ref.name)[2]] = b"damaged"
    await (await cluster.store()).delete(ref)
    await (await cluster.store()).delete(ref)
    with pytest.raises(SegmentFencedError):
        await writer.append(EntryId(1), [b"late"])


async def test_a_follower_notices_a_deletion(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [b"x"], seals=False)
    reader = await (await cluster.store()).open_reader(ref)
    await (await cluster.store()).delete(ref)
    with pytest.raises(SegmentNotFoundError):
        await reader.wait_lac(EntryId(0), 0.0)
    await reader.close()


# ---- wrong roots ----------------------------------------------------------------------------------------------------


async def test_a_wrong_root_is_never_taken_for_one_whose_segments_are_deleted(cluster: Cluster) -> None:
    known = await cluster.store()
    ref = await written(known, [b"x"])
    there = dict(cluster.objects.objects)
    cluster.objects.objects.clear()
    for store in (known, await cluster.store()):
        for call in (store.recover, store.open_reader, store.find_tail, store.stat, store.verify, store.delete):
            with pytest.raises(StoreOutOfReachError, match="not at this root"):
                await call(ref)
        with pytest.raises(StoreOutOfReachError):
            await created(store)
        with pytest.raises(StoreOutOfReachError):
            await store.check_root()
    assert not cluster.objects.objects, "nothing is created there"
    cluster.objects.objects.update(there)
    assert await read_all(known, ref) == [b"x"]


async def test_a_marker_of_another_cluster_is_refused(cluster: Cluster) -> None:
    store = await cluster.store()
    ref = await written(store, [b"x"])
    cluster.objects.objects[f"{ROOT}/{cluster.name}/{MARKER}"] = b"something else"
    with pytest.raises(StoreOutOfReachError):
        await (await cluster.store()).recover(ref)


async def test_clusters_share_a_root(cluster: Cluster) -> None:
    other = Cluster()
    other.objects, other._rng = cluster.objects, random.Random(2)
    ref = await written(await cluster.store(), [b"x"])
    store = await other.store()
    theirs = await written(store, [b"y"])
    assert [name async for name in store.list()] == [theirs.name]
    with pytest.raises(SegmentNotFoundError):
        await store.recover(ref)
    await other.aclose()


async def test_of_two_processes_that_make_a_folder_one_wins(cluster: Cluster) -> None:
    stores = [await cluster.store() for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        for number, store in enumerate(stores):
            group.create_task(written(store, [b"x"]), name=f"process {number}")
    markers = [place for place in cluster.objects.objects if place.endswith(MARKER)]
    assert markers == [f"{ROOT}/{cluster.name}/{MARKER}"]


async def test_without_a_recorded_folder_a_reader_finds_no_segment_and_makes_nothing(cluster: Cluster) -> None:
    store = await cluster.store(creates=False)
    assert [name async for name in store.list()] == []
    with pytest.raises(StoreOutOfReachError, match="no segments in objects yet"):
        await store.recover(SegmentRef(STREAM, SegmentNumber(1), "0" * 32))
    assert not cluster.objects.objects


async def test_metadata_that_does_not_answer_may_do_later(cluster: Cluster) -> None:
    store = await cluster.store(retry_s=0.2)
    cluster.has_metadata = False
    with pytest.raises(StoreUnavailableError, match="no session"):
        await created(store)
    cluster.has_metadata = True
    await created(store)


async def test_a_storage_that_replaces_objects_is_refused_before_a_segment_is_created(cluster: Cluster) -> None:
    cluster.objects.overwrites = True
    with pytest.raises(MisconfiguredError, match="replaces an object"):
        await created(await cluster.store())
    assert list(cluster.objects.objects) == [f"{ROOT}/{cluster.name}/{MARKER}"]


# ---- bad input ------------------------------------------------------------------------------------------------------


async def test_a_flipped_byte_anywhere_is_never_read_as_data(cluster: Cluster) -> None:
    payloads = [b"first", b"", b"second and last"]
    ref = await written(await cluster.store(), payloads)
    rng = random.Random(7)
    for number, place in cluster.chunks(ref.name).items():
        sound = cluster.objects.objects[place]
        for at in rng.sample(range(len(sound)), min(len(sound), 40)):
            for damaged in (sound[:at] + bytes([sound[at] ^ 1 << rng.randrange(8)]) + sound[at + 1 :], sound[:at]):
                cluster.objects.objects[place] = damaged
                store = await cluster.store()
                try:
                    assert await read_all(store, ref) == payloads, (number, at)
                    pytest.fail(f"it reads as sound: number={number} at={at}")
                except SegmentCorruptError:
                    pass
                with suppress(SegmentCorruptError):
                    assert (await store.verify(ref)).damaged, (number, at)
        cluster.objects.objects[place] = sound
    assert await read_all(await cluster.store(), ref) == payloads


async def test_a_damaged_entry_is_told_and_the_others_are_read(cluster: Cluster) -> None:
    store = await cluster.store(chunk_bytes_max=1 << 20)
    writer, ref = await created(store)
    payloads = [b"%d" % entry * 9 for entry in range(30)]
    await asyncio.wait([writer.append(EntryId(entry), [payload]) for entry, payload in enumerate(payloads)])
    await writer.seal()
    [(place, data)] = [(p, d) for p, d in cluster.objects.objects.items() if payloads[20] in d]
    cluster.objects.objects[place] = data.replace(payloads[20], b"?" * len(payloads[20]))
    other = await cluster.store()
    assert [entry for entry, _ in (await other.verify(ref)).damaged] == [20]
    reader = await other.open_reader(ref)
    assert await reader.read(EntryId(21), EntryId(29), 1 << 20) == payloads[21:]
    found: list[bytes] = []
    while len(found) < 20:
        found += await reader.read(EntryId(len(found)), EntryId(29), 1 << 20)
    assert found == payloads[:20]
    with pytest.raises(SegmentCorruptError, match="entry=20"):
        await reader.read(EntryId(20), EntryId(29), 1 << 20)
    await reader.close()


async def test_a_read_that_returns_wrong_bytes_once_is_repeated(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [b"x"])
    store = await cluster.store()
    await store.list().__anext__()
    cluster.objects.lie = b"DLOG garbage"
    assert await read_all(store, ref) == [b"x"]


async def test_a_missing_chunk_of_a_completed_segment_is_damage_and_no_end(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [b"%d" % entry for entry in range(40)])
    place = cluster.chunks(ref.name)[35]
    taken = cluster.objects.objects.pop(place)
    store = await cluster.store()
    for call in (store.open_reader, store.stat):
        with pytest.raises(SegmentCorruptError, match="number=35"):
            await call(ref, sealed_at=EntryId(39))
    cluster.objects.objects[place] = taken
    assert len(await read_all(store, ref)) == 40, "nothing was created there"
    del cluster.objects.objects[place]
    await store.delete(ref)
    assert [name async for name in store.list()] == []


@pytest.mark.parametrize("missing", [30, 37, 39])
async def test_a_missing_chunk_of_an_unfinished_segment_is_damage_and_no_end(cluster: Cluster, missing: int) -> None:
    writer, ref = await created(await cluster.store())
    for entry in range(40):
        await writer.append(EntryId(entry), [b"x"])
    place = cluster.chunks(ref.name)[missing]
    taken = cluster.objects.objects.pop(place)
    store = await cluster.store()
    for call in (store.recover, store.open_reader, store.find_tail):
        with pytest.raises(SegmentCorruptError, match=f"missing: number={missing}"):
            await call(ref)
    cluster.objects.objects[place] = taken
    assert (await store.recover(ref)).end == 39, "nothing was created there"


async def test_a_reader_does_not_wait_for_ever_at_a_chunk_that_is_missing(cluster: Cluster) -> None:
    writer, ref = await created(await cluster.store())
    await writer.append(EntryId(0), [b"x"])
    reader = await (await cluster.store()).open_reader(ref)
    for entry in range(1, 40):
        await writer.append(EntryId(entry), [b"x"])
    del cluster.objects.objects[cluster.chunks(ref.name)[2]]
    assert await reader.wait_lac(EntryId(0), 0.0) == 39
    with pytest.raises(SegmentCorruptError, match="missing"):
        await reader.read(EntryId(1), EntryId(39), 1)
    await reader.close()


async def test_a_missing_chunk_far_below_the_end_is_told_by_verify(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [b"%d" % entry for entry in range(60)])
    del cluster.objects.objects[cluster.chunks(ref.name)[11]]
    store = await cluster.store()
    assert [entry for entry, _ in (await store.verify(ref)).damaged] == [10]
    reader = await store.open_reader(ref)
    with pytest.raises(SegmentCorruptError, match="missing"):
        await reader.read(EntryId(10), EntryId(10), 1)
    await reader.close()


async def test_foreign_objects_in_the_folder_are_passed_over(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [b"x"])
    folder = f"{ROOT}/{cluster.name}/{SEGMENTS}"
    for name in (
        f"{ref.name}/0",
        f"{ref.name}/{1:020d}.bak",
        f"{ref.name}/sub/{3:020d}",
        "readme",
        f"{'g' * 32}/{1:020d}",
    ):
        cluster.objects.objects[f"{folder}/{name}"] = b"foreign"
    store = await cluster.store()
    assert await read_all(store, ref) == [b"x"]
    assert [name async for name in store.list()] == [ref.name]


async def test_a_chunk_of_another_segment_and_a_newer_format_are_refused(cluster: Cluster) -> None:
    ref = await written(await cluster.store(), [b"x"])
    other = await written(await cluster.store(), [b"y"])
    place = cluster.chunks(ref.name)[1]
    sound = cluster.objects.objects[place]
    cluster.objects.objects[place] = cluster.objects.objects[cluster.chunks(other.name)[1]]
    with pytest.raises(SegmentCorruptError, match="another segment"):
        await read_all(await cluster.store(), ref)
    damaged = sound[:8] + b"\x00\x09" + sound[10:]
    head = damaged[: HEAD_BYTES - 4]
    newer = head + crc32c(head).to_bytes(4) + sound[HEAD_BYTES:]
    for data, text in ((damaged, "checksum of a chunk's head does not match"), (newer, "upgrade")):
        cluster.objects.objects[place] = data
        with pytest.raises(SegmentCorruptError, match=text):
            await read_all(await cluster.store(), ref)


@pytest.mark.parametrize("description", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x90"])
async def test_a_first_chunk_that_describes_nothing_is_damage(cluster: Cluster, description: bytes) -> None:
    ref = await written(await cluster.store(), [b"x"])
    place = cluster.chunks(ref.name)[0]
    head = decode_head(cluster.objects.objects[place])
    what = {"number": 0, "epoch": 1, "contiguous": 0, "first": 0, "bytes_before": 0}
    parts = encode_chunk(ChunkKind.BEGIN, [description], nonce=head.nonce, segment=head.segment, **what)
    cluster.objects.objects[place] = b"".join(parts)
    store = await cluster.store()
    with pytest.raises(SegmentCorruptError):
        await store.stage_of(ref.name)
    assert len(b"".join(parts)) >= HEAD_BYTES


@pytest.mark.parametrize("name", ["", "7", "../../x", "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n"])
async def test_a_name_that_no_segment_has_is_not_found(cluster: Cluster, name: str) -> None:
    store = await cluster.store()
    await written(store, [b"x"])
    ref = SegmentRef(STREAM, SegmentNumber(1), name)
    with pytest.raises(SegmentNotFoundError):
        await store.recover(ref)
    await store.delete(ref)


@pytest.mark.parametrize(
    "changes",
    [{"root": "hdfs://x/y"}, {"root": "nowhere"}, {"chunk_bytes_max": 0}, {"puts_per_s": 0.0}, {"poll_min_s": 0.0}],
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises((ValueError, DLogError)):
        ObjectsOptions(**changes)  # type: ignore[arg-type]


async def test_a_closed_store_refuses_every_call(cluster: Cluster) -> None:
    store = await cluster.store()
    ref = await written(store, [b"x"])
    reader = await store.open_reader(ref)
    await store.close()
    with pytest.raises(StoreError):
        await reader.read(EntryId(0), EntryId(0), 1)
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.recover(ref)
