"""A write proxy serves once it has a region open for the next segment; on topics in a directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dlog.io.file_topics import FileTopics
from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.stores.kafka.store import KafkaStore
from proxies.write import server
from tests.integration.proxies.local_proxies import local


@asynccontextmanager
async def opened(root: Path, recorded: list[str]) -> AsyncIterator[KafkaStore]:
    """A store of a process that writes segments. recorded: the cluster's namespace, once there is one."""

    async def read() -> str | None:
        return recorded[0] if recorded else None

    async def record(namespace: str) -> None:
        recorded.append(namespace)

    options = KafkaOptions(topics=f"file://{root}")
    async with open_kafka_store(options, read, record, random.Random(), creates=True) as store:
        yield store


async def begin_segment(store: KafkaStore) -> None:
    writer = await store.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())
    await writer.append(EntryId(0), [b"a"])


async def test_a_proxy_serves_once_its_region_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    async with opened(tmp_path, recorded) as other, opened(tmp_path, recorded) as store, local() as cluster:
        await begin_segment(other)
        create = FileTopics.create

        async def slowly(topics: FileTopics, topic: str) -> None:
            await asyncio.sleep(0.1)  # topics of Kafka take longer
            await create(topics, topic)

        monkeypatch.setattr(FileTopics, "create", slowly)
        register, open_regions = cluster.metadata.register_proxy, list[int]()

        async def registered(info: Any) -> None:
            open_regions.append(store.regions[0])
            await register(info)

        monkeypatch.setattr(cluster.metadata, "register_proxy", registered)
        cluster.other_stores["kafka"] = store
        await cluster.write_proxy()
        assert open_regions == [1]


async def test_a_proxy_serves_without_segments_in_topics(tmp_path: Path) -> None:
    async with opened(tmp_path, []) as store, local() as cluster:
        cluster.other_stores["kafka"] = store
        await cluster.write_proxy()
        assert store.regions[0] == 0


async def test_a_proxy_serves_if_topics_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    async with opened(tmp_path, recorded) as other, opened(tmp_path, recorded) as store, local() as cluster:
        await begin_segment(other)

        async def never(topics: FileTopics, topic: str) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(FileTopics, "create", never)
        monkeypatch.setattr(server, "REGION_WAIT_S", 0.05)
        cluster.other_stores["kafka"] = store
        await cluster.write_proxy()
        assert store.regions[0] == 0
