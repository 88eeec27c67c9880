"""When a proxy should be sent requests, for given times; and the answers to invalid requests on its health port."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from dlog.io.memory_metadata import MemoryMetadata
from dlog.io.metadata import BookieInfo
from dlog.model.ids import BookieId
from dlog.stores.memory import MemoryStore, MemoryStoreState
from proxies.health import CONNECTIONS_MAX, REQUEST_BYTES_MAX, Health, Readiness
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy


def test_it_is_ready_from_the_first_service_to_the_drain() -> None:
    readiness = Readiness(60.0)
    assert readiness.obstacle(0.0) == "starting"
    readiness.serving()
    assert readiness.obstacle(1.0) is None
    readiness.draining()
    assert readiness.obstacle(2.0) == "draining"


def test_trouble_counts_once_it_has_lasted_and_is_forgotten_when_it_is_over() -> None:
    readiness = Readiness(60.0)
    readiness.serving()
    readiness.note("metadata out of reach", True, 100.0)
    readiness.note("metadata out of reach", True, 130.0)
    assert readiness.obstacle(159.9) is None
    assert readiness.troubles(159.0) == {"metadata out of reach": 59.0}
    assert readiness.obstacle(160.0) == "metadata out of reach for 60 s"
    readiness.note("metadata out of reach", False, 161.0)
    assert readiness.obstacle(161.0) is None
    readiness.note("metadata out of reach", True, 162.0)
    assert readiness.obstacle(200.0) is None


class Times:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return int(self.now_s * 1000)


async def test_a_proxy_that_writes_is_unready_once_no_bookie_can_be_written_to_for_long() -> None:
    metadata, times = MemoryMetadata(), Times()
    bookie = BookieInfo(BookieId("127.0.0.1:3181"), "127.0.0.1", 3181)
    await metadata.register_bookie(bookie)
    writer = Health(metadata, patience_s=60.0, needs_bookies=True, clock=times)
    reader = Health(metadata, patience_s=60.0, clock=times)
    for health in (writer, reader):
        health.readiness.serving()
    assert writer.answer("/ready") == (200, {"ready": True, "troubles": {}})
    await metadata.register_bookie(bookie, readonly=True)  # its disk is full
    times.now_s += 59.0
    assert writer.answer("/ready") == (200, {"ready": True, "troubles": {"no writable bookie": 59.0}})
    times.now_s += 1.0
    told = {"ready": False, "troubles": {"no writable bookie": 60.0}, "because": "no writable bookie for 60 s"}
    assert writer.answer("/ready") == writer.answer("/haproxy") == (503, told)
    assert reader.answer("/ready") == (200, {"ready": True, "troubles": {}})
    await metadata.register_bookie(bookie)
    assert writer.answer("/ready") == (200, {"ready": True, "troubles": {}})
    for health in (writer, reader):
        health.close()


async def test_a_write_proxy_looks_for_bookies_if_its_stores_need_them() -> None:
    for store, troubles in (("ledger", ["no writable bookie"]), ("memory", [])):
        stores = {store: MemoryStore(MemoryStoreState())}
        proxy = WriteProxy(WriteOptions(), MemoryMetadata(), stores)
        proxy.health.readiness.serving()
        status, told = proxy.health.answer("/ready")
        assert (status, list(cast(dict[str, float], told["troubles"]))) == (200, troubles), store
        proxy.health.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Health]:
    health = Health(MemoryMetadata(), patience_s=60.0)
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await health.listen("127.0.0.1", port)
    try:
        yield health
    finally:
        health.close()


@asynccontextmanager
async def asking(health: Health) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = health.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(90.0):
            yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def said(health: Health, request: bytes) -> tuple[int, bytes]:
    async with asking(health) as (reader, writer):
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_each_path_says_what_its_asker_needs() -> None:
    async with listening() as health:
        for state, ready, haproxy in (("starting", 503, 503), ("serving", 200, 200), ("draining", 503, 404)):
            if state != "starting":
                getattr(health.readiness, state)()
            assert (await said(health, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200
            status, body = await said(health, b"GET /ready?verbose HTTP/1.0\r\n\r\n")
            assert (status, json.loads(body)["ready"]) == (ready, ready == 200), state
            assert (await said(health, b"GET /haproxy HTTP/1.0\r\n\r\n"))[0] == haproxy, state
        assert await said(health, b"HEAD /ready HTTP/1.0\r\n\r\n") == (503, b"")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", 404),
        (b"POST /ready HTTP/1.1\r\n\r\n", 405),
        (b"\x00\x00\x00\x10 not http\r\n\r\n", 400),
        (b"GET /ready\r\n\r\n", 400),
        (b"GET /" + b"a" * REQUEST_BYTES_MAX, 400),
    ],
)
async def test_what_is_no_question_is_refused_within_bounds(request_: bytes, status: int) -> None:
    async with listening() as health:
        assert (await said(health, request_))[0] == status


async def test_connections_beyond_the_bound_are_cut() -> None:
    async with listening() as health, contextlib.AsyncExitStack() as waiting:
        for _ in range(CONNECTIONS_MAX):
            await waiting.enter_async_context(asking(health))
        async with asking(health) as (reader, _):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
