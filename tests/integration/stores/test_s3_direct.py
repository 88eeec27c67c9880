"""The store `s3-direct` keeps the contract, on real object storage that several stores share as processes do."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dlog.io.s3_direct_store import open_s3_direct_store
from dlog.stores.contract import SegmentStore
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.s3_direct.store import S3DirectStore
from tests.integration.stores.contract import OpenStore, StoreContract


class Recorded:
    """The cluster's metadata: the name of its folder."""

    def __init__(self) -> None:
        self.name: str | None = None

    async def read(self) -> str | None:
        return self.name

    async def record(self, name: str) -> None:
        self.name = self.name or name


class Stores:
    """Opens stores of one cluster, as its processes do."""

    def __init__(self, options: Callable[..., ObjectsOptions]) -> None:
        self.recorded = Recorded()
        self._options = options
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Stores:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def open(self, *, creates: bool = True, **changes: object) -> S3DirectStore:
        rng = random.Random(os.urandom(8))
        opening = open_s3_direct_store(
            self._options(**changes), self.recorded.read, self.recorded.record, rng, creates=creates
        )
        return await self._stack.enter_async_context(opening)

    async def open_segment_store(self) -> SegmentStore:
        return await self.open()


class TestOnADirectory(StoreContract):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        def options(**changes: object) -> ObjectsOptions:
            small = {"chunk_bytes_max": 3000, "linger_s": 0.002, "poll_min_s": 0.002, "poll_max_s": 0.05}
            return ObjectsOptions(**{"root": f"file://{tmp_path}/objects", "puts_per_s": 1e6, **small, **changes})  # type: ignore[arg-type]

        async with Stores(options) as stores:
            yield stores.open_segment_store
