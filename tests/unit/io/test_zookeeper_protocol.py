"""Tests one connection to a ZooKeeper server without a server: a peer that ends the connection at once."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvloop
from aiozk import protocol

from dlog.errors import Remedy
from dlog.io.zookeeper_protocol import (
    REPLY_BYTES_MAX,
    Connection,
    ConnectionLossError,
    ReplyTooLargeError,
    decode_nothing,
)

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


async def shake_hands(connection: Connection) -> None:
    await connection.shake_hands(session_id=0, password=bytes(16), timeout_ms=4000, last_zxid=0)


async def test_a_connection_that_ended_before_the_handshake_is_not_waited_for() -> None:
    connection = Connection(lambda kind, path: None)
    connection.eof_received()
    with pytest.raises(ConnectionLossError, match="server closed the connection"):
        await shake_hands(connection)


def reply(xid: int, body: bytes = b"") -> bytes:
    return frame(struct.pack("!iqi", xid, 1, 0) + body)


def frame(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


async def shaken() -> Connection:
    connection = Connection(lambda kind, path: None)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(shake_hands(connection), name="handshake")
        await asyncio.sleep(0)
        connection.data_received(frame(struct.pack("!iiqi", 0, 4000, 77, 16) + bytes(16)))
    return connection


async def refused(pending: asyncio.Future[Any]) -> str:
    with pytest.raises(ReplyTooLargeError) as error:
        await pending
    assert error.value.remedy is Remedy.FIX
    return error.value.message


@pytest.mark.parametrize("cut", [1, 4, 19, 20, 21, 1000, 1 << 20, 40 << 20])
async def test_a_reply_that_is_too_large_fails_its_own_request_and_no_other(cut: int) -> None:
    """The stream is cut behind its first `cut` bytes, and then in pieces of the same size, 1 MiB at least."""
    connection = await shaken()
    before, large, after = (
        connection.ask(protocol.ExistsRequest(path=path, watch=False), decode_nothing, path)
        for path in ("/a", "/b", "/c")
    )
    body = REPLY_BYTES_MAX + 1
    stream = memoryview(reply(1) + reply(2, bytes(body)) + reply(3))
    begin = len(reply(1))
    connection.data_received(bytes(stream[: begin + cut]))
    for at in range(begin + cut, len(stream), max(cut, 1 << 20)):
        connection.data_received(bytes(stream[at : at + max(cut, 1 << 20)]))
    await before
    size = body + 16
    assert await refused(large) == f"ZooKeeper's reply is too large: path=/b bytes={size} limit_bytes={REPLY_BYTES_MAX}"
    await after
    assert not connection.is_closed and connection.pending == 0
    connection.drop("done")


async def test_a_reply_that_is_too_large_is_not_kept() -> None:
    connection = await shaken()
    pending = connection.ask(protocol.ExistsRequest(path="/a", watch=False), decode_nothing, "/a")
    piece = bytes(1 << 20)
    tracemalloc.start()
    try:
        connection.data_received(struct.pack("!iiqi", 2**31 - 1, 1, 1, 0))
        for _ in range(64):
            connection.data_received(piece)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    await refused(pending)
    assert not connection.is_closed
    connection.drop("done")


@pytest.mark.parametrize("size", [-1, -(2**31)])
async def test_a_frame_of_less_than_nothing_ends_the_connection(size: int) -> None:
    connection = await shaken()
    connection.data_received(struct.pack("!iiqi", size, 1, 1, 0))
    assert connection.is_closed


async def test_a_large_frame_that_answers_nothing_ends_the_connection() -> None:
    connection = await shaken()
    connection.data_received(struct.pack("!iiqi", 2**31 - 1, 1, 1, 0))
    assert await connection.closed == "reply without a request: xid=1"
    greeting = Connection(lambda kind, path: None)
    with pytest.raises(ConnectionLossError, match="bad frame size=2147483647"):
        async with asyncio.timeout(60):
            handshake = shake_hands(greeting)
            asyncio.get_running_loop().call_soon(greeting.data_received, struct.pack("!iiqi", 2**31 - 1, 1, 1, 0))
            await handshake


def accept_and_close(listener: socket.socket, times: int) -> None:
    for _ in range(times):
        listener.accept()[0].close()


@pytest.mark.parametrize("name", LOOPS)
def test_a_host_that_accepts_and_closes_is_given_up_at_once(name: str) -> None:
    """Some of many ends arrive before `create_connection` returns: such a handshake once waited for ever."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(100):
            connection = Connection(lambda kind, path: None)
            with pytest.raises((ConnectionLossError, OSError)):
                await loop.create_connection(partial(_itself, connection), *listener.getsockname())
                await shake_hands(connection)
            connection.drop("done")

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = threading.Thread(target=accept_and_close, args=(listener, 100), daemon=True)
        peer.start()
        with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
            runner.run(bounded())
        peer.join()


def _itself(connection: Connection) -> Connection:
    return connection
