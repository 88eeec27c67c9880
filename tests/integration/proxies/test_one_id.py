"""Two write proxies with one id: only the one that is registered has streams."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from loadtest.systems.nodes import listens
from tests.integration.cluster import ServerProcess
from tests.integration.proxies.processes import ProxyCluster
from tests.ports import free_port

pytestmark = pytest.mark.zookeeper

STREAMS = {"in-ledgers": "ledger", "in-objects": "s3"}
PATIENCE_S = 120.0


def second_of(cluster: ProxyCluster, first: ServerProcess) -> tuple[ServerProcess, int]:
    """Another process with the id of the first one, not started, and its port."""
    port = free_port()
    return cluster.extra("write", "--id", first.id, "--port", str(port)), port


async def wait_ended(process: ServerProcess) -> str:
    """Wait until a process has ended by itself; returns its log."""
    async with asyncio.timeout(PATIENCE_S):
        while process.is_running:  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.05)
    return process.log()


async def payloads(client: dlog.Client, stream: str) -> list[bytes]:
    return [record.payload async for record in client.read(stream)]


async def test_the_second_of_one_id_is_refused_before_it_serves(cluster_with_objects: ProxyCluster) -> None:
    cluster = cluster_with_objects
    async with dlog.connect(cluster.target) as client:
        for name, store in STREAMS.items():
            await client.create(name, store=store)
            await client.append(name, b"before")
        owners = {name: await client.owner(name) for name in STREAMS}
        second, port = second_of(cluster, cluster.writer_at(owners["in-objects"].location))
        second.spawn()
        try:
            while second.is_running:
                assert not await listens(port), "who connects there would have it take streams"
                await asyncio.sleep(0.05)
            log = await wait_ended(second)
        finally:
            second.kill()
        assert "another process is registered under this name" in log
        for name in STREAMS:
            await client.append(name, b"after")
            assert await client.owner(name) == owners[name], "nobody took it over"
            assert await payloads(client, name) == [b"before", b"after"]


async def test_a_frozen_proxy_whose_id_another_process_has_ends_when_it_wakes_up(
    cluster_with_objects: ProxyCluster,
) -> None:
    cluster = cluster_with_objects
    async with dlog.connect(cluster.target) as client:
        for name, store in STREAMS.items():
            await client.create(name, store=store)
            await client.append(name, b"before")
        first = cluster.writer_at((await client.owner("in-objects")).location)
        second, _ = second_of(cluster, first)
        first.freeze()
        try:
            await asyncio.to_thread(second.start)  # it waits for the end of the other one's session
            for name in STREAMS:
                await client.append(name, b"meanwhile")
            first.thaw()
            assert "another process was registered under this id" in await wait_ended(first)
            for name in STREAMS:
                await client.append(name, b"after")
                assert await payloads(client, name) == [b"before", b"meanwhile", b"after"]
            assert second.is_running
        finally:
            second.kill()
