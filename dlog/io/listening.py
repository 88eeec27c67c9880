"""Listening sockets for a host and a port, whatever the host is: a name, an IPv4 or an IPv6 address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from dlog.hostport import bare_host


def listening_socket(host: str, port: int) -> socket.socket:
    """Bind TCP to the first address of the host; the caller listens. Port 0: any free one.

    `::` is bound for IPv4 as well, since it stands for every interface. Raises OSError, also for a name that is none.
    """
    host = bare_host(host)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # of the resolver's own rules: an empty label, one of more than 63 characters
        raise OSError(f"not the name of a host: {error}") from error
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
    """Whether the port can be listened on now."""
    try:
        check_free(host, port)
    except OSError:
        return False
    return True


def check_free(host: str, port: int) -> None:
    """Raises OSError if the port cannot be listened on now."""
    with listening_socket(host, port) as listener:
        listener.listen(1)


async def create_server(
    make: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = 100, start_serving: bool = True
) -> asyncio.Server:
    """As loop.create_server, for the same hosts as listening_socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    host = bare_host(host)
    if host == "::":  # the loop would bind it for IPv6 alone
        bound = listening_socket(host, port)
        return await loop.create_server(make, sock=bound, backlog=backlog, start_serving=start_serving)
    try:
        return await loop.create_server(make, host, port, backlog=backlog, start_serving=start_serving)
    except UnicodeError as error:
        raise OSError(f"not the name of a host: {error}") from error
