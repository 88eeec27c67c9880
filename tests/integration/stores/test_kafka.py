"""The store on regions keeps the contract, on topics in a directory that several stores share as processes do."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dlog.errors import ConfigError
from dlog.io.file_topics import DirectoryTopics
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.model.ids import EntryId, Epoch, SegmentNumber
from dlog.region.messages import RemoveTable, SaveSnapshot
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStore,
    SegmentTruncatedError,
    StoreOutOfReachError,
    StoreUnavailableError,
    Verification,
)
from dlog.stores.kafka.locations import parse_location
from dlog.stores.kafka.store import KafkaStore
from tests.integration.stores.contract import STREAM, OpenStore, RemovalContract


class Identity:
    """Records a namespace of topics, as metadata does."""

    def __init__(self) -> None:
        self.recorded: str | None = None

    async def read(self) -> str | None:
        return self.recorded

    async def record(self, namespace: str) -> None:
        self.recorded = self.recorded or namespace


class TestDirectory(RemovalContract):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        identity = Identity()
        async with AsyncExitStack() as stack:

            async def open_store() -> SegmentStore:
                options = KafkaOptions(topics=f"file://{tmp_path}/topics")
                rng = random.Random(os.urandom(8))
                opening = open_kafka_store(options, identity.read, identity.record, rng, creates=True)
                return await stack.enter_async_context(opening)

            yield open_store

    async def remove(self, store: SegmentStore, ref: SegmentRef) -> None:
        """Another program deletes the front of the topic up to the segment's last record. A snapshot is left."""
        assert isinstance(store, KafkaStore)
        region, _, _ = ref.name.partition("/")
        owned = store._owned._regions.get(region)
        if owned is not None:
            await owned.actor.ask(SaveSnapshot())
        followed = await store._caught_up(ref.name, parse_location(ref.name))
        meta = followed.table(parse_location(ref.name).table)
        assert meta is not None
        await store._topics.delete_before(followed.data_topic, meta.end)


# ---- regions --------------------------------------------------------------------------------------------------------


