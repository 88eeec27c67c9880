"""Tests one connection to a ZooKeeper server without a server: a peer that ends the connection at once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import partial

import pytest
import uvloop

from dlog.io.zookeeper_protocol import Connection, ConnectionLossError

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
