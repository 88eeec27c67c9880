"""The HTTP server of a process: its pages, and what invalid, slow and many clients get."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop

from dlog.errors import ConfigError
from dlog.events import BookieLost
from dlog.io import http_server, metrics
from dlog.io.http_server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, HttpServer

GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def serving(host: str = "127.0.0.1") -> AsyncIterator[HttpServer]:
    """A server with one page. Fails if anything was reported to the event loop's exception handler."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    server = HttpServer({"/ready": lambda: (503, {"ready": False})})
    await server.listen(host, 0)
    try:
        yield server
    finally:
        server.close()
        server.close()
        await asyncio.sleep(0.01)
    assert not reported


@asynccontextmanager
async def connected(server: HttpServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        async with asyncio.timeout(90.0):
            yield reader, writer
    finally:
        writer.transport.abort()


async def ask(server: HttpServer, *parts: bytes, half_close: bool = False) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the response; status 0: closed without one."""
    async with connected(server) as (reader, writer):
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0)
        if half_close:
            writer.write_eof()
        try:
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        except ConnectionError:
            head, body = b"", b""
    if not head:
        return 0, {}, b""
    first, *lines = head.decode().split("\r\n")
    assert first.startswith("HTTP/1.1 ")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("make_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_pages_and_metrics_are_served_whole_also_to_a_client_that_sends_no_more(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    metrics.count(BookieLost("b", "test"))

    async def check() -> None:
        async with serving() as server:
            for half_close in (False, True):
                assert await ask(server, GET % b"/live", half_close=half_close) == (
                    200,
                    {
                        "Content-Type": "application/json",
                        "Content-Length": "15",
                        "Allow": "GET, HEAD",
                        "Connection": "close",
                    },
                    b'{"live": true}\n',
                )
                status, _, body = await ask(server, b"GET /ready?verbose HTTP/1.0\r\n\r\n", half_close=half_close)
                assert (status, json.loads(body)) == (503, {"ready": False})
                status, headers, body = await ask(server, GET % b"/metrics", half_close=half_close)
                assert (status, headers["Content-Length"]) == (200, str(len(body)))
                assert headers["Content-Type"].startswith("text/plain; version=")
                assert b'dlog_events_total{event="bookie.lost"} ' in body and b"\ndlog_loop_stall_seconds" in body
            status, headers, body = await ask(server, b"HEAD /live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (status, headers["Content-Length"], body) == (200, "15", b"")

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(check())


async def test_a_request_may_come_byte_by_byte() -> None:
    async with serving() as server:
        request = GET % b"/live"
        assert (await ask(server, *(request[at : at + 1] for at in range(len(request)))))[0] == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET % b"/other", 404),
        (GET % b"/../../etc/passwd", 404),
        (GET % b"http://x/live", 404),
        (b"POST /ready HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),
        (b"GET /live HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /live HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n", 400),
        (b"\x00\x00\x00\x10 not http\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xc8", 400),  # a TLS ClientHello begins so
        (b"GET /ready\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /" + b"a" * (REQUEST_BYTES_MAX + 2000), 431),
        (b"GET /" + b"a" * 300_000, 431),
        (b"GET /live HTTP/1.1\r\nHost: x\r\n" + b"h: x\r\n" * REQUEST_BYTES_MAX, 431),
    ],
)
async def test_an_invalid_request_is_refused(request_: bytes, status: int) -> None:
    async with serving() as server:
        assert (await ask(server, request_))[0] == status
        assert (await ask(server, GET % b"/live"))[0] == 200


async def test_a_connection_carries_one_request() -> None:
    async with serving() as server:
        status, _, body = await ask(server, (GET % b"/live") * 3)
        assert (status, body) == (200, b'{"live": true}\n')


async def test_a_client_that_goes_on_sending_is_cut() -> None:
    async with serving() as server, connected(server) as (_, writer):
        with pytest.raises(ConnectionError):
            while True:
                writer.write(GET % b"/live" + bytes(1 << 16))
                await writer.drain()


async def test_random_input_is_answered_or_cut_and_never_reported() -> None:
    rng = random.Random(26)
    valid = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: a\r\nExpect: 100-continue\r\n\r\n"
    async with serving() as server:
        for _ in range(300):
            data = bytearray(rng.choice((valid, rng.randbytes(rng.randrange(200)))) + b"\r\n\r\n")
            for _ in range(rng.randrange(4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            status, _, _ = await ask(server, bytes(data), half_close=True)
            assert status in (0, 200, 400, 404, 405, 501)


async def test_half_a_request_or_none_is_closed() -> None:
    async with serving() as server:
        assert (await ask(server, half_close=True))[0] == 0
        assert (await ask(server, b"GET /li", half_close=True))[0] == 400


async def test_a_request_that_does_not_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.05)
    async with serving() as server:
        assert (await ask(server, b"GET /live HTTP/1.1\r\n"))[0] == 0


async def test_a_client_that_does_not_close_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_S", 0.05)
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(GET % b"/live")
        await reader.read()
        with pytest.raises(ConnectionError):
            while True:  # until the server's end is gone
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)


async def test_connections_beyond_the_bound_are_cut() -> None:
    async with serving() as server, AsyncExitStack() as waiting:
        for _ in range(CONNECTIONS_MAX):
            await waiting.enter_async_context(connected(server))
        assert (await ask(server, GET % b"/live"))[0] == 0
        await waiting.aclose()
        async with asyncio.timeout(90.0):
            while (await ask(server, GET % b"/live"))[0] != 200:  # noqa: ASYNC110 - the server has to notice
                await asyncio.sleep(0.01)


async def test_a_scrape_does_not_block_the_loop_and_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    begun, released = asyncio.Event(), asyncio.Event()

    def render() -> tuple[str, bytes]:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result()
        return "text/plain", b"x 1\n"

    monkeypatch.setattr(metrics, "renderer", lambda: render)
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(GET % b"/metrics")
        await begun.wait()
        assert (await ask(server, GET % b"/live"))[0] == 200
        released.set()
        assert (await reader.read()).endswith(b"\r\n\r\nx 1\n")
        released.clear()
        begun.clear()
        async with connected(server) as (second, writer):
            writer.write(GET % b"/metrics")
            await begun.wait()
            server.close()
            assert await second.read() == b""
        released.set()


async def test_an_error_of_a_page_is_reported_and_costs_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> tuple[int, dict[str, object]]:
        raise ValueError("broken page")

    server = HttpServer({"/ready": broken})
    await server.listen("127.0.0.1", 0)
    try:
        with caplog.at_level(logging.ERROR):
            assert (await ask(server, GET % b"/ready"))[0] == 0
        assert "broken page" in caplog.text
        assert (await ask(server, GET % b"/live"))[0] == 200
    finally:
        server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]"])
async def test_it_listens_on_its_host_alone_and_says_if_it_cannot(host: str) -> None:
    async with serving(host) as server:
        assert (await ask(server, GET % b"/live"))[0] == 200
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.2", port)
        second = HttpServer({})
        with pytest.raises(ConfigError, match=rf"http_port .*{port}"):
            await second.listen(host, port)
        second.close()
