"""The segment store on regions, on real brokers: the contract, and what Kafka does to it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.io.kafka_topics import KafkaTopics
from dlog.model.ids import Epoch, SegmentNumber
from dlog.stores.contract import MisconfiguredError, SegmentStore
from dlog.stores.kafka.store import KafkaStore
from tests.integration.regions.kafka_cluster import KafkaCluster, leader
from tests.integration.stores.contract import STREAM, OpenStore, Run, StoreContract
from tests.integration.stores.test_kafka import Identity

PATIENCE_S = 120.0  # of a test that waits for brokers
pytestmark = [pytest.mark.peers, pytest.mark.long]


class TestBrokers(StoreContract):
    identity = Identity()  # of the cluster whose segments all tests write

    @pytest.fixture
    async def stores(self, brokers: KafkaCluster) -> AsyncIterator[OpenStore]:
        async with AsyncExitStack() as stack:

            async def open_store() -> SegmentStore:
                options = KafkaOptions(topics=brokers.address)
                rng = random.Random(os.urandom(8))
                opening = open_kafka_store(options, self.identity.read, self.identity.record, rng, creates=True)
                return await stack.enter_async_context(opening)

            yield open_store


# ---- faults of Kafka ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stores_at(
    brokers: KafkaCluster, count: int, *, transactional_ids: bool = False
) -> AsyncIterator[tuple[Identity, list[KafkaStore]]]:
    """Stores of several processes."""
    identity = Identity()
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(count):
            options = KafkaOptions(
                topics=brokers.address, timeout_s=60.0, request_timeout_s=3.0, transactional_ids=transactional_ids
            )
            rng = random.Random(os.urandom(8))
            opening = open_kafka_store(options, identity.read, identity.record, rng, creates=True)
            stores.append(await stack.enter_async_context(opening))
        yield identity, stores


async def begun(store: KafkaStore) -> Run:
    number = SegmentNumber(1)
    return Run(await store.create(STREAM, number, Epoch(1), ()), number)


def data_topic(identity: Identity, run: Run) -> str:
    return f"{identity.recorded}.data.{run.ref.name.partition('/')[0]}"


@pytest.mark.parametrize("transactional_ids", [False, True])
async def test_a_leader_dies_under_load(brokers: KafkaCluster, topics: KafkaTopics, transactional_ids: bool) -> None:
    """Appends wait for the next leader; what is confirmed is there once, for another process too."""
    async with stores_at(brokers, 2, transactional_ids=transactional_ids) as (identity, (store, other)):
        run = await begun(store)
        for _ in range(50):
            run.append(200)
        await run.acked(20)
        await brokers.kill(await leader(topics, data_topic(identity, run)))
        for _ in range(200):
            run.append(200)
            await asyncio.sleep(0.005)
        async with asyncio.timeout(PATIENCE_S):
            await run.settled()
        assert run.errors == []
        await brokers.revive()
        assert await run.recover(other) == 249
        await run.conclude(other)


async def test_all_brokers_die_and_come_back(brokers: KafkaCluster) -> None:
    """A writer either goes on or fails with unknown outcome; the recovery keeps every confirmed entry."""
    async with stores_at(brokers, 2) as (_, (store, other)):
        run = await begun(store)
        for _ in range(50):
            run.append(200)
        await run.acked(20)
        await brokers.kill_all()
        for _ in range(50):
            run.append(200)
        await brokers.revive()
        async with asyncio.timeout(PATIENCE_S):
            await run.settled()
        assert all(error.outcome_unknown for error in run.errors)
        async with asyncio.timeout(PATIENCE_S):
            await run.recover(other)
        await run.conclude(other)


async def test_with_two_of_three_brokers_gone_appends_wait_and_nothing_is_lost(
    brokers: KafkaCluster, topics: KafkaTopics
) -> None:
    async with stores_at(brokers, 2) as (identity, (store, other)):
        run = await begun(store)
        for _ in range(20):
            run.append(200)
        await run.acked(20)
        leading = await leader(topics, data_topic(identity, run))
        for broker in {1, 2, 3} - {leading}:
            await brokers.kill(broker)
        appended = run.append(200)
        done, _ = await asyncio.wait((appended,), timeout=3.0)
        assert not done, "one replica is not enough"
        await brokers.revive()
        async with asyncio.timeout(PATIENCE_S):
            await run.settled()
        assert run.errors == []
        assert await run.recover(other) == 20
        await run.conclude(other)


async def test_topics_that_could_lose_records_take_no_segments(brokers: KafkaCluster) -> None:
    """Another program shortens the retention; the next region is refused before anything lies there."""
    async with stores_at(brokers, 1) as (_, (store,)):
        run = await begun(store)
        await run.append()
        create = store._topics.create

        async def create_and_shorten(topic: str) -> None:
            await create(topic)
            brokers.tool(
                *("kafka.admin.ConfigCommand", "--alter", "--entity-type", "topics", "--entity-name", topic),
                *("--add-config", "retention.ms=1000"),
            )

        store._topics.create = create_and_shorten  # type: ignore[method-assign]  # a fault in between
        store._owned._current = None  # as if the region was full
        with pytest.raises(MisconfiguredError, match=r"retention\.ms is 1000, must be -1, run: kafka-configs"):
            await store.create(STREAM, SegmentNumber(2), Epoch(1), ())
        await run.append()
        assert await run.writer.seal() == 1
