"""Ports for servers that a test has to name before it starts them, or starts again under the same one.

The law of this file: none of them is one that the kernel gives to a connection of its own choice, or between two
lives of a server a client could sit on it (or, trying again and again to reach it, be connected to itself); and none is
handed out twice in a test run. `dlog up` and the embedded ZooKeeper choose theirs above these.
"""

from __future__ import annotations

import os
import socket

HOST = "127.0.0.1"
_FIRST, _EACH, _WORKERS = 10_000, 1_000, 10
_worker = int("0" + os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")) % _WORKERS
_given = os.getpid() * 37  # where this process begins in its worker's range


def free_port() -> int:
    """A port nobody listens on now."""
    global _given
    for _ in range(_EACH):
        _given += 1
        port = _FIRST + _worker * _EACH + _given % _EACH
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            continue
        return port
    raise RuntimeError("every port of this worker is taken")


def free_ports(count: int) -> list[int]:
    """As many different ones."""
    return [free_port() for _ in range(count)]
