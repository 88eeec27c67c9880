"""Tests the store `s3` where the contract suite does not look: entries that move while they are read, lagging images,
failover and restart of nodes, deletions, bad objects, and a node without room."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from unittest import mock

import pytest

from dlog.events import Event, ObjectsCompacted
from dlog.io.s3_store import open_s3_store
from dlog.log.contents import read_contents
from dlog.log.seeking import BinarySearch, SeekTarget
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.object_streams import NodeId, ObjectId
from dlog.objects.image import ObjectState
from dlog.objects.node_messages import UploadAll, WriteObject
from dlog.stores.contract import (
    AppendSink,
    Buffer,
    MisconfiguredError,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentRef,
    StoreOutOfReachError,
    StoreUnavailableError,
)
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.port import Creation
from dlog.stores.object_storage.seeking import SpanOf
from dlog.stores.s3 import object_writes
from dlog.stores.s3.object_reads import object_name
from dlog.stores.s3.places import parse_place, parse_segment_key, range_of, segment_key
from dlog.stores.s3.ports import Processes
from dlog.stores.s3.store import S3Store
from dlog.stores.s3.wal_follower import WalFollower
from dlog.stores.s3.writer import S3Writer
from dlog.stores.s3_direct.options import ObjectsOptions
from tests.integration.stores.seeking import START_MS, check_locate, draw_entries, entry_payload
from tests.memory_objects import MemoryObjects
from tests.memory_store import MemoryStore, MemoryStoreState, MemoryWriter
from tests.object_metadata import MemoryController, MemoryMetadata, away

STREAM = StreamName("s")
FOLDER = parse_root("s3://bucket/logs/objects")
W1, W2, W3 = NodeId("w1"), NodeId("w2"), NodeId("w3")
OPTIONS: dict[str, Any] = {
    "root": "s3://bucket/logs",
    "upload_bytes": 1 << 20,
    "upload_s": 1e6,
    "stream_object_bytes": 1 << 16,
    "node_cache_bytes_max": 1 << 20,
    "wal_segment_bytes": 3000,
    "compaction_s": 1e6,
    "split_after_s": 1000.0,
    "poll_max_s": 0.02,
    "retry_s": 5.0,
}


class Wal(MemoryStore):
    """A log in memory, under the name of a store that may have logs."""

    name = "ledger"


class Objects(MemoryObjects):
    """is_full: no object can be created. reading_most: reads that were under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.reading = self.reading_most = 0

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        self.reading += 1
        self.reading_most = max(self.reading_most, self.reading)
        try:
            await asyncio.sleep(0)
            return await super().read(location, offset, size)
        finally:
            self.reading -= 1

    async def create_if_absent(self, location: Location, data: Sequence[Any], **more: Any) -> Creation:
        if self.is_full:
            raise StoreUnavailableError("the storage has no room")
        return await super().create_if_absent(location, data, **more)


class Cluster:
    """Opens stores of one cluster, as its processes do."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.controller = MemoryController(self.objects, FOLDER)
        self.wal = MemoryStoreState()
        self.events: list[Event] = []
        self.metadata = MemoryMetadata(self.controller)
        self.check_objects: Callable[[], Awaitable[None]] | None = None  # of the stores that are opened next
        self._stack = AsyncExitStack()
        self._number = 0

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def store(
        self,
        node: NodeId | None,
        *,
        is_lagging: bool = False,
        processes: Processes | None = None,
        **changes: Any,
    ) -> S3Store:
        async def find_folder() -> Location:
            return FOLDER

        wal = Wal(self.wal, entry_bytes_max=100_000)
        opening = open_s3_store(
            MemoryMetadata(self.controller, is_lagging=is_lagging),
            self.objects,
            find_folder,
            {"ledger": wal},
            ObjectsOptions(**{**OPTIONS, **changes}),
            random.Random(os.urandom(8)),
            node=node,
            processes=processes,
            check_objects=self.check_objects,
            on_event=self.events.append,
        )
        return await self._stack.enter_async_context(opening)

    async def segment(self, store: S3Store) -> tuple[S3Writer, SegmentRef]:
        self._number += 1
        writer = await store.create(STREAM, SegmentNumber(self._number), Epoch(1), ())
        return writer, SegmentRef(STREAM, SegmentNumber(self._number), writer.name)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a state of the metadata."""
        while not holds():
            assert await self.metadata.wait_version(self.controller.version + 1, 30.0)

    def committed(self, ref: SegmentRef) -> int:
        found = range_of(self.metadata.image, parse_place(ref.name))
        assert found is not None
        return found.committed - found.start

    def states(self, state: ObjectState) -> int:
        return self.metadata.image.objects.count(state)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


