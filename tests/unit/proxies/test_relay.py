"""Requests that a read proxy forwards to write proxies, over links that are kept open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from dlog.errors import ConnectionLostError, StreamUnavailableError, UnavailableError
from dlog.io.metadata import ProxyInfo
from dlog.model.ids import ProxyId
from dlog.model.location import NetworkLocation
from dlog.wire.proxy import GetOwner, Question
from proxies.dialling import Dialler
from proxies.proxy_connection import ProxyConnection
from proxies.read.relay import Relay
from tests.memory_metadata import MemoryMetadata

ADDRESS = "writer:1"
QUESTION = GetOwner(0, "stream", "")


class WriterLink:
    """A Link to a write proxy that answers every request, until the link is lost."""

    def __init__(self) -> None:
        self.ended = False
        self.is_closed = False

    async def ask(self, question: Callable[[int], Question]) -> dict[str, Any]:
        if self.ended:
            raise ConnectionLostError("connection lost")
        return {"location": ADDRESS}

    def close(self) -> None:
        self.ended = self.is_closed = True


class Writer:
    """A write proxy: each attempt to open a link waits until the test decides it."""

    def __init__(self) -> None:
        self.opened: list[WriterLink] = []
        self.has_opened = asyncio.Event()
        self.attempts: asyncio.Queue[asyncio.Future[bool]] = asyncio.Queue()

    async def open(self, address: str, timeout_s: float, kind: type[ProxyConnection]) -> Any:
        attempt: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.attempts.put_nowait(attempt)
        if not await attempt:
            raise UnavailableError("refused")
        self.opened.append(WriterLink())
        self.has_opened.set()
        return self.opened[-1]


async def relay_to(writer: Writer) -> Relay:
    metadata = MemoryMetadata()
    await metadata.register_proxy(ProxyInfo(ProxyId("writer"), "write", ADDRESS, ADDRESS))
    return Relay(cast(Dialler, writer), metadata)


async def test_an_attempt_that_fails_leaves_alone_the_link_that_another_question_has_opened() -> None:
    """Otherwise that link would be known to nothing and never closed."""
    writer = Writer()
    relay = await relay_to(writer)
    async with asyncio.TaskGroup() as asking:
        asking.create_task(relay.ask(QUESTION))
        first = await writer.attempts.get()
        asking.create_task(_refused(relay))
        second = await writer.attempts.get()
        first.set_result(True)
        await writer.has_opened.wait()
        second.set_result(False)
    relay.close()
    assert [link.is_closed for link in writer.opened] == [True]


async def test_a_link_that_was_lost_is_opened_again() -> None:
    writer = Writer()
    relay = await relay_to(writer)
    async with asyncio.timeout(60), asyncio.TaskGroup() as asking:
        asking.create_task(relay.ask(QUESTION))
        (await writer.attempts.get()).set_result(True)
    writer.opened[0].ended = True
    async with asyncio.timeout(60), asyncio.TaskGroup() as asking:
        asking.create_task(relay.ask(QUESTION))
        (await writer.attempts.get()).set_result(True)
    relay.close()
    assert [link.is_closed for link in writer.opened] == [False, True]


async def test_write_proxies_near_the_client_are_asked_first() -> None:
    metadata = MemoryMetadata()
    for name, region in (("e1", "eu"), ("u1", "us"), ("u2", "us"), ("x", "default-region")):
        info = ProxyInfo(ProxyId(name), "write", f"{name}:1", location=NetworkLocation(region))
        await metadata.register_proxy(info)
    relay = Relay(cast(Dialler, Writer()), metadata, here=NetworkLocation("us"))
    for stream in map(str, range(20)):
        assert sorted(relay.addresses(stream)[:2]) == ["u1:1", "u2:1"], "of its own region, if the client names none"
        assert relay.addresses(stream, NetworkLocation("eu"))[0] == "e1:1"
        assert sorted(relay.addresses(stream, NetworkLocation("ap"))) == ["e1:1", "u1:1", "u2:1", "x:1"]


async def _refused(relay: Relay) -> None:
    with pytest.raises(StreamUnavailableError):
        await relay.ask(QUESTION)
