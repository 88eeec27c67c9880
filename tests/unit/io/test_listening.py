"""Tests listening on every kind of host."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dlog.io.listening import check_free, create_server, is_free, listening_socket


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "0.0.0.0", "::", "[::]", ""])
def test_every_kind_of_host_can_be_bound(host: str) -> None:
    with listening_socket(host, 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(host, port)
    check_free(host, port)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "no-such-host.invalid", "[h]", "1.2.3.4.5"])
async def test_what_is_no_host_is_an_error_of_the_system(host: str) -> None:
    with pytest.raises(OSError, match=r"."):
        listening_socket(host, 0)
    with pytest.raises(OSError, match=r"."):
        await create_server(asyncio.Protocol, host, 0)


@pytest.mark.parametrize(
    ("host", "reached_at"),
    [("127.0.0.1", ["127.0.0.1"]), ("[::1]", ["::1"]), ("::", ["::1", "127.0.0.1"]), ("0.0.0.0", ["127.0.0.1"])],
)
async def test_a_server_is_reached_at_what_its_host_stands_for(host: str, reached_at: list[str]) -> None:
    server = await create_server(asyncio.Protocol, host, 0)
    port = server.sockets[0].getsockname()[1]
    for address in reached_at:
        with socket.create_connection((address, port)):
            pass
    server.close()
    await server.wait_closed()