def entry(number: int) -> bytes:
    return b"entry %d " % number + b"." * (number * 37 % 300)


async def append(writer: S3Writer, first: int, end: int) -> None:
    for number in range(first, end):
        await writer.append(EntryId(number), [entry(number)])


async def upload(store: S3Store) -> None:
    assert store.node is not None and store.node.current is not None
    await store.node.current.actor.ask(UploadAll())


async def read(store: S3Store, ref: SegmentRef, end: int, first: int = 0, max_bytes: int = 1000) -> list[bytes]:
    reader = await store.open_reader(ref)
    try:
        while (await reader.wait_lac(EntryId(end - 2), 30.0)) < end - 1:
            pass
        found: list[bytes] = []
        while first + len(found) < end:
            found += await reader.read(EntryId(first + len(found)), EntryId(end - 1), max_bytes)
        return found
    finally:
        await reader.close()


# ---- entries that move ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lagging", [False, True])
async def test_entries_are_read_across_objects_the_log_and_the_nodes_memory_while_they_move(
    cluster: Cluster, is_lagging: bool
) -> None:
    one = await cluster.store(W1, split_after_s=0.001, minor_bytes=1 << 20)
    two = await cluster.store(W2, is_lagging=is_lagging)
    segments = [await cluster.segment(one) for _ in range(3)]
    expected = [entry(number) for number in range(60)]
    tail = await two.open_reader(segments[0][1])
    for end in range(10, 61, 10):
        for writer, _ in segments:
            await append(writer, end - 10, end)
        tail.learn_lac(EntryId(end - 1))
        assert await tail.read(EntryId(end - 1), EntryId(end - 1), 1) == [entry(end - 1)]
        if end % 20 == 0:
            await upload(one)
            cluster.objects.time_ms += 1000
            assert one.compactions is not None
            await one.compactions.round(is_major=end == 60)
        for store in (one, two):
            for _, ref in segments:
                for first in (0, end // 2, end - 1):
                    assert await read(store, ref, end, first) == expected[first:end]
        await cluster.controller.tick(20 * 60_000)  # the controller deletes what was compacted
    await tail.close()
    for writer, ref in segments:
        assert await writer.seal() == 59
        assert (await two.verify(ref)).damaged == ()
        assert (await two.stat(ref)).payload_bytes == sum(map(len, expected))
    kinds = {event.kind for event in cluster.events if isinstance(event, ObjectsCompacted)}
    assert {"force-split", "minor"} <= kinds
    assert cluster.states(ObjectState.MARKED) == 0
    assert len(cluster.objects.objects) == cluster.states(ObjectState.COMMITTED)


async def test_a_tail_is_found_while_the_log_that_has_it_is_uploaded_and_deleted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await cluster.store(W1), await cluster.store(None)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 30)
    original = WalFollower.catch_up
    moved: list[WalFollower] = []

    async def catch_up(follower: WalFollower) -> None:
        """The scan has read the image, and finds the segment of the log deleted."""
        if not moved:
            moved.append(follower)
            await upload(one)
            raise SegmentNotFoundError("no such segment of the log")
        await original(follower)

    monkeypatch.setattr(WalFollower, "catch_up", catch_up)
    assert await two.find_tail(ref) == 29
    assert moved


