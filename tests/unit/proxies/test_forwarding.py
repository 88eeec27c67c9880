"""Requests of a client that are forwarded to a proxy whose connection is still opening."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from actors.runtime import TaskScope
from dlog.wire.proxy import Credit, Question, Read, Start
from proxies.connection import Connection
from proxies.dialling import Dialler
from proxies.forwarding import CREDIT_MAX, Forwarding, ForwardingPool
from proxies.proxy_connection import ProxyConnection

ADDRESS = "reader:1"


class Client:
    """A client connection that sends nothing."""

    peer = "client"

    def hold(self, yes: bool, cause: object) -> None:
        """The client is read on."""


class Pipe:
    """A connection to a proxy. sent: the requests."""

    unsent_bytes = 0

    def __init__(self, is_guarded: asyncio.Event) -> None:
        self.sent: list[Question] = []
        self._is_guarded = is_guarded

    def hold(self, yes: bool) -> None:
        """Replies are read on."""

    def subscribe(self, question: Callable[[int], Question], *_: object) -> int:
        number = len(self.sent) + 100
        self.sent.append(question(number))
        return number

    def send(self, question: Question) -> None:
        self.sent.append(question)

    async def guard(self, *_: object) -> None:
        self._is_guarded.set()
        await asyncio.Event().wait()

    def close(self) -> None:
        """The connection ends."""


class Proxy:
    """Opens one connection to a proxy once the test says so."""

    def __init__(self) -> None:
        self._opens = asyncio.Event()
        self._is_guarded = asyncio.Event()
        self._pipe = Pipe(self._is_guarded)

    async def open(self, address: str, timeout_s: float, kind: type[ProxyConnection]) -> Any:
        await self._opens.wait()
        return self._pipe

    async def opened(self) -> list[Question]:
        """Let the connection open; returns what was sent on it then."""
        self._opens.set()
        async with asyncio.timeout(60):
            await self._is_guarded.wait()
        return self._pipe.sent


@dataclass
class Bench:
    """Forwarding for one client."""

    proxy: Proxy
    forwarding: Forwarding

    def waiting(self) -> int:
        """How many requests are kept for the connection."""
        return len(self.forwarding._routes[ADDRESS].waiting)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    proxy = Proxy()
    async with TaskScope(drain_s=0.0) as tasks:
        pool = ForwardingPool(cast(Dialler, proxy), tasks)
        yield Bench(proxy, Forwarding(pool, cast(Connection, Client())))


def read(request: int, stream: str = "orders") -> Read:
    return Read(request, stream, Start.TAIL, None, 1000, True)


async def test_credit_for_a_reader_whose_connection_is_opening_is_added_up(bench: Bench) -> None:
    bench.forwarding.read(read(5), ADDRESS)
    bench.forwarding.read(read(6), ADDRESS)
    for _ in range(10_000):
        bench.forwarding.credit(Credit(5, 7))
    for _ in range(2):
        bench.forwarding.credit(Credit(6, CREDIT_MAX))
    bench.forwarding.credit(Credit(7, 1))  # of no reader
    assert bench.waiting() == 2
    first, *rest = await bench.proxy.opened()
    assert isinstance(first, Read) and rest[0] == Credit(first.request, 70_000)
    assert isinstance(rest[1], Read) and rest[2:] == [Credit(rest[1].request, CREDIT_MAX)]
    bench.forwarding.credit(Credit(5, 3))
    assert (await bench.proxy.opened())[-1] == Credit(first.request, 3)


async def test_a_reader_that_is_cancelled_while_its_connection_is_opening_leaves_nothing(bench: Bench) -> None:
    for _ in range(100):
        bench.forwarding.read(read(5, "cancelled"), ADDRESS)
        bench.forwarding.credit(Credit(5, 7))
        bench.forwarding.cancel(5)
    bench.forwarding.read(read(5), ADDRESS)
    assert bench.waiting() == 1
    (sent,) = await bench.proxy.opened()
    assert isinstance(sent, Read) and sent.stream == "orders"
