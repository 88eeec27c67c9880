"""Tests local sockets beside TCP: which clients are accepted, what stays TCP, and that both ends see one connection."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from dlog.io import local_transport

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="abstract Unix sockets are Linux's")


class Echo(asyncio.Protocol):
    """Sends back what arrives; notes its transport."""

    def __init__(self, families: list[int]) -> None:
        self._families = families

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._families.append(transport.get_extra_info("socket").family)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Caller(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard = bytearray()
        self.came = asyncio.Event()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's transports have classes of their own
        self.family = transport.get_extra_info("socket").family

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


@asynccontextmanager
async def serving(host: str = "127.0.0.1", *, with_unix_servers: bool = True) -> AsyncIterator[tuple[int, list[int]]]:
    families: list[int] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo(families), host, 0)
    unix_servers = (
        await local_transport.unix_servers(lambda: Echo(families), server.sockets) if with_unix_servers else []
    )
    both = local_transport.ServerGroup(server, unix_servers)
    try:
        yield server.sockets[0].getsockname()[1], families
    finally:
        both.close()


async def call(host: str, port: int) -> Caller:
    caller = Caller()
    await local_transport.connect(lambda: caller, host, port)
    caller.transport.write(b"x" * 3_000_000)
    async with asyncio.timeout(60):
        while len(caller.heard) < 3_000_000:
            caller.came.clear()
            await caller.came.wait()
    return caller


def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())  # type: ignore[arg-type]


LOOPS = pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@LOOPS
def test_a_server_of_this_machine_is_reached_by_its_unix_socket(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with serving() as (port, families):
            for host in ("127.0.0.1", "localhost"):
                caller = await call(host, port)
                assert caller.family == families.pop() == socket.AF_UNIX
                caller.transport.close()
                await caller.ended.wait()

    run(loop_factory, main)


@LOOPS
def test_a_server_without_a_door_is_reached_by_tcp(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with serving(with_unix_servers=False) as (port, families):
            caller = await call("127.0.0.1", port)
            assert caller.family == families.pop() == socket.AF_INET
            caller.transport.close()

    run(loop_factory, main)


async def test_one_bound_to_everything_is_meant_by_loopback_and_by_the_machines_name() -> None:
    async with serving("0.0.0.0") as (port, families):
        for host in ("127.0.0.1", "127.0.0.9", socket.gethostname()):
            caller = await call(host, port)
            assert families.pop() == socket.AF_UNIX, host
            caller.transport.close()


async def test_one_bound_to_another_address_is_not_taken_for_it() -> None:
    async with serving("127.0.0.1") as (port, families):
        with pytest.raises(OSError):
            await call("127.0.0.2", port)
        assert not families


async def test_a_door_that_another_user_opened_is_not_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (port, families):
        monkeypatch.setattr(local_transport, "_credentials", lambda _: (1, os.geteuid() + 4711, 0))
        caller = await call("127.0.0.1", port)
        assert families.pop() == socket.AF_INET
        caller.transport.close()


async def test_a_name_that_is_taken_leaves_tcp() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo([]), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    squatter = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    squatter.bind(f"\0dlog/127.0.0.1/{port}")  # bound, and not listening
    try:
        assert await local_transport.unix_servers(lambda: Echo([]), server.sockets) == []
        caller = await call("127.0.0.1", port)
        assert caller.family == socket.AF_INET
        caller.transport.close()
    finally:
        squatter.close()
        server.close()


async def test_a_closed_server_takes_no_connection_by_tcp_or_unix_socket() -> None:
    async with serving() as (port, _):
        pass
    with pytest.raises(OSError):
        await call("127.0.0.1", port)


async def test_who_entered_is_named_by_its_process() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert local_transport.peer_name(one) == f"unix:{os.getpid()}"
    assert local_transport.peer_name(None) == "unix:0"
