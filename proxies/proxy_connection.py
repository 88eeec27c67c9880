"""Client side of a connection to another proxy: requests, pings, and subscriptions to an owner's LAC.

Invariants:
- a connection opens within the given time or not at all;
- replies are matched by request number;
- when the connection ends, every pending request and subscription is notified once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self, cast

from dlog.client.connection import failure
from dlog.errors import ConnectionLostError, DLogError, ProtocolError, UnavailableError
from dlog.hostport import split_host_port
from dlog.io import local_transport
from dlog.wire.proxy import PROTOCOL_VERSION, Cancel, Done, Failed, Hello, Message, Ping, Question, Welcome
from dlog.wire.proxy_codec import FrameDecoder, encode

FRAME_BYTES_MAX = 256 * 1024  # frames between proxies are small


class ProxyConnection(asyncio.Protocol):
    """A connection, made by `Link.open`."""

    frame_bytes_max = FRAME_BYTES_MAX

    def __init__(self, address: str) -> None:
        self.address = address
        self._decoder = FrameDecoder(self.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._pushed: dict[int, tuple[Callable[[Message], None], Callable[[], None]]] = {}
        self._request = 0
        self._farewell = ""  # why the peer closes, by its last message
        self._ended = False

    @classmethod
    async def open(cls, address: str, *, role: str, name: str, timeout_s: float, preamble: bytes = b"") -> Self:
        """Connect and exchange Hello and Welcome within timeout_s.

        role, name: of this process (docs/protocol.md 1.2). preamble: sent first. Raises UnavailableError, also if the
        proxy refuses the Hello, whatever its error. A cancelled open leaves no connection.
        """
        link = cls(address)
        try:
            host, port = split_host_port(address)
            async with asyncio.timeout(timeout_s):
                await local_transport.connect(lambda: link, host, port)
                link._send_preamble(preamble)
                welcome = await link.ask(lambda n: Hello(n, PROTOCOL_VERSION, PROTOCOL_VERSION, role, name))
        except TimeoutError as error:
            link.close()
            raise UnavailableError(f"the proxy sent no Welcome within {timeout_s:g} s: address={address}") from error
        except (OSError, ValueError) as error:
            link.close()
            raise UnavailableError(f"cannot connect to the proxy: {error}: address={address}") from error
        except DLogError as error:
            link.close()
            if isinstance(error, ConnectionLostError):
                raise
            raise UnavailableError(
                f"the proxy refused the connection, {error.message}: address={address}", outcome_unknown=False
            ) from error
        except BaseException:
            link.close()
            raise
        if not isinstance(welcome, Welcome):
            link.close()
            raise UnavailableError(f"the server does not speak the proxy protocol: address={address}")
        return link

    @property
    def ended(self) -> bool:
        return self._ended

    def ask(self, question: Callable[[int], Question]) -> asyncio.Future[Any]:
        """Send a request with one reply; the future gets the map of Done, the Welcome, the peer's error or
        ConnectionLostError. Cancelling stops the wait only."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._ended:
            future.set_exception(ConnectionLostError(f"connection lost: address={self.address}"))
            return future
        self._request += 1
        self._asked[self._request] = future
        self._send(question(self._request))
        return future

    def subscribe(
        self, question: Callable[[int], Question], on_message: Callable[[Message], None], on_end: Callable[[], None]
    ) -> int:
        """Send a request for pushes; returns its number.

        on_message: called with each message of that number, Failed included. on_end: called once if the connection
        ends. Raises ConnectionLostError.
        """
        if self._ended:
            raise ConnectionLostError(f"connection lost: address={self.address}", outcome_unknown=False)
        self._request += 1
        self._pushed[self._request] = (on_message, on_end)
        self._send(question(self._request))
        return self._request

    def unsubscribe(self, request: int) -> None:
        """Cancel a subscription; idempotent."""
        if self._pushed.pop(request, None) is not None:
            self._send(Cancel(request))

    async def ping(self, timeout_s: float) -> bool:
        """Whether the peer replies to a ping within timeout_s."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.ask(Ping)
        except (TimeoutError, DLogError):
            return False
        return True

    async def watch(self, every_s: float, timeout_s: float) -> None:
        """Ping repeatedly; return when a ping got no reply or the connection ended."""
        answered = True
        while answered:
            answered = await self.ping(timeout_s)
            await asyncio.sleep(every_s if answered else 0.0)

    def close(self) -> None:
        """Abort the connection; idempotent."""
        if self._transport is not None:
            self._transport.abort()
        self._end("closed by this process")

    # ---- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own classes
        if self._ended:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._received(message)
        except ProtocolError as error:
            self._end(error.message)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(self._farewell or (str(exc) if exc else "closed by the peer"))

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _send_preamble(self, preamble: bytes) -> None:
        if preamble and self._transport is not None:
            self._transport.write(preamble)

    def _send(self, question: Question) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(encode(question)))

    def _received(self, message: Message) -> None:
        number = getattr(message, "request", 0)
        if number == 0 and isinstance(message, Failed):  # not a reply: the peer says why it closes
            self._farewell = message.message
            return
        pushed = self._pushed.get(number)
        if pushed is not None:
            pushed[0](message)
            return
        future = self._asked.pop(number, None)
        if future is None or future.done():
            return
        match message:
            case Failed():
                future.set_exception(failure(message))
            case Done():
                future.set_result(message.result)
            case _:
                future.set_result(message)

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        pushed, self._pushed = self._pushed, {}
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(ConnectionLostError(f"connection lost, {reason}: address={self.address}"))
        for _, on_end in pushed.values():
            on_end()
