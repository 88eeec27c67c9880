"""Repeated operations of proxies and their clients leave nothing to the cycle collector (tests/garbage.py)."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.client.connection import Connection
from dlog.client.options import ClientOptions
from dlog.model.dlsn import of
from dlog.wire.proxy import Create, Ping
from proxies.proxy_connection import ProxyConnection
from proxies.read.server import ReadProxy
from tests.garbage import garbage_of
from tests.integration.proxies.local_proxies import LocalProxies, Running
from tests.integration.proxies.raw import Raw, RawProducer

ROUNDS = 1000
MEMORY = {"store": "memory"}


async def until_quiet(*proxies: Running) -> None:
    """Wait until the proxies have no connection left."""
    async with asyncio.timeout(90.0):
        while any(running.proxy.listener.connections for running in proxies):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)


async def test_connections_links_and_clients_leave_no_garbage(local: LocalProxies) -> None:
    proxy = await local.read_proxy()

    async def rounds(count: int) -> None:
        for _ in range(count):
            connection = await Connection.open(proxy.address, ClientOptions())
            await connection.ask(Ping)
            connection.close()
            link = await ProxyConnection.open(proxy.address, role="tool", name="t", timeout_s=60.0)
            await link.ask(Ping)
            link.close()
            async with dlog.connect(f"dlog://{proxy.address}") as client:
                await client.reach(60.0)

    assert await garbage_of(rounds, ROUNDS, lambda: until_quiet(proxy)) == {}


async def test_sessions_that_write_leave_no_garbage(local: LocalProxies) -> None:
    proxy = await local.write_proxy()

    async def rounds(count: int) -> None:
        for _ in range(count):
            async with Raw(proxy.address) as raw:
                await raw.ask(Create, "orders", MEMORY)
                await RawProducer(raw, "orders").write([b"x"])

    assert await garbage_of(rounds, ROUNDS, lambda: until_quiet(proxy)) == {}


async def test_readers_leave_no_garbage(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw:
        await raw.ask(Create, "orders", MEMORY)
        await RawProducer(raw, "orders").write([b"x"])

    async def rounds(count: int) -> None:
        async with dlog.connect(f"dlog://{reader.address},{writer.address}") as client:
            for number in range(count):
                if number % 2:
                    assert [record.payload async for record in client.read("orders", follow=False)] == [b"x"]
                else:
                    reading = client.read("orders")
                    assert (await anext(reading)).payload == b"x"
                    await reading.aclose()

    assert isinstance(reader.proxy, ReadProxy)
    async with reader.proxy._tailers.hold("orders"):  # one source for all rounds; its own end is not tested here
        assert await garbage_of(rounds, ROUNDS, lambda: until_quiet(reader)) == {}


async def test_sources_of_streams_that_nobody_reads_any_more_leave_no_garbage(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()
    async with Raw(writer.address) as raw:
        await raw.ask(Create, "orders", MEMORY)
        await RawProducer(raw, "orders").write([b"x"])
    assert isinstance(reader.proxy, ReadProxy)
    tailers = reader.proxy._tailers

    async def rounds(count: int) -> None:
        async with dlog.connect(f"dlog://{reader.address},{writer.address}") as client:
            for number in range(count):
                reading = client.read("orders", follow=bool(number % 2))
                assert (await anext(reading)).payload == b"x"
                await reading.aclose()
                tailers.retire("orders")  # as one that was idle for long
            async with tailers.hold("orders"):
                pass  # it waits for the end of the last one
            tailers.retire("orders")

    assert await garbage_of(rounds, ROUNDS, lambda: until_quiet(reader)) == {}


async def test_streams_that_are_handed_over_and_deleted_while_they_are_followed_leave_no_garbage(
    local: LocalProxies,
) -> None:
    """The owner ends each subscription with an error."""
    writer, reader = await local.write_proxy(), await local.read_proxy()
    assert isinstance(reader.proxy, ReadProxy)
    tailers = reader.proxy._tailers

    async def rounds(count: int) -> None:
        async with dlog.connect(f"dlog://{reader.address},{writer.address}") as client:
            for number in range(count // 5):
                stream = f"guest-{count}-{number}"
                await client.create(stream, store="memory")
                await client.append(stream, b"x")
                reading = client.read(stream, follow=True)
                assert (await anext(reading)).payload == b"x"
                await client.hand_over(stream)
                await client.append(stream, b"y")
                assert (await anext(reading)).payload == b"y"
                await reading.aclose()
                await client.delete(stream)
                tailers.retire(stream)
        async with tailers.hold("nothing"):
            pass  # it waits for the end of the last one

    assert await garbage_of(rounds, ROUNDS, lambda: until_quiet(reader)) == {}


async def test_requests_that_fail_leave_no_garbage(local: LocalProxies) -> None:
    writer, reader = await local.write_proxy(), await local.read_proxy()

    async def rounds(count: int) -> None:
        async with dlog.connect(f"dlog://{reader.address},{writer.address}") as client:
            await client.create(f"there-{count}", store="memory")
            for _ in range(count // 5):
                for refused in (
                    client.stat("missing"),
                    client.delete("missing"),
                    client.append("missing", b"x"),
                    client.create(f"there-{count}", store="memory"),
                    client.truncate(f"there-{count}", of(9, 0, 0)),
                    anext(client.read("missing")),
                ):
                    with pytest.raises(dlog.DLogError):
                        await refused

    assert await garbage_of(rounds, ROUNDS, lambda: until_quiet(writer, reader)) == {}
