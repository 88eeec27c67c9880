"""Hundreds of streams whose owner dies, and thousands of streams that are not used any more."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dlog
from actors.stream_owner import StreamOwnerActor
from dlog.events import ProxyDrained, StreamReleased
from dlog.machine import Versioned
from dlog.model.ids import StreamName
from dlog.model.segment import StreamKey
from proxies.write.options import WriteOptions
from proxies.write.owned_streams import RETIRES_AT_ONCE
from proxies.write.server import WriteProxy
from tests.integration.proxies.local_proxies import LocalProxies
from tests.integration.proxies.processes import ProxyCluster
from tests.integration.proxies.test_processes import scrape
from tests.ports import free_port

STREAMS = 320  # twenty times as many as an heir takes over at a time (WriteOptions.takes_at_once)
AT_ONCE = 64  # requests of the test at the same time
QUORUMS: tuple[dlog.SettingsChanges, ...] = (
    {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1},
    {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2},
    {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2},
)


async def for_each(streams: list[str], work: Any) -> None:
    """Run the work for each name, some at a time."""
    waiting = iter(streams)

    async def one() -> None:
        for stream in waiting:
            await work(stream)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one())


def metric(told: str, name: str) -> float:
    return next(float(line.split()[1]) for line in told.splitlines() if line.startswith(f"dlog_{name} "))


@pytest.mark.zookeeper
async def test_hundreds_of_streams_are_writable_again_without_a_stampede(cluster: ProxyCluster, tmp_path: Path) -> None:
    port = free_port()
    heir = cluster.writers[1]
    await asyncio.to_thread(heir.stop)
    heir.flags = (*heir.flags, "--http-port", str(port))
    streams = [f"stream-{n}" for n in range(STREAMS)]
    async with dlog.connect("dlog://" + cluster.writers[0].address) as client:

        async def create(stream: str) -> None:
            await client.create(stream, **QUORUMS[hash(stream) % 3])
            await client.append(stream, b"before")

        await for_each(streams, create)
    await asyncio.to_thread(heir.start)
    async with dlog.connect(cluster.target + "," + heir.address) as client:
        await client.append(streams[0], b"warm")
        begin_s = time.monotonic()
        cluster.writers[0].kill()
        await for_each(streams, lambda stream: client.append(stream, b"after"))
        took_s = time.monotonic() - begin_s
        told = await asyncio.to_thread(scrape, port)
        assert [r.payload async for r in client.read(streams[-1])] == [b"before", b"after"]
    peak = metric(told, "write_takes_peak")
    print(f"{STREAMS} streams writable again in {took_s:.1f} s, {peak:g} take-overs at once at most")
    assert metric(told, "write_takes_total") >= STREAMS
    assert peak <= WriteOptions().takes_at_once


async def created(local: LocalProxies, client: dlog.Client, count: int) -> list[str]:
    streams = [f"stream-{n}" for n in range(count)]
    for stream in streams:
        await client.create(stream, store="memory")
        await client.append(stream, b"0")
    return streams


async def test_a_stream_that_nobody_uses_is_handed_back_and_taken_again_by_the_next_append(local: LocalProxies) -> None:
    proxy = await local.write_proxy(idle_s=0.05)
    async with dlog.connect("dlog://" + proxy.address) as client:
        (stream,) = await created(local, client, 1)
        for n in range(1, 4):
            await proxy.events.of(StreamReleased, n)
            assert (await client.append(stream, b"%d" % n)).segment == n + 1
    seen = await local.metadata.read(StreamKey(StreamName(stream)))
    assert isinstance(seen, Versioned)
    assert [s.record_count for s in seen.value.segments if s.completed] == [1, 1, 1]


async def test_an_owner_that_ended_leaves_nothing_for_the_collector(local: LocalProxies) -> None:
    """A proxy's collector visits old objects so rarely that a reference cycle would stay for good."""
    proxy = await local.write_proxy(idle_s=0.05)
    server = proxy.proxy
    assert isinstance(server, WriteProxy)
    built: list[weakref.ref[object]] = []
    build = server.owned_streams._build

    def remember(stream: StreamName, on_end: Callable[[StreamOwnerActor], None]) -> StreamOwnerActor:
        owner = build(stream, on_end)
        built.extend((weakref.ref(owner), weakref.ref(owner._driver)))
        return owner

    server.owned_streams._build = remember
    async with dlog.connect("dlog://" + proxy.address) as client:
        gc.disable()
        try:
            await created(local, client, 3)
            await proxy.events.of(StreamReleased, 3)
            while len(server.owned_streams):
                await client.stat("stream-0")
            async with asyncio.timeout(90.0):
                while any(ref() is not None for ref in built):
                    await client.stat("stream-0")
        finally:
            gc.enable()
    assert len(built) == 6


async def test_streams_created_and_touched_in_a_loop_do_not_stay_alive(local: LocalProxies) -> None:
    proxy = await local.write_proxy(streams_max=20)
    server = proxy.proxy
    assert isinstance(server, WriteProxy)
    async with dlog.connect("dlog://" + proxy.address) as client:
        await created(local, client, 200)
        await proxy.events.of(StreamReleased, 180)
        assert len(server.owned_streams) <= 20 + RETIRES_AT_ONCE
        await client.append("stream-0", b"again")
    await proxy.drain()
    assert [e.left for e in proxy.events if isinstance(e, ProxyDrained)] == [0]


async def test_nothing_is_handed_back_while_metadata_is_out_of_reach(local: LocalProxies, monkeypatch: Any) -> None:
    proxy = await local.write_proxy(idle_s=0.02)
    server = proxy.proxy
    assert isinstance(server, WriteProxy)
    asked = asyncio.Event()

    def out_of_reach() -> bool:
        asked.set()
        return False

    monkeypatch.setattr(server.owned_streams, "_may_retire", out_of_reach)
    async with dlog.connect("dlog://" + proxy.address) as client:
        await created(local, client, 1)
        for _ in range(3):
            asked.clear()
            async with asyncio.timeout(90.0):
                await asked.wait()
        assert len(server.owned_streams) == 1