async def test_a_closed_store_seals_nothing(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    writer, _ = await cluster.segment(one)
    one.tasks.is_open = False
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await writer.seal()
    one.tasks.is_open = True
    assert await writer.seal() == -1


async def test_a_reader_without_a_controller_reads_what_is_known_here(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 10)
    assert len(await read(two, ref, 10)) == 10
    async with away(cluster.controller):
        assert len(await read(two, ref, 10)) == 10
        await append(writer, 10, 12)  # acknowledgements do not need it either
        assert len(await read(two, ref, 12)) == 12
        with pytest.raises(StoreUnavailableError):
            await two.find_tail(ref)


async def test_lost_answers_of_the_controller_do_no_harm(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    for number in range(5):
        cluster.controller.lost = 1
        writer, ref = await cluster.segment(one)
        await append(writer, 0, 5)
        cluster.controller.lost = 1 + number % 3
        await upload(one)
        cluster.controller.lost = 1
        assert await writer.seal() == 4
        assert len(await read(one, ref, 5)) == 5
    assert len([name async for name in one.list()]) == 5


async def test_another_controller_goes_on_where_the_one_before_stopped(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 5)
    cluster.controller.restart()
    await append(writer, 5, 10)
    await upload(one)
    assert await writer.seal() == 9
    assert cluster.committed(ref) == 10


async def test_a_stream_with_a_little_in_many_objects_is_fetched_ahead(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    for number in range(12):
        await append(writer, number, number + 1)
        await upload(one)
    assert await read(two, ref, 12) == [entry(number) for number in range(12)]
    assert cluster.objects.reading_most > 3, "a take-over of it would wait for one object after another"


# ---- nodes that end -------------------------------------------------------------------------------------------------


async def test_a_recovery_takes_over_the_work_of_the_whole_node(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    segments = [await cluster.segment(one) for _ in range(3)]
    for writer, _ in segments:
        await append(writer, 0, 7)
    await upload(one)
    for writer, _ in segments:
        await append(writer, 7, 12)
    assert (await two.recover(segments[0][1])).end == 11
    for writer, ref in segments:
        with pytest.raises(SegmentFencedError):
            await writer.append(EntryId(12), [b"late"])
        assert (await two.stat(ref)).end == 11, "all its streams are closed"
        assert (await two.recover(ref)).end == 11
        assert await read(two, ref, 12) == [entry(number) for number in range(12)]
    await cluster.until(lambda: all(cluster.committed(ref) == 12 for _, ref in segments))
    writer, ref = await cluster.segment(one)  # it begins again under the next epoch
    await append(writer, 0, 3)
    assert await read(two, ref, 3) == [entry(number) for number in range(3)]
    assert cluster.metadata.image.nodes[W1].node_epoch >= 3


async def test_once_a_node_is_taken_over_its_segments_are_recovered_without_a_controller(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    segments = [await cluster.segment(one) for _ in range(3)]
    for writer, _ in segments:
        await append(writer, 0, 4)
    assert (await two.recover(segments[0][1])).end == 3
    await cluster.until(lambda: all(cluster.committed(ref) == 4 for _, ref in segments))
    async with away(cluster.controller):
        for _, ref in segments:
            assert (await two.recover(ref)).end == 3, "hundreds of streams are taken over at the same time"
            assert await read(two, ref, 4) == [entry(number) for number in range(4)]


async def test_a_process_that_recovers_a_segment_begins_its_own_node_for_the_next_one(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    checked = asyncio.Event()

    async def check_objects() -> None:
        checked.set()

    cluster.check_objects = check_objects
    two = await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 4)
    assert not checked.is_set()
    assert (await two.recover(ref)).end == 3
    await cluster.until(lambda: W2 in cluster.metadata.image.nodes)
    assert checked.is_set()


async def test_a_node_that_starts_uploads_what_it_left_without_a_new_segment(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 7)
    await writer.seal()
    await one.close()
    assert cluster.committed(ref) == 0
    again = await cluster.store(W1)
    await again.upload_left()
    await cluster.until(lambda: cluster.committed(ref) == 7)


async def test_a_process_without_a_node_recovers_and_creates_nothing(cluster: Cluster) -> None:
    one, tool = await cluster.store(W1), await cluster.store(None)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 4)
    assert not tool.capabilities.is_written
    with pytest.raises(MisconfiguredError, match="no node"):
        await tool.create(STREAM, SegmentNumber(9), Epoch(1), ())
    assert (await tool.recover(ref)).end == 3
    assert await read(tool, ref, 4) == [entry(number) for number in range(4)]


async def test_a_node_that_starts_again_ends_what_it_had_open_and_uploads_it(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 9)
    await one.close()
    again = await cluster.store(W1)
    other, other_ref = await cluster.segment(again)
    await append(other, 0, 2)
    assert (await again.recover(ref)).end == 8
    await cluster.until(lambda: cluster.committed(ref) == 9)
    assert await read(again, ref, 9) == [entry(number) for number in range(9)]
    assert await read(again, other_ref, 2) == [entry(0), entry(1)]
    assert cluster.metadata.image.nodes[W1].node_epoch == 2


async def test_a_node_that_was_taken_over_while_it_was_idle_begins_again(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    idle, _ = await cluster.segment(one)
    await append(writer, 0, 3)
    assert (await two.recover(ref)).end == 2
    other, other_ref = await cluster.segment(one)
    await append(other, 0, 2)
    assert await read(two, other_ref, 2) == [entry(0), entry(1)]
    with pytest.raises(SegmentFencedError):
        await idle.append(EntryId(0), [b"late"])


async def test_appends_in_flight_on_a_node_that_was_taken_over_are_told_that_they_are_fenced(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 3)
    unanswered = list[AppendSink]()

    async def abandon(_: MemoryWriter) -> None:
        for sink in unanswered:  # within the call, as other stores do
            sink(StoreUnavailableError("the writer was abandoned", outcome_unknown=True))

    def submit(_: MemoryWriter, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        unanswered.append(sink)

    with mock.patch.multiple(MemoryWriter, submit=submit, abandon=abandon):
        late = writer.append(EntryId(3), [b"late"])
        assert (await two.recover(ref)).end == 2
        assert one.node is not None and one.node.current is None
        with pytest.raises(SegmentFencedError) as caught:
            await late
    assert caught.value.outcome_unknown


async def test_a_log_that_was_uploaded_and_deleted_by_another_process_is_fenced(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    writer, _ = await cluster.segment(one)
    gone = SegmentNotFoundError("no such segment", outcome_unknown=True)
    refuse = mock.patch.object(MemoryWriter, "submit", lambda _self, _entry, _payload, sink: sink(gone))
    with refuse, pytest.raises(SegmentFencedError) as caught:
        await writer.append(EntryId(0), [b"late"])
    assert caught.value.outcome_unknown


async def test_a_failed_log_ends_the_node_and_the_next_one_has_what_was_acknowledged(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 5)
    [wal] = cluster.metadata.image.nodes[W1].wal
    await Wal(cluster.wal).recover(SegmentRef(StreamName("_dlog.wal"), SegmentNumber(wal.number), wal.name))
    with pytest.raises(SegmentFencedError):
        await writer.append(EntryId(5), [b"in doubt"])
    assert (await one.recover(ref)).end == 4
    other, _ = await cluster.segment(one)
    await append(other, 0, 1)


async def test_the_log_is_deleted_once_it_is_uploaded(cluster: Cluster) -> None:
    one = await cluster.store(W1)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 100)
    assert len(cluster.metadata.image.nodes[W1].wal) > 2, "it has rolled"
    await upload(one)
    await cluster.until(lambda: len(cluster.metadata.image.nodes[W1].wal) == 1)
    assert len(cluster.wal.segments) <= 2
    two = await cluster.store(W2)
    assert await read(two, ref, 100) == [entry(number) for number in range(100)]


async def test_an_upload_costs_five_records_of_metadata_however_many_streams_are_in_it(cluster: Cluster) -> None:
    store = await cluster.store(W1, wal_segment_bytes=20_000)
    written = [await cluster.segment(store) for _ in range(60)]
    before, wal = cluster.controller.version, list(cluster.metadata.image.nodes[W1].wal)
    for writer, _ in written:
        await append(writer, 0, 3)
    await upload(store)
    await cluster.until(lambda: len(cluster.metadata.image.nodes[W1].wal) == 1)
    assert all(cluster.committed(ref) == 3 for _, ref in written)
    assert cluster.metadata.image.nodes[W1].wal != wal, "the log has rolled, and what was uploaded is deleted"
    assert cluster.controller.version - before <= 5


async def test_a_node_without_room_lets_appends_wait_and_ends_the_segment_only_after_a_deadline(
    cluster: Cluster,
) -> None:
    one = await cluster.store(W1, node_cache_bytes_max=100_000)
    writer, ref = await cluster.segment(one)
    cluster.objects.is_full = True
    appends = [writer.append(EntryId(number), [b"x" * 30_000]) for number in range(6)]
    await appends[0]
    assert not appends[-1].done()
    cluster.objects.is_full = False
    for one_append in appends:
        await one_append
    assert await writer.seal() == 5
    impatient = await cluster.store(W2, node_cache_bytes_max=100_000, retry_s=0.05)
    writer, ref = await cluster.segment(impatient)
    cluster.objects.is_full = True
    appends = [writer.append(EntryId(number), [b"x" * 30_000]) for number in range(6)]
    with pytest.raises(StoreOutOfReachError, match=r"not uploaded yet, uploads make no progress: .*no room") as raised:
        await appends[-1]
    assert not raised.value.outcome_unknown
    cluster.objects.is_full = False
    confirmed = writer.last_confirmed
    await writer.abandon()
    assert (await (await cluster.store(W3)).recover(ref)).end == confirmed


async def test_an_append_that_waits_too_long_for_slow_uploads_hears_that_they_are_slow(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await cluster.store(W1, node_cache_bytes_max=100_000, retry_s=0.05)
    writer, _ = await cluster.segment(store)
    goes_on = asyncio.Event()
    create = MemoryObjects.create_if_absent

    async def slow(*of: Any, **more: Any) -> Any:
        await goes_on.wait()
        return await create(*of, **more)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryObjects, "create_if_absent", slow)
        appends = [writer.append(EntryId(number), [b"x" * 30_000]) for number in range(6)]
        with pytest.raises(StoreOutOfReachError, match=r"too much is not uploaded yet, uploads are slow: location="):
            await appends[-1]
        goes_on.set()


# ---- deletion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
async def test_segments_are_deleted_in_any_order_until_nothing_is_left(
    cluster: Cluster, order: tuple[int, ...]
) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    segments = [await cluster.segment(one) for _ in range(3)]
    for number, (writer, _) in enumerate(segments):
        await append(writer, 0, 5)
        if number != 1:
            await upload(one)
        if number != 2:
            await writer.seal()
    left = {ref.name for _, ref in segments}
    for at in order:
        ref = segments[at][1]
        await two.delete(ref)
        left.discard(ref.name)
        assert {name async for name in one.list()} == left
        for _, other in segments:
            if other.name in left:
                assert await read(two, other, 5) == [entry(number) for number in range(5)]
            else:
                with pytest.raises(SegmentNotFoundError):
                    await one.open_reader(other)
    assert [key for key in cluster.metadata.image.keys if parse_segment_key(key)] == []
    assert not cluster.metadata.image.streams
    writer, ref = await cluster.segment(two)
    await append(writer, 0, 1)
    await upload(two)
    for store in (one, two):
        assert store.node is not None and store.compactions is not None
        await store.node.serving(30.0)
        await store.compactions.round(is_major=False)
    for _ in range(3):
        await cluster.controller.tick(20 * 60_000)
    assert len(cluster.objects.objects) == 1, "only what is alive is left"


async def test_a_reader_of_a_deleted_segment_is_told(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 5)
    await writer.seal()
    reader = await two.open_reader(ref)
    await one.delete(ref)
    with pytest.raises(SegmentNotFoundError):
        await reader.read(EntryId(0), EntryId(4), 1000)
    await reader.close()


# ---- bad objects ----------------------------------------------------------------------------------------------------


def _flipped(data: bytes, _: bytes) -> bytes:
    return data[:150] + bytes([data[150] ^ 1]) + data[151:]


def _cut_short(data: bytes, _: bytes) -> bytes:
    return data[:-20]


def _foreign(_: bytes, other: bytes) -> bytes:
    return other


@pytest.mark.parametrize("change", [_flipped, _cut_short, _foreign])
async def test_a_bad_object_is_told_and_never_read_as_entries(
    cluster: Cluster, change: Callable[[bytes, bytes], bytes]
) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    other, _ = await cluster.segment(one)
    await append(writer, 0, 5)
    await upload(one)
    await append(other, 0, 5)
    await upload(one)
    await append(writer, 5, 7)
    await writer.seal()
    first, second = sorted(cluster.objects.objects, key=lambda name: name.rpartition("/")[2])
    sound = cluster.objects.objects[first]
    cluster.objects.objects[first] = change(sound, cluster.objects.objects[second])
    reader = await two.open_reader(ref)
    with pytest.raises(SegmentCorruptError):
        await reader.read(EntryId(0), EntryId(6), 1000)
    assert await reader.read(EntryId(5), EntryId(6), 1000) == [entry(5), entry(6)]
    await reader.close()
    assert [number for number, _ in (await two.verify(ref)).damaged] == list(range(5))
    cluster.objects.objects[first] = sound
    assert await read(two, ref, 7) == [entry(number) for number in range(7)], "damage is not cached"


async def test_a_lost_object_is_damage_and_no_end(cluster: Cluster) -> None:
    one, two = await cluster.store(W1), await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    await append(writer, 0, 5)
    await upload(one)
    await writer.seal()
    cluster.objects.objects.clear()
    reader = await two.open_reader(ref)
    with pytest.raises(SegmentCorruptError, match="missing"):
        await reader.read(EntryId(0), EntryId(4), 1000)
    await reader.close()
    assert len((await two.verify(ref)).damaged) == 5


# ---- names and options ----------------------------------------------------------------------------------------------


# ---- seeking --------------------------------------------------------------------------------------------------------


async def written(cluster: Cluster, store: S3Store, payloads: Sequence[bytes], *, upload_every: int) -> SegmentRef:
    """A segment with these entries, in several objects."""
    writer, ref = await cluster.segment(store)
    for at, payload in enumerate(payloads):
        await writer.append(EntryId(at), [payload])
        if at % upload_every == upload_every - 1:
            await upload(store)
    await writer.seal()
    await upload(store)
    return ref


async def sought(store: S3Store, ref: SegmentRef, last: int, target: SeekTarget) -> int:
    """Search as readers do."""
    reader = await store.open_reader(ref)
    left = await reader.locate(EntryId(0), EntryId(last), target.least, by_time=target.by_time)
    halving = BinarySearch(target, *left)
    while not halving.is_done:
        entry = EntryId(halving.middle)
        halving.handle(read_contents((await reader.read(entry, entry, 1))[0]))
    await reader.close()
    return halving.low


@pytest.mark.parametrize("by_time", [False, True])
async def test_a_seek_in_a_segment_of_many_blocks_takes_three_reads(cluster: Cluster, by_time: bool) -> None:
    store = await cluster.store(W1, upload_bytes=1 << 26, node_cache_bytes_max=1 << 26, reads_ahead=1)
    payloads = [entry_payload([at], START_MS + 2 * at, 80_000) for at in range(80)]
    ref = await written(cluster, store, payloads, upload_every=80)
    image = await store.metadata.read()
    index = await store.reads.index(object_name(image, ObjectId(1)))
    assert len(index.blocks) == 12
    for wanted in (0, 1, 40, 79):
        reader = await cluster.store(None, reads_ahead=1)  # its caches are empty
        before = len(cluster.objects.reads)
        least = START_MS + 2 * wanted if by_time else wanted
        assert await sought(reader, ref, 79, SeekTarget(by_time, least)) == wanted
        assert len(cluster.objects.reads) - before <= 3  # the index, a block and the one after it
    reader = await cluster.store(None)
    before = len(cluster.objects.reads)
    assert await sought(reader, ref, 79, SeekTarget(by_time, START_MS * 2)) == 80
    assert len(cluster.objects.reads) - before == 1  # the index says that there is none


async def test_a_seek_among_many_objects_reads_few_indexes_one_after_another(cluster: Cluster) -> None:
    store = await cluster.store(W1, node_cache_bytes_max=1 << 26, stream_object_bytes=1)
    payloads = [entry_payload([at], START_MS + at) for at in range(120)]
    ref = await written(cluster, store, payloads, upload_every=1)
    objects = cluster.objects
    assert cluster.states(ObjectState.COMMITTED) == 120
    for wanted in (0, 1, 60, 119):
        reader = await cluster.store(None)
        rounds, read = _rounds(objects)
        with mock.patch.object(objects, "read", read):
            assert await sought(reader, ref, 119, SeekTarget(False, wanted)) == wanted
        assert len(rounds) <= 5, rounds  # three of indexes, then entries


def _rounds(objects: Objects) -> tuple[list[int], Any]:
    """How many requests were under way at once, for each round of requests."""
    rounds: list[int] = []
    waiting: list[asyncio.Future[None]] = []
    serve = objects.read

    def answer() -> None:
        rounds.append(len(waiting))
        for one in waiting:
            one.set_result(None)
        waiting.clear()

    async def read(*args: Any) -> bytes:
        loop = asyncio.get_running_loop()
        if not waiting:
            loop.call_later(0.01, answer)
        waiting.append(loop.create_future())
        await waiting[-1]
        return await serve(*args)

    return rounds, read


@pytest.mark.parametrize("seed", range(4))
async def test_seeks_find_what_reading_everything_finds_while_entries_move(cluster: Cluster, seed: int) -> None:
    rng = random.Random(seed)
    one = await cluster.store(W1, split_after_s=0.001, minor_bytes=1 << 20)
    two = await cluster.store(W2)
    writer, ref = await cluster.segment(one)
    other, _ = await cluster.segment(one)
    payloads = draw_entries(rng, 60, size=200)
    left = []
    for at, payload in enumerate(payloads):
        await writer.append(EntryId(at), [payload])
        await other.append(EntryId(at), [entry(at)])
        if at % 10 == 9:
            await upload(one)
            cluster.objects.time_ms += 1000
            assert one.compactions is not None
            await one.compactions.round(is_major=False)
            for store in (one, two):
                reader = await store.open_reader(ref)
                reader.learn_lac(EntryId(at))
                left.append(await check_locate(reader, payloads[: at + 1], rng))
                await reader.close()
    assert min(left) < 60


async def test_objects_without_spans_narrow_nothing_and_those_after_them_do(cluster: Cluster) -> None:
    """An earlier release wrote none."""
    store = await cluster.store(W1, stream_object_bytes=1)
    writer, ref = await cluster.segment(store)
    payloads = [entry_payload([at], START_MS + at) for at in range(40)]
    with mock.patch.object(object_writes, "encode_object", partial(_encode_without_spans, object_writes.encode_object)):
        for at in range(20):
            await writer.append(EntryId(at), [payloads[at]])
            if at % 2:
                await upload(store)
    for at in range(20, 40):
        await writer.append(EntryId(at), [payloads[at]])
        if at % 2:
            await upload(store)
    reader = await (await cluster.store(None)).open_reader(ref)
    reader.learn_lac(EntryId(39))
    low, high = await reader.locate(EntryId(0), EntryId(39), 5, by_time=False)
    assert low == 0 and 20 <= high < 25
    assert await reader.locate(EntryId(0), EntryId(39), 30, by_time=False) == (30, 31)
    await check_locate(reader, payloads, random.Random(1))
    await reader.close()


def _encode_without_spans(
    encode: Callable[..., list[Any]], request: WriteObject, node: NodeId, span_of: SpanOf
) -> list[Any]:
    return encode(request, node, lambda _: None)


async def test_a_damaged_index_narrows_nothing(cluster: Cluster) -> None:
    store = await cluster.store(W1, stream_object_bytes=1)
    ref = await written(cluster, store, [entry_payload([at], START_MS + at) for at in range(20)], upload_every=20)
    objects = cluster.objects.objects
    [place] = [place for place in objects if "/snapshots/" not in place]
    objects[place] = objects[place][:-3] + b"xxx"
    reader = await (await cluster.store(None)).open_reader(ref)
    assert await reader.locate(EntryId(0), EntryId(19), 7, by_time=False) == (0, 19)
    await reader.close()


def test_a_key_says_for_which_segment_it_is() -> None:
    key = segment_key(StreamName("a/b"), SegmentNumber(7), "00ff")
    assert parse_segment_key(key) == ("a/b", 7)
    for other in ("records/", "records/a", "records/a/x/00", "other/a/1/00"):
        assert parse_segment_key(other) is None


@pytest.mark.parametrize("name", ["", "1", "1.", ".0", "0.0", "1.01", "x.0", "1.0.0", "1" * 30 + ".0"])
def test_a_name_that_none_of_its_segments_can_have_is_not_found(name: str) -> None:
    with pytest.raises(SegmentNotFoundError):
        parse_place(name)


def test_a_log_is_not_written_in_a_store_that_needs_one() -> None:
    with pytest.raises(ValueError, match="wal must be"):
        ObjectsOptions(wal="kafka")
