"""Ports for servers whose port a test has to know before it starts them, or that start again under the same one.

`dlog up` and the embedded ZooKeeper choose their ports above these.

Invariants:
- No port is in the range from which the kernel chooses ports for connections. Otherwise, between two starts of a
  server, a client could take its port (or, retrying, connect to itself).
- No port is given out twice in a test run.
"""

from __future__ import annotations

import os
import socket

HOST = "127.0.0.1"
_FIRST, _EACH, _WORKERS = 10_000, 1_000, 10
_worker = int("0" + os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")) % _WORKERS
_given = os.getpid() * 37  # where this process begins in its worker's range


def free_port() -> int:
    """A port on which nothing listens now."""
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
    """This many different free ports."""
    return [free_port() for _ in range(count)]
