"""What a ZooKeeper server counts, by its command `srvr`: packets of clients that it received, and its znodes."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass

from dlog.hostport import split_host_port
from loadtest.systems.base import CannotRunError


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Of one server since it started. packets: requests of clients, and pings of idle sessions."""

    packets: int
    znodes: int


async def server_counts(hosts: str, timeout_s: float = 60.0) -> ServerCounts:
    """Raises CannotRunError if the server does not say, OSError while it is away.

    A server that is starting may never answer a question that came too early: ask again after a short `timeout_s`.
    """
    host, port = split_host_port(hosts)

    def ask() -> str:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(b"srvr")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    told = await asyncio.to_thread(ask)
    packets = re.search(r"^Received: (\d+)", told, re.M)
    znodes = re.search(r"^Node count: (\d+)", told, re.M)
    if packets is None or znodes is None:
        raise CannotRunError(f"this ZooKeeper does not say how much it was asked: {hosts}")
    return ServerCounts(int(packets[1]), int(znodes[1]))
