"""The store on regions keeps the contract, on topics in a directory that several stores share as processes do."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dlog.io.kafka_settings import KafkaOptions
from dlog.io.kafka_store import open_kafka_store
from dlog.stores.contract import SegmentStore
from tests.integration.stores.contract import OpenStore, StoreContract


class Identity:
    """Records a namespace of topics, as metadata does."""

    def __init__(self) -> None:
        self.recorded: str | None = None

    async def read(self) -> str | None:
        return self.recorded

    async def record(self, namespace: str) -> None:
        self.recorded = self.recorded or namespace


class TestDirectory(StoreContract):
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
