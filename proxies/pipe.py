"""A link that carries one client connection's questions to one other proxy, and its answers back.

The law of this room: nothing is kept here but numbers: what was asked under which number. Bytes wait in the transport
only, and both sides are told when it does not take more: a slow reader behind us stops the reading in front, and the
reverse. Batches are answered in the order they were sent; when the pipe ends every question hears so once.
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
from dlog.options import MiB
from dlog.wire.proxy import Failed, GoAway, Message, Question, Write, Written
from dlog.wire.proxy_codec import encode
from proxies.link import Link

OUTPUT_HIGH_BYTES = 512 * 1024  # unsent beyond this: whoever feeds the pipe is told to stop

Answer = Callable[[BatchWritten | DLogError], None]


class Pipe(Link):
    """on_goaway: the other side goes away. on_full: whether it takes no more. on_end: once, before anybody who waits
    hears of it."""

    frame_bytes_max = 64 * MiB  # entries come this way

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.on_goaway: Callable[[], None] = _nothing
        self.on_end: Callable[[], None] = _nothing
        self.on_full: Callable[[bool], None] = _nothing_of
        self._batches: dict[int, tuple[int, Answer]] = {}  # number -> records, who is to hear
        self._out: list[bytes | bytearray | memoryview] = []
        self._flush_due = False
        self._is_held = False
        self._heard = 0  # messages, ever

    def write(self, batch: Write, answer: Answer) -> None:
        """Hand a batch on; `answer` hears once. It leaves at the end of this turn of the loop, in order."""
        if self.ended:
            answer(self._lost())
            return
        self._request += 1
        self._batches[self._request] = (batch.count, answer)
        self._send(replace(batch, request=self._request))

    def say(self, question: Question) -> None:
        """Say what is not answered (Credit)."""
        if not self.ended:
            self._send(question)

    def forget(self, request: int) -> None:
        """Want nothing more under this number, which has ended."""
        self._pushed.pop(request, None)

    def hold(self, yes: bool) -> None:
        """Read no answers (or again): who they are for does not take them."""
        if yes is self._is_held or self._transport is None or self._transport.is_closing():
            return
        self._is_held = yes
        if yes:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def unsent_bytes(self) -> int:
        """What was handed to this pipe and has not left."""
        return sum(map(len, self._out)) + (self._transport.get_write_buffer_size() if self._transport else 0)

    async def guard(
        self, every_s: float, timeout_s: float, slow_s: float, lives: Callable[[], Awaitable[bool]]
    ) -> None:
        """Return once the other side is not to be waited for any more, or the pipe is gone.

        Whatever it says within timeout_s of a ping shows that it lives. One that is silent though we listen may have so
        much of ours that it reads no more: `lives` finds out by another way; then it is waited for, up to slow_s from
        when it was heard last.
        """
        now_s = asyncio.get_running_loop().time
        heard, heard_s = self._heard, now_s()
        while not self.ended:
            await asyncio.sleep(every_s)
            if not await self.ping(timeout_s) and self._heard == heard and not self._is_held:
                if now_s() - heard_s >= slow_s or not (await lives() or self._heard != heard):
                    return
            else:
                heard, heard_s = self._heard, now_s()

    # ---- what the transport tells -----------------------------------------------------------------------------------

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

    def _hear(self, message: Message) -> None:
        self._heard += 1
        match message:
            case Written():
                self._on_written(message)
            case Failed() if message.request in self._batches:
                self._batches.pop(message.request)[1](failure(message))
            case GoAway():
                self.on_goaway()
            case _:
                super()._hear(message)

    def _on_written(self, message: Written) -> None:
        if not 0 <= message.last - message.first < len(self._batches):
            raise ProtocolError(f"an answer to more than was asked: first={message.first} last={message.last}")
        place = of(*message.dlsn)
        for request in range(message.first, message.last + 1):
            found = self._batches.pop(request, None)
            if found is None:
                raise ProtocolError(f"an answer to a batch that was not sent: request={request}")
            count, answer = found
            answer(BatchWritten(place, count, Txid(message.txid), message.duplicate))
            if place != DLSN_INVALID:
                place = place.next_slot(count)

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
        return ConnectionLostError(f"lost the proxy that this was handed to: address={self.address}")


def unreachable(address: str, error: UnavailableError) -> UnavailableError:
    """What was to be handed on and was not: it certainly was not carried out."""
    return UnavailableError(f"cannot hand this on: {error.message}: proxy={address}", outcome_unknown=False)


def _nothing() -> None:
    """Nobody wants to know."""


def _nothing_of(_: bool) -> None:
    """Nobody wants to know."""
