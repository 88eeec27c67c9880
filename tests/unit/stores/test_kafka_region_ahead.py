"""A region is open before the next segment is created; on topics in a directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dlog.io.file_topics import DirectoryTopics
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.stores.contract import SegmentRef
from dlog.stores.kafka.store import KafkaStore

STREAM = StreamName("s")
Opening = Callable[..., AbstractAsyncContextManager[KafkaStore]]


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    """Opens a store of one cluster; its argument: whether it is of a process that writes segments."""
    recorded: list[str] = []

    async def read() -> str | None:
        return recorded[0] if recorded else None

    async def record(namespace: str) -> None:
        recorded.append(namespace)

    @asynccontextmanager
    async def opened(creates: bool, **changes: Any) -> AsyncIterator[KafkaStore]:
        options = KafkaOptions(topics=f"file://{tmp_path}", **changes)
        async with open_kafka_store(options, read, record, random.Random(), creates=creates) as store:
            yield store

    return opened


def regions(root: Path) -> list[str]:
    return [name for name in DirectoryTopics(str(root)).names("") if ".data." in name]


async def segment(store: KafkaStore) -> SegmentRef:
    """A segment of one entry, whose writer is not closed."""
    writer = await store.create(STREAM, SegmentNumber(1), Epoch(1), ())
    await writer.append(EntryId(0), [b"a"])
    return SegmentRef(STREAM, SegmentNumber(1), writer.name)


async def test_the_next_segment_finds_the_region_that_was_opened_during_a_recovery(
    opening: Opening, tmp_path: Path
) -> None:
    async with opening(True) as dying, opening(True) as heir:
        ref = await segment(dying)
        assert len(regions(tmp_path)) == 1
        assert (await heir.recover(ref)).end == 0
        async with asyncio.timeout(30):
            while len(regions(tmp_path)) < 2:  # noqa: ASYNC110 - a directory has no event
                await asyncio.sleep(0.01)
        writer = await heir.create(STREAM, SegmentNumber(2), Epoch(2), ())
        await writer.append(EntryId(0), [b"b"])
        assert len(regions(tmp_path)) == 2
        assert any(name.endswith(writer.name.partition("/")[0]) for name in regions(tmp_path))
        assert (await heir.recover(ref)).end == 0
        assert len(regions(tmp_path)) == 2, "it has a region"


async def test_a_process_that_writes_no_segments_opens_none(opening: Opening, tmp_path: Path) -> None:
    async with opening(True) as dying, opening(False) as tool:
        ref = await segment(dying)
        assert (await tool.recover(ref)).end == 0
        await asyncio.sleep(0)
        assert len(regions(tmp_path)) == 1


async def test_a_store_that_closes_during_the_opening_ends(opening: Opening) -> None:
    async with opening(True) as dying:
        ref = await segment(dying)
        async with asyncio.timeout(30), opening(True) as heir:
            assert (await heir.recover(ref)).end == 0


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a directory has no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def keeping_open(store: KafkaStore) -> AsyncIterator[None]:
    """`keep_region_open` runs in the scope."""
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(store.keep_region_open(every_s=0.01), name="keep a region open")
        try:
            yield
        finally:
            keeping.cancel()


async def test_a_region_is_kept_open_once_the_cluster_has_segments(opening: Opening, tmp_path: Path) -> None:
    async with opening(True) as first, opening(True) as idle:
        async with keeping_open(idle):
            await asyncio.sleep(0.1)
            assert DirectoryTopics(str(tmp_path)).names("") == [], "no namespace is recorded, and no topic made"
            await segment(first)
            await wait_until(lambda: idle.regions[0] == 1)
            writer = await idle.create(STREAM, SegmentNumber(2), Epoch(2), ())
            await writer.append(EntryId(0), [b"b"])
        assert len(regions(tmp_path)) == 2, "the segment is in the region that was open"


async def test_a_region_in_which_nothing_began_is_deleted_with_its_store(opening: Opening, tmp_path: Path) -> None:
    async with opening(True) as first:
        ref = await segment(first)
        async with opening(True) as idle, keeping_open(idle):
            await wait_until(lambda: idle.regions[0] == 1)
        assert [name for name in regions(tmp_path) if not name.endswith(ref.name.partition("/")[0])] == []
    assert len(regions(tmp_path)) == 1, "a region with a segment stays"


async def test_a_region_without_segments_is_replaced_before_a_sweep_takes_it_for_left_over(
    opening: Opening, tmp_path: Path
) -> None:
    async with opening(True) as first, opening(True, sweep_s=0.2) as idle:
        await segment(first)
        async with keeping_open(idle):
            await wait_until(lambda: len(regions(tmp_path)) == 2)
            before = set(regions(tmp_path))
            await wait_until(lambda: len(before & set(regions(tmp_path))) == 1)