class Cluster:
    """Stores of several processes on topics in one directory."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self.identity = Identity()
        self.topics = DirectoryTopics(str(root / "topics"))
        self._address = f"file://{root}/topics"
        self._stack = stack

    async def store(self, *, creates: bool = True, address: str = "", **options: float) -> KafkaStore:
        chosen = KafkaOptions(topics=address or self._address, **options)  # type: ignore[arg-type]  # numbers of any option
        rng = random.Random(os.urandom(8))
        opening = open_kafka_store(chosen, self.identity.read, self.identity.record, rng, creates=creates)
        return await self._stack.enter_async_context(opening)

    def regions(self, kind: str = "data") -> list[str]:
        """The regions that have such a topic."""
        prefix = f"{self.identity.recorded}.{kind}."
        return [name.removeprefix(prefix) for name in self.topics.names(prefix)]

    def first_offset(self, region: str) -> int:
        return self.topics.offsets(f"{self.identity.recorded}.data.{region}")[0]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


async def written(store: SegmentStore, number: int, sizes: Sequence[int] = (20,)) -> SegmentRef:
    """A sealed segment with entries of these sizes."""
    writer = await store.create(STREAM, SegmentNumber(number), Epoch(1), ())
    for entry, size in enumerate(sizes):
        await writer.append(EntryId(entry), (b"x" * size,))
    await writer.seal()
    return SegmentRef(STREAM, SegmentNumber(number), writer.name)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.01)


def region_of(ref: SegmentRef) -> str:
    return ref.name.partition("/")[0]


async def test_each_process_writes_a_region_of_its_own(cluster: Cluster) -> None:
    one, other = await cluster.store(), await cluster.store()
    refs = [await written(store, number) for number, store in enumerate((one, one, other), 1)]
    assert len({region_of(ref) for ref in refs[:2]}) == 1
    assert region_of(refs[2]) != region_of(refs[0])
    assert sorted(cluster.regions()) == sorted({region_of(ref) for ref in refs})


async def test_a_full_region_ends_and_the_segments_in_it_are_written_on(cluster: Cluster) -> None:
    store = await cluster.store(region_bytes=1000)
    writer = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
    await writer.append(EntryId(0), (b"x" * 1000,))
    following = await written(store, 2)
    assert region_of(following) != writer.name.partition("/")[0]
    await writer.append(EntryId(1), (b"more",))
    assert await writer.seal() == 1
    reader = await (await cluster.store()).open_reader(SegmentRef(STREAM, SegmentNumber(1), writer.name))
    assert reader.end == 1
    assert await reader.read(EntryId(0), EntryId(1), 1 << 20) == [b"x" * 1000, b"more"]
    await reader.close()


async def test_a_region_ends_after_so_many_tables(cluster: Cluster) -> None:
    store = await cluster.store(region_tables=2)
    refs = [await written(store, number) for number in range(1, 6)]
    assert [len([ref for ref in refs if region_of(ref) == name]) for name in dict.fromkeys(map(region_of, refs))] == [
        2,
        2,
        1,
    ]


async def test_the_topics_of_a_region_go_with_its_last_segment(cluster: Cluster) -> None:
    store, other = await cluster.store(region_tables=2), await cluster.store()
    refs = [await written(store, number) for number in (1, 2, 3)]
    for ref in refs[:2]:
        assert region_of(ref) in cluster.regions()
        await other.delete(ref)
    await until(lambda: cluster.regions() == [region_of(refs[2])])
    await until(lambda: cluster.regions("meta") == [region_of(refs[2])])
    await store.delete(refs[0])  # as a second deleter does
    assert [found async for found in other.list()] == [refs[2].name]


async def test_a_writer_goes_on_in_another_region_when_its_empty_one_was_deleted(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    first = await written(store, 1)
    await other.delete(first)
    await until(lambda: not cluster.regions())
    second = await written(store, 2, (20, 30))
    assert region_of(second) != region_of(first)
    assert (await other.recover(second)).end == 1


async def test_the_front_of_a_region_goes_with_the_segments_that_lie_there(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(trim_bytes=3000)
    refs = [await written(store, number, (1000, 1000)) for number in (1, 2, 3)]
    last = await store.create(STREAM, SegmentNumber(4), Epoch(1), ())
    await last.append(EntryId(0), (b"kept",))
    for ref in refs:
        await other.delete(ref)
    await until(lambda: cluster.first_offset(region_of(refs[0])) > 6)
    await last.append(EntryId(1), (b"too",))  # its owner reads what others appended in between
    ref = SegmentRef(STREAM, SegmentNumber(4), last.name)
    fresh = await cluster.store()
    assert await fresh.find_tail(ref) == 1
    assert (await fresh.recover(ref)).end == 1
    reader = await fresh.open_reader(ref)
    assert await reader.read(EntryId(0), EntryId(1), 1 << 20) == [b"kept", b"too"]
    await reader.close()


async def test_a_sweep_deletes_what_a_dead_process_left(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(sweep_s=3600.0)
    ref = await written(store, 1)
    region = region_of(ref)
    left = await cluster.store()
    await written(left, 2)
    cluster.topics.create(f"{cluster.identity.recorded}.meta.halfmade")
    follower = left._followed.get(str(cluster.identity.recorded), region_of(ref))
    with follower:
        await follower.ask(RemoveTable(1))  # and dies before it deletes the topics
    before = await other.sweep()
    assert before == {region, "halfmade"}
    assert region in cluster.regions()
    assert await other.sweep(before) == frozenset()
    assert region not in cluster.regions() and "halfmade" not in cluster.regions("meta")
    assert len(cluster.regions()) == 1


# ---- the address ----------------------------------------------------------------------------------------------------


async def test_at_a_wrong_address_nothing_counts_as_deleted(cluster: Cluster, tmp_path: Path) -> None:
    store = await cluster.store()
    ref = await written(store, 1)
    with pytest.raises(ConfigError, match=r"are not at this address, correct .*`topics`"):
        await cluster.store(address=f"file://{tmp_path}/elsewhere")
    lost = await cluster.store(address=f"file://{tmp_path}/elsewhere", creates=False)
    for call in (lost.recover, lost.open_reader, lost.stat, lost.find_tail, lost.delete):
        with pytest.raises(StoreOutOfReachError, match=r"are not at this address, correct .*`topics`"):
            await call(ref)
    with pytest.raises(StoreOutOfReachError):
        await lost.create(STREAM, SegmentNumber(2), Epoch(1), ())
    assert not (tmp_path / "elsewhere").exists()


async def test_topics_that_are_gone_for_a_while_do_not_count_as_deleted(cluster: Cluster, tmp_path: Path) -> None:
    store, other = await cluster.store(), await cluster.store()
    ref = await written(store, 1)
    assert await other.find_tail(ref) == 0
    (tmp_path / "topics").rename(tmp_path / "unmounted")
    with pytest.raises(StoreUnavailableError):
        await other.recover(SegmentRef(STREAM, SegmentNumber(1), ref.name.replace("/1@", "/2@")))
    (tmp_path / "unmounted").rename(tmp_path / "topics")
    assert (await other.recover(ref)).end == 0


async def test_a_reader_records_no_namespace(cluster: Cluster) -> None:
    reading = await cluster.store(creates=False)
    with pytest.raises(MisconfiguredError, match="no segments in topics yet"):
        await reading.find_tail(SegmentRef(STREAM, SegmentNumber(1), "0123456789abcdef/1@1"))
    assert cluster.identity.recorded is None


async def test_processes_that_start_together_use_one_namespace(cluster: Cluster) -> None:
    stores = [await cluster.store() for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        for number, store in enumerate(stores, 1):
            group.create_task(written(store, number), name=f"writer {number}")
    assert len([found async for found in stores[0].list()]) == 4
    assert len(cluster.topics.names("dlog-")) == 1 + 2 * 4


# ---- damage ---------------------------------------------------------------------------------------------------------


async def test_records_of_other_programs_are_passed_over(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    writer = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
    await writer.append(EntryId(0), (b"one",))
    cluster.topics.append(f"{cluster.identity.recorded}.data.{writer.name.partition('/')[0]}", [(b"key", b"value")])
    await writer.append(EntryId(1), (b"two",))
    ref = SegmentRef(STREAM, SegmentNumber(1), writer.name)
    assert (await other.recover(ref)).end == 1
    assert await other.verify(ref) == Verification(2)


async def test_a_damaged_record_is_told_and_ends_no_segment_early(cluster: Cluster) -> None:
    """What lies behind it may have been acknowledged, so no recovery may leave it out."""
    store, other = await cluster.store(), await cluster.store()
    writer = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
    await writer.append(EntryId(0), (b"one",))
    region, _, _ = writer.name.partition("/")
    topic = f"{cluster.identity.recorded}.data.{region}"
    key, value = cluster.topics.read(topic, 2, 1)[0][1:]
    cluster.topics.append(topic, [(key, value[:-1] + b"?")])
    with pytest.raises(SegmentCorruptError, match=r"checksum does not match.*offset=3"):
        await other.recover(SegmentRef(STREAM, SegmentNumber(1), writer.name))


@pytest.mark.parametrize("name", ["", "x", "r/1", "r/-1@0", "r/1@", "r/01@0", "r" * 101 + "/1@0", "../r/1@0", "r/1@0 "])
async def test_what_is_no_location_is_not_found(cluster: Cluster, name: str) -> None:
    with pytest.raises(SegmentNotFoundError):
        await (await cluster.store()).recover(SegmentRef(STREAM, SegmentNumber(1), name))


async def test_batches_too_small_for_an_entry_of_a_stream_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="batch_bytes_max"):
        await cluster.store(batch_bytes_max=1_000_000)
    with pytest.raises(ConfigError, match="DLOG_KAFKA_TOPICS"):
        async with open_kafka_store(KafkaOptions(), cluster.identity.read, cluster.identity.record, random.Random()):
            pass


# ---- what another program deletes -----------------------------------------------------------------------------------


async def test_without_a_snapshot_the_segments_that_began_below_the_front_are_truncated(cluster: Cluster) -> None:
    """Their ends are not known any more, but their writers are fenced, and they can be deleted."""
    store, other = await cluster.store(), await cluster.store()
    writer = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
    ref = SegmentRef(STREAM, SegmentNumber(1), writer.name)
    await writer.append(EntryId(0), (b"lost",))
    topic = f"{cluster.identity.recorded}.data.{region_of(ref)}"
    cluster.topics.delete_before(topic, cluster.topics.offsets(topic)[1])
    later = await store.create(STREAM, SegmentNumber(2), Epoch(1), ())
    for call in (other.recover, other.find_tail, other.stat, other.open_reader, other.verify):
        with pytest.raises(SegmentTruncatedError, match="the front of the data topic was deleted"):
            await call(ref)
    with pytest.raises(SegmentFencedError):
        await writer.append(EntryId(1), (b"late",))
    with pytest.raises(SegmentCorruptError):
        await other.recover(SegmentRef(STREAM, SegmentNumber(2), later.name))
    await other.delete(ref)


async def test_a_reader_that_is_cut_off_is_told_of_truncation_and_of_no_damage(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store(recent_bytes=1)
    ref = await written(store, 1, [1000] * 400)
    reader = await other.open_reader(ref)
    assert len(await reader.read(EntryId(0), EntryId(9), 10_000)) == 10
    topic = f"{cluster.identity.recorded}.data.{region_of(ref)}"
    cluster.topics.delete_before(topic, 150)
    with pytest.raises(SegmentTruncatedError, match="Kafka's retention, or another program"):
        await reader.read(EntryId(100), EntryId(110), 10_000)
    assert len(await reader.read(EntryId(390), EntryId(399), 100_000)) == 10, "what is left can be read"
    await reader.close()
