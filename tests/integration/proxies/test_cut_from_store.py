"""An owner that reaches too little of its segment store gives its streams up to a proxy that reaches enough."""

from __future__ import annotations

import asyncio
import functools
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog.io.bookie_client import BookieClient
from dlog.io.file_topics import FileTopics
from dlog.io.ledgers import Ledgers, resolver
from dlog.io.metadata import BookieInfo, Members
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import BookieId
from dlog.stores.ledger import LedgerStore
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy
from tests.integration.cluster import BookieCluster
from tests.integration.proxies.local_proxies import Events, Running, local
from tests.integration.proxies.test_region_ahead import opened
from tests.integration.zookeeper.toxic import Toxic

PATIENCE_S = 120.0


class Relayed:
    """Metadata in which the bookies have other addresses: those of relays."""

    def __init__(self, metadata: ZooKeeperMetadata, relays: dict[BookieId, Toxic]) -> None:
        self._metadata = metadata
        self._ports = {bookie: relay.port for bookie, relay in relays.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    def known_members(self) -> Members:
        known = self._metadata.known_members()
        return replace(known, writable={bookie: self._relayed(info) for bookie, info in known.writable.items()})

    def _relayed(self, info: BookieInfo) -> BookieInfo:
        return replace(info, port=self._ports.get(info.bookie, info.port))


class Writer:
    """A write proxy on real bookies. relays: between it and each bookie."""

    def __init__(self, running: Running, relays: dict[BookieId, Toxic]) -> None:
        self.address = running.address
        self.relays = relays


@asynccontextmanager
async def writer(bookies: BookieCluster, namespace: str, tasks: asyncio.TaskGroup) -> AsyncIterator[Writer]:
    rng = random.Random()
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(await ZooKeeperMetadata.connect(bookies.hosts, namespace))
        relays: dict[BookieId, Toxic] = {}
        for info in (await metadata.members()).writable.values():
            relays[info.bookie] = await stack.enter_async_context(Toxic(f"{info.host}:{info.port}"))
        seen: Any = Relayed(metadata, relays)
        client = await stack.enter_async_context(BookieClient(resolver(seen), rng=rng))
        ledgers = await stack.enter_async_context(Ledgers(seen, client, rng=rng))
        events = Events()
        proxy = WriteProxy(WriteOptions(), seen, {"ledger": LedgerStore(ledgers)}, on_event=events.tell, rng=rng)
        running = Running(proxy, events, tasks)
        try:
            yield Writer(await running.started(), relays)
        finally:
            await running.kill()


@pytest.mark.zookeeper
async def test_an_owner_that_reaches_one_bookie_of_three_gives_its_stream_up(bookies: BookieCluster) -> None:
    namespace = f"/messaging/{uuid.uuid4().hex}"
    await cluster_init(bookies.hosts, namespace)
    async with (
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
        writer(bookies, namespace, tasks) as one,
        writer(bookies, namespace, tasks) as two,
        dlog.connect(f"dlog://{one.address},{two.address}") as client,
    ):
        await client.create("orders", ensemble=3, write_quorum=3, ack_quorum=2)
        await client.append("orders", b"before")
        before = (await client.owner("orders")).location
        owner, other = (one, two) if before == one.address else (two, one)
        for relay in list(owner.relays.values())[1:]:
            relay.refuse()
            relay.cut()
        await client.append("orders", b"after")
        assert (await client.owner("orders")).location == other.address


async def test_an_owner_that_does_not_reach_its_topics_gives_its_stream_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []
    is_cut: set[object] = set()
    back = asyncio.Event()

    def cuttable(call: Any) -> Any:
        @functools.wraps(call)
        async def wrapped(topics: FileTopics, *given: Any, **named: Any) -> Any:
            if topics in is_cut:
                await back.wait()
            return await call(topics, *given, **named)

        return wrapped

    for name in ("append", "check", "create", "exists", "names", "offsets", "read", "topic_id"):
        monkeypatch.setattr(FileTopics, name, cuttable(getattr(FileTopics, name)))
    async with (
        asyncio.timeout(PATIENCE_S),
        opened(tmp_path, recorded) as first,
        opened(tmp_path, recorded) as second,
        local() as cluster,
    ):
        cluster.other_stores["kafka"] = first
        one = await cluster.write_proxy()
        cluster.other_stores["kafka"] = second
        two = await cluster.write_proxy()
        async with dlog.connect(f"dlog://{one.address},{two.address}") as client:
            await client.create("orders", store="kafka")
            await client.append("orders", b"before")
            before = (await client.owner("orders")).location
            store, other = (first, two) if before == one.address else (second, one)
            is_cut.add(store._topics)
            await client.append("orders", b"after")
            assert (await client.owner("orders")).location == other.address
        back.set()
