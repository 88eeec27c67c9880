"""Listening sockets for a port and a host: a name, an IPv4 or an IPv6 address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from dlog.hostport import bare_host


def listening_socket(host: str, port: int) -> socket.socket:
    """Bind a TCP socket to the first address of the host; the caller listens. Port 0: any free one.

    `::` is bound for IPv4, too, as it means every interface. Raises OSError, also for an invalid host name.
    """
    host = bare_host(host)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # an empty label, or one of more than 63 characters
        raise OSError(f"not a valid host name: {error}") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now."""
    try:
        check_free(host, port)
    except OSError:
        return False
    return True


def check_free(host: str, port: int) -> None:
    """Raise OSError if no server could listen on the port now."""
    with listening_socket(host, port) as listener:
        listener.listen(1)


async def create_server(
    make: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = 100, start_serving: bool = True
) -> asyncio.Server:
    """loop.create_server for the hosts of listening_socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    host = bare_host(host)
    if host == "::":  # the loop would bind it for IPv6 only
        bound = listening_socket(host, port)
        return await loop.create_server(make, sock=bound, backlog=backlog, start_serving=start_serving)
    try:
        return await loop.create_server(make, host, port, backlog=backlog, start_serving=start_serving)
    except UnicodeError as error:
        raise OSError(f"not a valid host name: {error}") from error
