"""Reads a ZooKeeper server's counters (received client packets, znodes) with its command `srvr`."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass

from dlog.hostport import split_host_port
from loadtest.systems.base import CannotRunError


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Counters since the server started. packets: requests of clients, and pings of idle sessions."""

    packets: int
    znodes: int


async def server_counts(hosts: str, timeout_s: float = 60.0) -> ServerCounts:
    """Raises CannotRunError if the response has no counters, OSError if the server is down.

    A server that is starting may never answer an early request: use a short `timeout_s` and retry.
    """
    host, port = split_host_port(hosts)

    def ask() -> str:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(b"srvr")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    response = await asyncio.to_thread(ask)
    packets = re.search(r"^Received: (\d+)", response, re.M)
    znodes = re.search(r"^Node count: (\d+)", response, re.M)
    if packets is None or znodes is None:
        raise CannotRunError(f"ZooKeeper returned no counters for the command srvr; is it allowed (4lw)? {hosts}")
    return ServerCounts(int(packets[1]), int(znodes[1]))
