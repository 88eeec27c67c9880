"""A link relays; while held it sends and loses nothing; when it is cut in the middle, both ends learn of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.links import LinkConditions, Links

ME = "me"


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[Links, int, LinkConditions]]:
    """An echo server behind a link."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asyncio.TaskGroup() as tasks:
        links = Links(lambda: {ME: os.getpid()}, tasks)
        port = await links.open("echo", server.sockets[0].getsockname()[1])
        yield links, port, links.conditions(ME, "echo")
        links.close()
    server.close()


async def test_a_link_relays_and_knows_who_opened_it() -> None:
    seen: list[tuple[str, str, bytes]] = []
    async with echo() as (links, port, _):
        links.first_reply = lambda *told: seen.append(told)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        payload = os.urandom(3_000_000)
        writer.write(payload)
        assert await reader.readexactly(len(payload)) == payload
        assert seen[0][:2] == (ME, "echo")
        writer.close()


@pytest.mark.parametrize("direction", ["hold_requests", "hold_replies"])
async def test_what_is_held_comes_late_and_whole(direction: str) -> None:
    async with echo() as (links, port, conditions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        setattr(conditions, direction, 1)
        writer.write(b"second")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(1)
        links.heal()
        assert await reader.readexactly(6) == b"second"
        writer.close()


async def test_a_long_link_delivers_late_whole_and_in_order_and_stays_long() -> None:
    async with echo() as (links, port, conditions):
        conditions.delay_s = 0.05
        links.heal()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun_s = asyncio.get_running_loop().time()
        payload = os.urandom(300_000)
        for start in range(0, len(payload), 1000):
            writer.write(payload[start : start + 1000])
        assert await reader.readexactly(len(payload)) == payload
        assert asyncio.get_running_loop().time() - begun_s >= 0.1, "there and back"
        writer.close()


async def test_the_end_of_a_held_connection_is_not_heard_before_it_heals() -> None:
    async with echo() as (links, port, conditions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await reader.readexactly(1)
        conditions.hold_requests = conditions.hold_replies = 1
        writer.write_eof()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(1)
        links.heal()
        assert await reader.read() == b""
        writer.close()


async def test_a_reset_in_the_middle_is_heard_by_both() -> None:
    async with echo() as (_, port, conditions):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        conditions.reset_after = 1000
        writer.write(b"x" * 5000)
        with pytest.raises(ConnectionResetError):
            while await reader.read(65536):
                pass
        again_reader, again = await asyncio.open_connection("127.0.0.1", port)
        again.write(b"y")
        assert await again_reader.readexactly(1) == b"y"
        again.close()
        writer.close()


async def test_a_slow_link_delivers_all_the_same() -> None:
    async with echo() as (_, port, conditions):
        conditions.bytes_per_s = 200_000
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        payload = os.urandom(40_000)
        writer.write(payload)
        assert await reader.readexactly(len(payload)) == payload
        writer.close()


async def test_a_part_that_does_not_listen_resets_its_callers() -> None:
    async with asyncio.TaskGroup() as tasks:
        links = Links(dict, tasks)
        closed = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        gone = closed.sockets[0].getsockname()[1]
        closed.close()
        await closed.wait_closed()
        port = await links.open("gone", gone)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        links.close()
