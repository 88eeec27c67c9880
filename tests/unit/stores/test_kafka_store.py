"""What the store on regions tells beside the contract: descriptions, offsets, its durability, and wrong addresses."""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import ConfigError, Remedy, UnavailableError
from dlog.io import kafka_store
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.region.messages import Topic
from dlog.region.names import topic_names
from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreOutOfReachError
from dlog.stores.kafka.errors import writer_error
from dlog.stores.kafka.locations import parse_location
from dlog.stores.kafka.segment_writer import KafkaSegmentWriter
from dlog.stores.kafka.store import KafkaStore, TableDescription

NAME = StreamName("s")


class Cluster:
    """The metadata of one cluster, and the stores that its processes open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recorded: str | None = None

    async def read(self) -> str | None:
        return self.recorded

    async def record(self, namespace: str) -> None:
        self.recorded = self.recorded or namespace

    def open(self, *, creates: bool = False, **options: Any) -> AbstractAsyncContextManager[KafkaStore]:
        kafka = KafkaOptions(topics=f"file://{self.directory}", **options)
        return open_kafka_store(kafka, self.read, self.record, random.Random(1), creates=creates)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "topics")


async def written(store: KafkaStore, number: int = 1, entries: int = 3) -> KafkaSegmentWriter:
    writer = await store.create(NAME, SegmentNumber(number), Epoch(1), ())
    for entry in range(entries):
        await writer.append(EntryId(entry), [b"%d" % entry * 100])
    return writer


async def test_a_segment_is_described_and_its_entries_are_found_by_another_process(cluster: Cluster) -> None:
    async with cluster.open(creates=True) as store, cluster.open() as reader:
        one, two = await written(store), await written(store, 2, 200)
        await one.seal()
        assert cluster.recorded is not None
        topic = topic_names(cluster.recorded, parse_location(one.name).region)[Topic.DATA]
        assert await reader.describe(one.name) == TableDescription("s", 1, topic, 3, 300, True)
        described = await reader.describe(two.name)
        assert (described.number, described.entries, described.has_ended) == (2, 200, False)
        offsets = [await reader.find_offset(two.name, EntryId(entry)) for entry in (0, 63, 199)]
        assert offsets == sorted(o for o in offsets if o is not None) and len(set(offsets)) == 3
        assert [await reader.find_offset(two.name, EntryId(entry)) for entry in (-1, 200)] == [None, None]
        assert {name async for name in reader.list()} == {one.name, two.name}


async def test_a_cluster_without_segments_in_topics_has_none_to_list(cluster: Cluster) -> None:
    async with cluster.open() as reader:
        assert [name async for name in reader.list()] == []
        with pytest.raises(MisconfiguredError, match="has no segments in topics yet"):
            await reader.check_topics()


async def test_a_wrong_address_is_never_taken_for_deleted_segments(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.open(creates=True) as store:
        name = (await written(store)).name
        await store.check_topics()
    right, cluster.directory = cluster.directory, tmp_path / "elsewhere"
    async with cluster.open() as store:
        for work in (store.check_topics(), store.describe(name), written(store)):
            with pytest.raises(StoreOutOfReachError, match="not at this address") as caught:
                await work
            assert caught.value.remedy is Remedy.RETRY, "no reader takes it for damage, and no owner gives up its claim"
    with pytest.raises(ConfigError, match="not at this address"):
        async with cluster.open(creates=True):
            pass
    assert not cluster.directory.exists(), "nothing is created at a wrong address"
    cluster.directory = right
    async with cluster.open(creates=True) as store:
        assert (await store.describe(name)).entries == 3
        with pytest.raises(SegmentNotFoundError):
            await store.describe(name.replace("/1@", "/9@"))


async def test_topics_that_do_not_answer_now_keep_no_process_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_store, "START_TIMEOUT_S", 0.1)
    cluster = Cluster(Path("/"))
    cluster.recorded = "dlog-1"
    options = KafkaOptions(topics="kafka://127.0.0.1:1", timeout_s=0.2)
    async with open_kafka_store(options, cluster.read, cluster.record, random.Random(1), creates=True) as store:
        with pytest.raises(StoreOutOfReachError):
            await store.check_topics()


def test_a_writer_whose_topics_do_not_answer_tells_so_with_an_unknown_outcome() -> None:
    """The owner tells a StoreOutOfReachError to the clients that wait."""
    error = writer_error(UnavailableError("no broker answers"), "3/1@0")
    assert (type(error), error.outcome_unknown) == (StoreOutOfReachError, True)
    assert "no broker answers" in error.message


async def test_a_directory_is_always_synced(cluster: Cluster) -> None:
    async with cluster.open(flush=False) as store:
        assert store.capabilities.durability == "synced"


async def test_kafka_is_synced_if_it_is_told_to() -> None:
    cluster = Cluster(Path("/"))
    for flush, durability in ((True, "synced"), (False, "page caches")):
        options = KafkaOptions(topics="kafka://127.0.0.1:1", flush=flush)
        async with open_kafka_store(options, cluster.read, cluster.record, random.Random(1)) as store:
            assert store.capabilities.durability == durability
