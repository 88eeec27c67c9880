"""Tests whom a write proxy suspects for its replies to pings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dlog.errors import UnavailableError
from dlog.events import Event, ProxySuspected
from dlog.io.metadata import ProxyInfo
from dlog.model.ids import ProxyId
from proxies.detector import Detector, DetectorOptions
from tests.memory_metadata import MemoryMetadata

US, PEER = "127.0.0.1:1", "127.0.0.1:2"


class Peer:
    """Another write proxy, and the connections to it. is_late: it replies to no ping until `catch_up`."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.is_late = False
        self.replies = 0
        self._asked: list[asyncio.Future[Any]] = []

    async def open(self, address: str, timeout_s: float, kind: type) -> Peer:
        if self.is_late:
            raise UnavailableError("no Welcome")
        return self

    def ask(self, question: Callable[[int], Any]) -> asyncio.Future[Any]:
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        if not self.is_late:
            self.catch_up()
        return asked

    def catch_up(self) -> None:
        self.is_late = False
        for asked in self._asked:
            asked.set_result(dict(self.fields))
            self.replies += 1
        self._asked.clear()

    async def ping(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        pass


class Watching:
    """A detector that watches one peer. reached: what this proxy reaches."""

    def __init__(self, peer: Peer, metadata: MemoryMetadata) -> None:
        self.peer = peer
        self.reached: set[str] = set()
        self.suspicions: list[Event] = []
        options = DetectorOptions(ping_every_s=0.0, ping_timeout_s=0.001, ping_timeout_max_s=30.0)
        dialler: Any = peer
        self.detector = Detector(
            ProxyId("us"), US, metadata, options, dialler, reaches=self._reaches, on_event=self._on_event
        )

    async def _reaches(self, what: str) -> bool:
        return what in self.reached

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ProxySuspected):
            self.suspicions.append(event)

    async def hear(self, **fields: Any) -> None:
        """Wait until a reply with these fields was heard, and the ping after it was sent."""
        self.peer.fields = fields
        until = self.peer.replies + 3
        while self.peer.replies < until:  # noqa: ASYNC110 - the detector runs beside this
            await asyncio.sleep(0)

    async def suspect_late(self) -> None:
        """Let the peer reply to nothing until it is suspected."""
        self.peer.is_late = True
        while not self.detector.suspects(PEER):  # noqa: ASYNC110 - the detector runs beside this
            await asyncio.sleep(0)


@asynccontextmanager
async def watching() -> AsyncIterator[Watching]:
    metadata = MemoryMetadata()
    for number, address in enumerate((US, PEER)):
        await metadata.register_proxy(ProxyInfo(ProxyId(("us", "peer")[number]), "write", address))
    one = Watching(Peer(), metadata)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(one.detector.run(), name="detector")
        yield one
        running.cancel()


async def test_a_late_proxy_is_trusted_again_by_a_reply_that_says_that_it_lacks_what_nobody_reaches() -> None:
    async with watching() as one:
        await one.hear()
        await one.suspect_late()
        assert one.detector.unfit == [], "it may lack nothing, or what no proxy reaches"
        one.peer.fields = {"lacks": "s3"}
        one.peer.catch_up()
        await one.hear(lacks="s3")
        assert not one.detector.suspects(PEER)
        assert one.detector.unfit == []


async def test_a_proxy_is_suspected_for_what_it_lacks_as_long_as_this_one_reaches_that() -> None:
    async with watching() as one:
        one.reached = {"s3"}
        await one.hear(lacks="s3")
        assert one.detector.suspects(PEER)
        assert one.detector.unfit == [PEER]
        one.reached = set()
        await one.hear(lacks="s3")
        assert not one.detector.suspects(PEER)
        assert one.detector.unfit == []
        one.reached = {"s3"}
        await one.hear(lacks="s3")
        assert one.detector.unfit == [PEER]
        await one.hear()
        assert not one.detector.suspects(PEER)
        assert one.detector.unfit == []
        assert len(one.suspicions) == 2, "once for each time"


async def test_a_late_proxy_that_lacks_what_this_one_reaches_is_suspected_without_a_pause() -> None:
    async with watching() as one:
        one.reached = {"s3"}
        await one.suspect_late()
        one.peer.fields = {"lacks": "s3"}
        one.peer.catch_up()
        await one.hear(lacks="s3")
        assert one.detector.unfit == [PEER]
        assert len(one.suspicions) == 1


async def test_a_proxy_knows_that_a_peer_suspects_it_until_the_next_reply_or_while_it_suspects_that_peer() -> None:
    async with watching() as one:
        await one.hear(suspects=[US])
        heard = [one.detector.is_suspected]
        await one.hear(suspects=["127.0.0.1:3"])
        heard.append(one.detector.is_suspected)
        await one.hear(suspects=[US])
        heard.append(one.detector.is_suspected)
        await one.suspect_late()
        heard.append(one.detector.is_suspected)
        assert heard == [True, False, True, False]
        one.peer.catch_up()
