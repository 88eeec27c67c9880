"""Subscribes to owners of streams over one connection to each write proxy, shared by all streams it owns.

A connection is opened for the first stream, pinged while in use (so that a frozen owner is noticed like a dead one),
and closed after the last stream. It is not reused after an error.

Streams of a dead owner are taken over on request only. A follower waits for records that the dead owner may have
confirmed last, so it requests a new owner as a producer does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from actors.owner_feed import OwnerListener
from actors.runtime import TaskScope
from dlog.errors import (
    ConnectionLostError,
    DLogError,
    OwnedElsewhereError,
    StreamUnavailableError,
    UnavailableError,
    from_wire,
)
from dlog.model.ids import StreamName
from dlog.options import option
from dlog.wire.proxy import Entries, Failed, GoAway, Lac, Message, Ping, Tail
from proxies.dialling import Dialler
from proxies.proxy_connection import ProxyConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions:
    """Time limits for owners."""

    connect_timeout_s: float = option(1.0, sim=(0.05, 1.0))
    ping_every_s: float = option(0.5, sim=(0.05, 1.0))
    ping_timeout_s: float = option(1.0, sim=(0.05, 1.0))


class _Shared:
    """A connection of `users` streams."""

    def __init__(self) -> None:
        self.users = 0
        self.opened = asyncio.Lock()
        self.link: ProxyConnection | None = None
        self.pinging: asyncio.Task[None] | None = None


class OwnerConnections:
    """All connections of this process to owners. An Upstream (actors/owner_feed.py).

    find_owner: asks a write proxy for a stream's owner, which takes it over if there is none. Gets the stream and the
    address of the lost owner, returns the owner's address, perhaps the same. Raises DLogError.
    """

    def __init__(
        self,
        dialler: Dialler,
        options: UpstreamOptions,
        tasks: TaskScope,
        find_owner: Callable[[StreamName, str], Awaitable[str]],
    ) -> None:
        self._find_owner = find_owner
        self._dialler = dialler
        self._options = options
        self._tasks = tasks
        self._shared: dict[str, _Shared] = {}
        self._listening: dict[OwnerListener, ProxyConnection] = {}  # the connection that serves each

    def __len__(self) -> int:
        return len(self._shared)

    async def follow(
        self, address: str, stream: StreamName, listener: OwnerListener, on_open: Callable[[], None]
    ) -> None:
        """See OwnerSubscriptions.follow."""
        try:
            await self._follow(address, stream, listener, on_open)
        except UnavailableError as lost:
            listener.end()
            location = await self._location_of_owner(stream, address)
            if not location:
                raise
            raise OwnedElsewhereError(
                f"lost the connection to the owner: stream={stream} address={address}", location=location
            ) from lost

    async def _location_of_owner(self, stream: StreamName, lost: str) -> str:
        """The address of the present owner, after that at `lost` was lost; "" if it cannot be found."""
        try:
            return await self._find_owner(stream, lost)
        except OwnedElsewhereError as error:
            return error.location or ""
        except DLogError:
            return ""

    async def _follow(
        self, address: str, stream: StreamName, listener: OwnerListener, on_open: Callable[[], None]
    ) -> None:
        shared = self._shared.setdefault(address, _Shared())
        shared.users += 1
        try:
            async with shared.opened:
                if shared.link is None:
                    await self._open(address, shared)
            assert shared.link is not None
            self._listening[listener] = shared.link
            # not through a variable: the error would refer to this frame, and the frame to the error, in a cycle
            raise await self._listen(shared.link, stream, listener, on_open)
        except DLogError:
            self._discard(address, shared)
            raise
        finally:
            self._listening.pop(listener, None)
            shared.users -= 1
            if not shared.users:
                self._close(address, shared)

    async def sync(self, listener: OwnerListener) -> None:
        """See OwnerSubscriptions.sync: an owner replies to a ping after everything it sent before on the same
        connection."""
        link = self._listening.get(listener)
        if link is None:
            raise ConnectionLostError("lost the connection to the owner")
        await link.ask(Ping)

    async def _open(self, address: str, shared: _Shared) -> None:
        link = await self._dialler.open(address, self._options.connect_timeout_s, ProxyConnection)
        shared.link = link
        shared.pinging = self._tasks.start_alone(self._ping(link), name=f"ping owner {address}")

    async def _ping(self, link: ProxyConnection) -> None:
        await link.watch(self._options.ping_every_s, self._options.ping_timeout_s)
        link.close()

    async def _listen(
        self, link: ProxyConnection, stream: StreamName, listener: OwnerListener, on_open: Callable[[], None]
    ) -> DLogError:
        """Pass on what the owner sends until it ends; return why."""
        ended: asyncio.Future[DLogError] = asyncio.get_running_loop().create_future()

        def end(error: DLogError) -> None:
            if not ended.done():
                ended.set_result(error)

        def take(message: Message) -> None:
            match message:
                case Lac(_, segment, lac, is_ended):
                    listener(segment, lac, is_ended)
                case Entries(_, segment, first):
                    listener.entries(segment, first, list(map(bytes, message.payloads())))
                case Failed():
                    end(from_wire(message.code, message.message, message.location))
                case GoAway():
                    end(StreamUnavailableError("the stream's owner is shutting down"))

        number = link.subscribe(
            lambda request: Tail(request, stream),
            take,
            lambda: end(ConnectionLostError(f"lost the connection to the owner: address={link.address}")),
        )
        on_open()
        try:
            return await ended
        finally:
            link.unsubscribe(number)

    def _discard(self, address: str, shared: _Shared) -> None:
        """Forget a connection that ended; one that only lost a stream serves the others."""
        if (shared.link is None or shared.link.ended) and self._shared.get(address) is shared:
            del self._shared[address]

    def _close(self, address: str, shared: _Shared) -> None:
        if self._shared.get(address) is shared:
            del self._shared[address]
        if shared.pinging is not None:
            shared.pinging.cancel()
        if shared.link is not None:
            shared.link.close()
