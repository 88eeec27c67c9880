"""A connection that forwards one client connection's requests to one other proxy, and the replies back.

Invariants:
- only request numbers are kept here; bytes wait in the transport, which reports when it is full, so that a slow
  proxy stops the reading of the client, and a slow client the reading of the proxy;
- batches are confirmed in the order they were sent;
- when the connection ends, every pending request is notified once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from dlog.client.connection import failure
from dlog.errors import ConnectionLostError, DLogError, ProtocolError, UnavailableError
from dlog.log.messages import BatchWritten
from dlog.model.dlsn import DLSN_INVALID, of
from dlog.model.ids import Txid
from dlog.model.window import WINDOW_MIN
from dlog.options import MiB
from dlog.wire.proxy import Failed, GoAway, Message, Question, Write, Written
from dlog.wire.proxy_codec import encode
from proxies.proxy_connection import ProxyConnection

OUTPUT_HIGH_BYTES = 512 * 1024  # above this unsent, `on_full` is called

Answer = Callable[[BatchWritten | DLogError], None]


class ForwardingConnection(ProxyConnection):
    """A forwarding connection. on_goaway: the peer shuts down. on_full: called with whether the output is full.
    on_end: called once, before pending requests fail."""

    frame_bytes_max = 64 * MiB  # carries entries

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.on_goaway: Callable[[], None] = _nothing
        self.on_end: Callable[[], None] = _nothing
        self.on_full: Callable[[bool], None] = _nothing_of
        self._batches: dict[int, tuple[int, Answer]] = {}  # request number -> record count, callback
        self._out: list[bytes | bytearray | memoryview] = []
        self._flush_due = False
        self._is_held = False
        self._messages_received = 0

    def write(self, batch: Write, answer: Answer) -> None:
        """Forward a batch, in order, at the end of this turn; `answer` is called once with the result."""
        if self.ended:
            answer(self._lost())
            return
        self._request += 1
        self._batches[self._request] = (batch.count, answer)
        self._send(replace(batch, request=self._request))

    def send(self, question: Question) -> None:
        """Send a message that has no reply (Credit)."""
        if not self.ended:
            self._send(question)

    def forget(self, request: int) -> None:
        """Drop a subscription that has ended."""
        self._pushed.pop(request, None)

    def hold(self, yes: bool) -> None:
        """Stop reading replies, as the client does not take them, or resume."""
        if yes is self._is_held or self._transport is None or self._transport.is_closing():
            return
        self._is_held = yes
        if yes:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def unsent_bytes(self) -> int:
        """Bytes written here that have not left."""
        return sum(map(len, self._out)) + (self._transport.get_write_buffer_size() if self._transport else 0)

    async def guard(
        self, every_s: float, timeout_s: float, slow_s: float, is_alive: Callable[[], Awaitable[bool]]
    ) -> None:
        """Return once the peer has to be given up, or the connection ended.

        Any message within timeout_s of a ping shows that the peer is alive. A peer that is silent while we read may
        have stopped reading because it has too much of our data: `lives` probes it on another connection, and if it is
        alive we wait for up to slow_s since its last message.
        """
        now_s = asyncio.get_running_loop().time
        messages, received_s = self._messages_received, now_s()
        while not self.ended:
            await asyncio.sleep(every_s)
            if not await self.ping(timeout_s) and self._messages_received == messages and not self._is_held:
                if now_s() - received_s >= slow_s or not (await is_alive() or self._messages_received != messages):
                    return
            else:
                messages, received_s = self._messages_received, now_s()

    # ---- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=OUTPUT_HIGH_BYTES)

    def pause_writing(self) -> None:
        self.on_full(True)

    def resume_writing(self) -> None:
        self.on_full(False)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _send(self, question: Question) -> None:
        self._out.extend(encode(question))
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    def _received(self, message: Message) -> None:
        self._messages_received += 1
        match message:
            case Written():
                self._on_written(message)
            case Failed() if message.request in self._batches:
                self._batches.pop(message.request)[1](failure(message))
            case GoAway():
                self.on_goaway()
            case _:
                super()._received(message)

    def _on_written(self, message: Written) -> None:
        if not 0 <= message.last - message.first < len(self._batches):
            raise ProtocolError(f"reply to more batches than were sent: first={message.first} last={message.last}")
        dlsn, window = of(*message.dlsn), message.window or WINDOW_MIN
        for request in range(message.first, message.last + 1):
            found = self._batches.pop(request, None)
            if found is None:
                raise ProtocolError(f"reply to a batch that was not sent: request={request}")
            count, answer = found
            answer(BatchWritten(dlsn, count, Txid(message.txid), message.duplicate, window))
            if dlsn != DLSN_INVALID:
                dlsn = dlsn.next_slot(count)

    def _end(self, reason: str) -> None:
        if self.ended:
            return
        self.on_end()
        super()._end(reason)
        self._out.clear()
        batches, self._batches = self._batches, {}
        for _, answer in batches.values():
            answer(self._lost())

    def _lost(self) -> ConnectionLostError:
        return ConnectionLostError(f"lost the connection to the proxy that this was forwarded to: proxy={self.address}")


def unreachable(address: str, error: UnavailableError) -> UnavailableError:
    """The error of a request that was not forwarded, and so certainly not executed."""
    return UnavailableError(f"cannot forward the request: {error.message}: proxy={address}", outcome_unknown=False)


def _nothing() -> None:
    """Do nothing."""


def _nothing_of(_: bool) -> None:
    """Do nothing."""
