"""The store `s3-direct` keeps the contract, on real object storage that several stores share as processes do."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.io.s3_direct_store import open_s3_direct_store
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStore,
    StoreError,
    StoreUnavailableError,
)
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.s3_direct.store import S3DirectStore
from tests.integration.storage import Storage
from tests.integration.stores.contract import OpenStore, StoreContract
from tests.integration.stores.s3_fault_proxy import Fault, S3FaultProxy
from tests.memory_objects import PutFault
from tests.ports import HOST, free_port
from tests.unit.stores.test_s3_direct import Cluster


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


SMALL: dict[str, Any] = {
    "chunk_bytes_max": 3000,
    "linger_s": 0.002,
    "poll_min_s": 0.002,
    "poll_max_s": 0.05,
    "puts_per_s": 1e6,
    "merged_grace_s": 0.0,
}


def on_s3(s3: Storage, **given: object) -> Callable[..., ObjectsOptions]:
    """Options of stores below a root of their own. given: beside those of the server."""
    told = {name.removeprefix("DLOG_COLD_").lower(): value for name, value in s3.environment.items()}
    root = f"{s3.root}/{os.urandom(6).hex()}"

    def options(**changes: object) -> ObjectsOptions:
        return ObjectsOptions(**{"root": root, **told, **SMALL, **given, **changes})

    return options


class TestOnADirectory(StoreContract):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[OpenStore]:
        def options(**changes: object) -> ObjectsOptions:
            return ObjectsOptions(**{"root": f"file://{tmp_path}/objects", **SMALL, **changes})

        async with Stores(options) as stores:
            yield stores.open_segment_store


class TestInMemoryWithFaults(StoreContract):
    """Every fifth request to create an object is lost, late or repeated, or loses its answer."""

    @pytest.fixture
    async def stores(self) -> AsyncIterator[OpenStore]:
        cluster, rng = Cluster(), random.Random(13)
        faults = [rng.choice(list(PutFault)) if rng.random() < 0.2 else None for _ in range(20_000)]
        cluster.objects.faults.extend(faults)

        async def open_store() -> SegmentStore:
            return await cluster.store(retry_s=30.0, **SMALL)

        yield open_store
        await cluster.aclose()


class TestOnS3(StoreContract):
    @pytest.fixture
    async def stores(self, s3: Storage) -> AsyncIterator[OpenStore]:
        async with Stores(on_s3(s3)) as stores:
            yield stores.open_segment_store


class TestOnS3WithFaults(StoreContract):
    """Every tenth request to create an object loses its request or its answer, is sent twice, or is refused; every
    tenth other one is answered that the service is busy."""

    @pytest.fixture
    async def stores(self, s3: Storage) -> AsyncIterator[OpenStore]:
        rng = random.Random(11)
        async with S3FaultProxy(s3.environment["DLOG_COLD_S3_ENDPOINT"]) as proxy:
            options = on_s3(s3, s3_endpoint=proxy.endpoint)
            puts = [Fault.DROP_REQUEST, Fault.DROP_ANSWER, Fault.REPEAT, Fault.CONFLICT, Fault.BUSY]
            for method, faults in (("PUT", puts), ("GET", [Fault.BUSY]), ("DELETE", [Fault.BUSY])):
                proxy.faults[method] = [rng.choice(faults) if rng.random() < 0.1 else None for _ in range(20_000)]
            async with Stores(options) as stores:
                yield stores.open_segment_store


async def test_a_request_that_arrives_after_its_segment_was_deleted_is_an_orphan_and_no_entry(s3: Storage) -> None:
    async with S3FaultProxy(s3.environment["DLOG_COLD_S3_ENDPOINT"]) as proxy, Stores(on_s3(s3)) as stores:
        slow = await stores.open(s3_endpoint=proxy.endpoint, retry_s=2.0)
        writer = await slow.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())
        ref = SegmentRef(StreamName("s"), SegmentNumber(1), writer.name)
        await writer.append(EntryId(0), [b"confirmed"])
        proxy.faults["PUT"] = [Fault.LATE_REQUEST] * 100
        with pytest.raises(StoreUnavailableError) as raised:
            await writer.append(EntryId(1), [b"late"])
        assert raised.value.outcome_unknown
        other = await stores.open()
        assert (await other.recover(ref)).end == 0
        await other.delete(ref)
        assert [name async for name in other.list()] == []
        assert await proxy.land_late() > 0
        with pytest.raises(SegmentNotFoundError):
            await other.open_reader(ref)
        assert [name async for name in other.list()] == [], "its number was taken by the FENCE"


async def test_a_wrong_bucket_and_wrong_keys_are_told_and_nothing_counts_as_deleted(s3: Storage) -> None:
    options = on_s3(s3)
    async with Stores(options) as stores:
        store = await stores.open()
        writer = await store.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())
        ref = SegmentRef(StreamName("s"), SegmentNumber(1), writer.name)
        with pytest.raises(ConfigError, match="not at this root"):
            await stores.open(root=f"{s3.root}/elsewhere")
        cases: list[tuple[dict[str, Any], type[StoreError]]] = [
            ({"root": "s3://another/logs"}, MisconfiguredError),
            ({"s3_secret_key": "wrong"}, MisconfiguredError),
            ({"s3_endpoint": f"http://{HOST}:{free_port()}", "retry_s": 1.0}, StoreUnavailableError),
        ]
        for changes, error in cases:
            wrong = await stores.open(**changes)
            for call in (wrong.recover, wrong.open_reader, wrong.find_tail, wrong.delete):
                with pytest.raises(error):
                    await call(ref)
            with pytest.raises(error):
                await wrong.create(StreamName("s"), SegmentNumber(2), Epoch(1), ())
        assert (await store.recover(ref)).end == -1


async def test_a_store_goes_on_behind_a_service_that_is_busy_for_a_while(s3: Storage) -> None:
    async with S3FaultProxy(s3.environment["DLOG_COLD_S3_ENDPOINT"]) as proxy, Stores(on_s3(s3)) as stores:
        store = await stores.open(s3_endpoint=proxy.endpoint)
        writer = await store.create(StreamName("s"), SegmentNumber(1), Epoch(1), ())
        proxy.faults["PUT"] = [Fault.BUSY] * 6
        for entry in range(3):
            await writer.append(EntryId(entry), [b"x"])
        assert await writer.seal() == 2
