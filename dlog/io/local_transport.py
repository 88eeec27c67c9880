"""Local transport: a server on TCP also listens on a Unix socket, and clients on the same machine use that instead.

It costs half the CPU and half the latency of loopback TCP (docs/decisions/0017-unix-sockets-within-a-machine.md).

Invariants:
- A client always names host and port and may get either kind of connection; no other code knows the difference.
- The Unix socket's name is the address that the server bound, in Linux's abstract namespace: like the port it belongs
  to the network namespace, it leaves no file, and it ends with the process.
- A client uses a Unix socket only if its server runs as the client's user or as root. A name can be bound only once.
- Without one (another machine, another system, an event loop that is not the kernel's) TCP is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar

_P = TypeVar("_P", bound=asyncio.BaseProtocol)

BUFFER_BYTES = 1 << 20  # send buffer of each side; the kernel's default is a fifth of it
_BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_ANY = {4: "0.0.0.0", 6: "::"}
_KERNEL_LOOPS = ("asyncio", "uvloop")  # packages of event loops that use the kernel's sockets


class Listening(Protocol):
    """A bound TCP socket, or an event loop's wrapper of one."""

    @property
    def family(self) -> int: ...

    def getsockname(self) -> Any: ...


async def connect(make: Callable[[], _P], host: str, port: int) -> None:
    """Connect the protocol that `make` builds to host:port, over a Unix socket if the server has one on this machine.

    host and port come from metadata and may be invalid. Raises OSError as `loop.create_connection` does, and if they
    are no address. A cancelled call leaves nothing open.
    """
    loop = asyncio.get_running_loop()
    if not 0 < port < 65536:
        raise OSError(f"port is not between 1 and 65535: host={host!r} port={port}")
    unix_socket = _connect_unix_socket(host, port) if _supports_local_transport(loop) else None
    if unix_socket is None:
        try:
            await loop.create_connection(make, host, port)
        except ValueError as error:  # UnicodeError is one: an empty label, or one that is too long
            raise OSError(f"not a host name: {error}: host={host!r} port={port}") from error
        return
    try:
        await loop.create_unix_connection(make, sock=unix_socket)
    except BaseException:
        unix_socket.close()
        raise


async def unix_servers(
    make: Callable[[], asyncio.BaseProtocol], listeners: Iterable[Listening]
) -> list[asyncio.Server]:
    """Listen also on a Unix socket beside each of a server's TCP sockets, where that is possible.

    Returns the servers of the Unix sockets, none where the platform has no such transport.

    `make` builds the protocol of an accepted connection. The caller closes these together with the server.
    """
    loop = asyncio.get_running_loop()
    opened: list[asyncio.Server] = []
    if not _supports_local_transport(loop):
        return opened
    try:
        for listener in listeners:
            unix_socket = _bind_unix_socket(listener)
            if unix_socket is not None:
                opened.append(await loop.create_unix_server(make, sock=unix_socket, backlog=_BACKLOG))
    except BaseException:
        for server in opened:
            server.close()
        raise
    return opened


class ServerGroup:
    """A TCP server and its Unix sockets, closed together."""

    def __init__(self, server: asyncio.Server, unix_servers: Iterable[asyncio.Server]) -> None:
        self._servers = [server, *unix_servers]

    def close(self) -> None:
        for server in self._servers:
            server.close()


def peer_name(connected: socket.socket | None) -> str:
    """Name of a Unix socket connection in logs: `unix:` and the process id of the peer."""
    with contextlib.suppress(OSError):
        if connected is not None:
            return f"unix:{_credentials(connected)[0]}"
    return "unix:0"


def _supports_local_transport(loop: asyncio.AbstractEventLoop) -> bool:
    return sys.platform.startswith("linux") and type(loop).__module__.partition(".")[0] in _KERNEL_LOOPS


def _bind_unix_socket(listener: Listening) -> socket.socket | None:
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    host, port = listener.getsockname()[:2]
    unix_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _widen(unix_socket)
        unix_socket.bind(_name(str(host), int(port)))
        unix_socket.setblocking(False)
    except OSError:  # another process has bound the name: TCP only
        unix_socket.close()
        return None
    return unix_socket


def _connect_unix_socket(host: str, port: int) -> socket.socket | None:
    for name in _names(host, port):
        entered = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            entered.setblocking(False)
            _widen(entered)
            entered.connect(name)  # never waits: fails if no server listens or its backlog is full
            if _credentials(entered)[1] in (os.geteuid(), 0):
                return entered
        except OSError:
            pass
        entered.close()
    return None


def _names(host: str, port: int) -> Iterator[str]:
    """Unix socket names that a local server on host:port may have bound. A server that is bound to all addresses is
    found by loopback addresses and by the machine's name."""
    if host == "localhost":
        yield from _names("127.0.0.1", port)
        yield from _names("::1", port)
        return
    if host == socket.gethostname():
        yield from (_name(everywhere, port) for everywhere in _ANY.values())
        return
    try:
        address = ip_address(host)
    except ValueError:
        return
    yield _name(str(address), port)
    if address.is_loopback:
        yield _name(_ANY[address.version], port)


def _name(host: str, port: int) -> str:
    return f"\0dlog/{host}/{port}"


def _widen(unix: socket.socket) -> None:
    unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)


def _credentials(unix: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _CREDENTIALS.unpack(unix.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid
