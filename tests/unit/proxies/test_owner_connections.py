"""An owner's messages reach the listener of the connection they were sent on, and no other connection vouches for
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from actors.runtime import TaskScope
from dlog.errors import ConnectionLostError, OwnedElsewhereError, UnavailableError
from dlog.model.ids import StreamName
from dlog.wire.proxy import Lac, Message, Question, Tail
from proxies.dialling import Dialler
from proxies.proxy_connection import ProxyConnection
from proxies.read.owner_connections import OwnerConnections, UpstreamOptions

ADDRESS = "owner:1"
ONE, TWO = StreamName("one"), StreamName("two")


class OwnerConnection:
    """A Link whose other end is the test. It answers every ping."""

    def __init__(self) -> None:
        self.address = ADDRESS
        self.ended = False
        self.tails: dict[str, int] = {}  # request numbers, by stream
        self._pushed: dict[int, tuple[Callable[[Message], None], Callable[[], None]]] = {}

    def subscribe(
        self, question: Callable[[int], Question], hear: Callable[[Message], None], on_end: Callable[[], None]
    ) -> int:
        number = len(self._pushed) + 1
        asked = question(number)
        assert isinstance(asked, Tail)
        self.tails[asked.stream] = number
        self._pushed[number] = (hear, on_end)
        return number

    def unsubscribe(self, request: int) -> None:
        self._pushed.pop(request, None)

    async def ask(self, question: Callable[[int], Question]) -> None:
        if self.ended:
            raise ConnectionLostError("connection lost")

    async def watch(self, every_s: float, timeout_s: float) -> None:
        await asyncio.Event().wait()

    def say(self, stream: StreamName, segment: int, lac: int) -> None:
        number = self.tails[stream]
        self._pushed[number][0](Lac(number, segment, lac, False))

    def lose(self) -> None:
        self.ended = True
        for _, on_end in list(self._pushed.values()):
            on_end()

    def close(self) -> None:
        self.ended = True


class Listener:
    """A listener that notes what it receives."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.is_over = False

    def __call__(self, number: int, lac: int, ended: bool) -> None:
        self.heard.append((number, lac))

    def entries(self, number: int, first: int, payloads: Sequence[bytes]) -> None:
        raise AssertionError("no entries are sent here")

    def end(self) -> None:
        self.is_over = True


class Proxies:
    """Owners at one address, connection after connection, and the proxies that answer which owner a stream has."""

    def __init__(self) -> None:
        self.connections: list[OwnerConnection] = []
        self.location = ""
        self.answers = asyncio.Event()

    async def open(self, address: str, timeout_s: float, kind: type[ProxyConnection]) -> Any:
        self.connections.append(OwnerConnection())
        return self.connections[-1]

    async def find_owner(self, stream: StreamName, lost: str) -> str:
        await self.answers.wait()
        return self.location


@asynccontextmanager
async def links() -> AsyncIterator[tuple[OwnerConnections, Proxies, asyncio.TaskGroup]]:
    proxies = Proxies()
    async with asyncio.TaskGroup() as group, TaskScope() as tasks:
        yield OwnerConnections(cast(Dialler, proxies), UpstreamOptions(), tasks, proxies.find_owner), proxies, group


async def follow(
    links: OwnerConnections, group: asyncio.TaskGroup, stream: StreamName
) -> tuple[Listener, asyncio.Task[UnavailableError | OwnedElsewhereError]]:
    """Follow a stream; returns once the request was sent to the owner. The task's result is the end of following."""
    ear, asked = Listener(), asyncio.Event()

    async def run() -> UnavailableError | OwnedElsewhereError:
        try:
            await links.follow(ADDRESS, stream, ear, asked.set)
        except (UnavailableError, OwnedElsewhereError) as error:
            return error
        raise AssertionError("following ends with an error")

    task = group.create_task(run())
    await asked.wait()
    return ear, task


async def test_a_ping_over_another_connection_does_not_vouch_for_an_ear_whose_own_is_lost() -> None:
    """The owner confirms more and sends it on connections that are open; a reader that was shown the old tail as the
    newest would miss what others got acknowledged."""
    async with links() as (made, proxies, group):
        ear, task = await follow(made, group, ONE)
        proxies.connections[0].say(ONE, 1, 9)
        await made.sync(ear)
        proxies.connections[0].lose()
        other, other_task = await follow(made, group, TWO)
        assert len(proxies.connections) == 2
        assert ear.is_over and not task.done(), "told so while it is asked who owns the stream now"
        with pytest.raises(ConnectionLostError):
            await made.sync(ear)
        await made.sync(other)
        assert ear.heard == [(1, 9)] and not other.is_over
        proxies.location = "elsewhere:1"
        proxies.answers.set()
        error = await task
        assert isinstance(error, OwnedElsewhereError) and error.location == "elsewhere:1"
        proxies.connections[1].lose()
        await other_task
        assert len(made) == 0


async def test_followers_of_one_owner_share_a_connection() -> None:
    async with links() as (made, proxies, group):
        (one, first), (two, second) = await follow(made, group, ONE), await follow(made, group, TWO)
        (connection,) = proxies.connections
        connection.say(ONE, 1, 3)
        connection.say(TWO, 4, 5)
        await made.sync(one)
        await made.sync(two)
        assert (one.heard, two.heard) == ([(1, 3)], [(4, 5)])
        proxies.answers.set()
        connection.lose()
        assert isinstance(await first, UnavailableError) and isinstance(await second, UnavailableError)
        assert len(made) == 0
