"""Readers of several segments of one region share what one of them fetched; on topics in a directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.region.reading import RegionEntry
from dlog.region.tables import TableMeta
from dlog.stores.contract import SegmentReader, SegmentRef
from dlog.stores.kafka.passed_entries import PassedEntries
from dlog.stores.kafka.store import KafkaStore

STREAM = StreamName("s")
TABLES = 12


class Cluster:
    """The metadata of one cluster, and the stores that its processes open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recorded: str | None = None

    async def read(self) -> str | None:
        return self.recorded

    async def record(self, namespace: str) -> None:
        self.recorded = namespace

    def open(self, *, creates: bool = False, **options: Any) -> AbstractAsyncContextManager[KafkaStore]:
        kafka = KafkaOptions(topics=f"file://{self.directory}", **options)
        return open_kafka_store(kafka, self.read, self.record, random.Random(1), creates=creates)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "topics")


def payload(table: int, entry: int, size: int) -> bytes:
    return b"%d/%d " % (table, entry) + b"x" * size


async def written(store: KafkaStore, entries: Sequence[int], size: int = 1000) -> list[SegmentRef]:
    """Segments in one region. entries: the number of each one's segment, in the order in which they are appended."""
    writers = [await store.create(STREAM, SegmentNumber(n + 1), Epoch(1), ()) for n in range(max(entries) + 1)]
    counts = [0] * len(writers)
    appended = []
    for table in entries:
        appended.append(writers[table].append(EntryId(counts[table]), [payload(table, counts[table], size)]))
        counts[table] += 1
    await asyncio.wait(appended)
    assert not any(one.exception() for one in appended)
    for writer in writers:
        await writer.seal()
    return [SegmentRef(STREAM, SegmentNumber(n + 1), writer.name) for n, writer in enumerate(writers)]


async def read_all(reader: SegmentReader, bytes_max: int = 8000) -> list[bytes]:
    found: list[bytes] = []
    while len(found) <= reader.last_confirmed:
        found += await reader.read(EntryId(len(found)), reader.last_confirmed, bytes_max)
    return found


async def test_readers_of_all_segments_fetch_the_region_about_once(cluster: Cluster) -> None:
    async with cluster.open(creates=True) as store, cluster.open() as other:
        refs = await written(store, [n % TABLES for n in range(300 * TABLES)])
        readers = [await other.open_reader(ref, sealed_at=EntryId(299)) for ref in refs]
        before = other.read_bytes.fetched
        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(read_all(reader), name="read") for reader in readers]
        assert [one.result() for one in reads] == [
            [payload(table, entry, 1000) for entry in range(300)] for table in range(TABLES)
        ]
        region_bytes = 300 * TABLES * 1100
        assert other.read_bytes.fetched - before <= 1.5 * region_bytes
        for reader in readers:
            await reader.close()


async def test_one_reader_fetches_the_region_once_at_most(cluster: Cluster) -> None:
    async with cluster.open(creates=True) as store, cluster.open() as other:
        refs = await written(store, [n % TABLES for n in range(300 * TABLES)])
        reader = await other.open_reader(refs[0], sealed_at=EntryId(299))
        before = other.read_bytes.fetched
        assert len(await read_all(reader)) == 300
        assert other.read_bytes.fetched - before <= 300 * TABLES * 1100
        await reader.close()


async def test_a_reader_passes_over_what_others_wrote_while_its_segment_was_idle(cluster: Cluster) -> None:
    async with cluster.open(creates=True) as store, cluster.open() as other:
        pause = [1 + n % (TABLES - 1) for n in range(4000)]
        refs = await written(store, [0] * 100 + pause + [0] * 100 + pause + [0] * 10 + pause)
        reader = await other.open_reader(refs[0], sealed_at=EntryId(209))
        before = other.read_bytes.fetched
        assert await read_all(reader) == [payload(0, entry, 1000) for entry in range(210)]
        pauses_bytes = 2 * 4000 * 1100
        assert other.read_bytes.fetched - before <= 0.5 * pauses_bytes
        await reader.close()


@pytest.mark.parametrize("seed", range(5))
async def test_entries_are_those_of_the_segment_whatever_was_kept(cluster: Cluster, seed: int) -> None:
    rng = random.Random(seed)
    async with cluster.open(creates=True) as store, cluster.open(recent_bytes=rng.choice((1, 3000, 1 << 20))) as other:
        order = [rng.randrange(4) for _ in range(600)] + [0, 1, 2, 3]
        refs = await written(store, order, 10)
        readers = [(table, await other.open_reader(refs[table], sealed_at=None)) for table in (0, 0, 1, 2, 3)]

        async def read_some(table: int, reader: SegmentReader, jumps: random.Random) -> None:
            at = 0
            for _ in range(60):
                at = jumps.choice((at, at, at, jumps.randrange(order.count(table))))
                found = await reader.read(EntryId(at), reader.last_confirmed, jumps.choice((1, 100, 2000)))
                assert found == [payload(table, at + n, 10) for n in range(len(found))]
                at = (at + len(found)) % order.count(table)

        async with asyncio.TaskGroup() as tasks:
            for table, reader in readers:
                tasks.create_task(read_some(table, reader, random.Random(rng.random())), name="read")
        for _, reader in readers:
            await reader.close()


def test_what_nobody_wants_is_not_kept() -> None:
    passed = PassedEntries(1000)
    passed.want(2, 5)
    assert passed.beside(1, {2: TableMeta(current_high_watermark=9), 3: TableMeta()}.get) == {2: 9}
    assert passed.beside(2, {2: TableMeta(current_high_watermark=9)}.get) == {}
    for table, sequence in ((2, 4), (2, 5), (2, 6), (3, 1)):
        passed.keep(RegionEntry(table, sequence, b"p", 100 + sequence))
        passed.keep(RegionEntry(table, sequence, b"p", 100 + sequence))
    assert passed.find(2, 4, 6, 100) == passed.find(3, 1, 1, 100) == []
    assert passed.find(2, 5, 6, 100) == [b"p", b"p"]
    assert (passed.place(2, 6), passed.place(2, 7), passed.place(2, 5), passed.place(3, 9)) == (106, 106, 0, 0)
    passed.leave(2)
    assert passed.find(2, 5, 6, 100) == []
    assert passed.place(2, 7) == 0
