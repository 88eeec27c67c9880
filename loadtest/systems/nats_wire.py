"""A fast NATS connection: the text protocol, with many messages per write and per parse.

Only `request` waits for an answer. An unknown protocol message closes the connection.
Source: NATS's documentation of the client protocol, and of JetStream's headers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from loadtest.systems.base import CannotRunError

CONNECT_S = 10.0
_HELLO = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "echo": False, "lang": "dlog"}


class Message(NamedTuple):
    """A message of a subscription. headers: as on the wire; empty if there are none."""

    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


OnMessages = Callable[[list[Message]], None]


class Connection(asyncio.Protocol):
    """One connection. lost: called once when it closes."""

    def __init__(self, lost: Callable[[], None] = lambda: None) -> None:
        self.inbox = b"_INBOX." + secrets.token_hex(8).encode()
        self.is_open = False
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._listeners: dict[bytes, OnMessages] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[bytes, asyncio.Future[Message]] = {}
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room = asyncio.Event()
        self._room.set()

    async def open(self, address: str) -> None:
        """Raises OSError, TimeoutError."""
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
            await self._greeted
        self.is_open = True
        self.send(b"CONNECT " + json.dumps(_HELLO).encode() + b"\r\n")
        self.subscribe(self.inbox + b".ask.*", self._receive_answers)

    def subscribe(self, subject: bytes, on_messages: OnMessages) -> bytes:
        """`on_messages` gets all messages of one read at once; returns the id for `unsubscribe`."""
        number = b"%d" % next(self._numbers)
        self._listeners[number] = on_messages
        self.send(b"SUB %b %b\r\n" % (subject, number))
        return number

    def unsubscribe(self, number: bytes) -> None:
        if self._listeners.pop(number, None) is not None and self.is_open:
            self.send(b"UNSUB %b\r\n" % number)

    def publish(self, subject: bytes, replies: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        """Publish all in one write. An empty reply subject requests no reply."""
        parts: list[bytes] = []
        for reply, payload in zip(replies, payloads, strict=True):
            parts += (b"PUB %b %b %d\r\n" % (subject, reply, len(payload)), payload, b"\r\n")
        self.send(b"".join(parts))

    async def request(self, subject: str, payload: bytes, within_s: float) -> dict[str, Any]:
        """The JSON response. Raises CannotRunError without one, OSError if the connection closes."""
        token = b"%b.ask.%d" % (self.inbox, next(self._numbers))
        answer = self._asked[token] = asyncio.get_running_loop().create_future()
        try:
            self.publish(subject.encode(), [token], [payload])
            async with asyncio.timeout(within_s):
                message = await answer
        except TimeoutError:
            raise CannotRunError(f"no response from NATS within {within_s:g} s: {subject}") from None
        finally:
            self._asked.pop(token, None)
        if message.headers:
            raise CannotRunError(f"no NATS responder for {subject}")
        response = json.loads(message.payload)
        if "error" in response:
            raise CannotRunError(f"{subject}: {response['error']}")
        return dict(response)

    async def drain(self) -> None:
        """Wait until the socket accepts more."""
        await self._room.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def send(self, data: bytes) -> None:
        """Raises ConnectionError."""
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the connection to NATS is closed")
        self._transport.write(data)

    # ---- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._room.set()
        gone = ConnectionResetError("the connection to NATS is closed")
        waiting: list[asyncio.Future[Any]] = [self._greeted, *self._asked.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(gone)
        if self._greeted.done() and not self._greeted.cancelled():
            self._greeted.exception()  # mark as retrieved
        self._lost()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        received: dict[bytes, list[Message]] = {}
        at = 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            words = buffer[at:end].split(b" ")
            match words[0]:
                case b"MSG" | b"HMSG":
                    after = end + 2 + int(words[-1])
                    if len(buffer) < after + 2:
                        break
                    begin = end + 2
                    head = begin + int(words[-2]) if words[0] == b"HMSG" else begin
                    more = len(words) - (5 if words[0] == b"HMSG" else 4)
                    message = Message(words[1], words[3] if more else b"", buffer[begin:head], buffer[head:after])
                    received.setdefault(words[2], []).append(message)
                    at = after + 2
                case b"PING":
                    self.send(b"PONG\r\n")
                    at = end + 2
                case b"INFO":
                    if not self._greeted.done():
                        self._greeted.set_result(None)
                    at = end + 2
                case b"PONG" | b"+OK":
                    at = end + 2
                case _:  # -ERR, or unknown
                    self.close()
                    return
        self._buffer = buffer[at:]
        for number, messages in received.items():
            if number in self._listeners:
                self._listeners[number](messages)

    def _receive_answers(self, messages: list[Message]) -> None:
        for message in messages:
            answer = self._asked.get(message.subject)
            if answer is not None and not answer.done():
                answer.set_result(message)
