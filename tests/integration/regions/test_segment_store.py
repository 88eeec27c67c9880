"""The segment store on regions, on real brokers: the contract, and what Kafka does to it."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.stores.contract import SegmentStore
from tests.integration.regions.kafka_cluster import KafkaCluster
from tests.integration.stores.contract import OpenStore, StoreContract
from tests.integration.stores.test_kafka import Identity

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
