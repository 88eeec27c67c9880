"""A bare client of the proxy protocol: it sends what the test says and keeps what it receives."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, TypeVar, cast

from dlog.errors import ProducerUnknownError
from dlog.wire.digest import crc32c
from dlog.wire.entry import build_record_set
from dlog.wire.proxy import (
    PROTOCOL_VERSION,
    Alter,
    Create,
    Delete,
    Done,
    Failed,
    GetIncarnation,
    HandOver,
    Hello,
    ImportSegments,
    Message,
    MoveSegment,
    Seal,
    SinkWrite,
    Truncate,
    Welcome,
    Write,
    Written,
)
from dlog.wire.proxy_codec import FrameDecoder, encode

M = TypeVar("M")
PATIENCE_S = 90.0
ANYTHING: Any = object
OF_ONE_INCARNATION = (Create, Delete, Truncate, Seal, Alter, HandOver, ImportSegments, SinkWrite, MoveSegment)
NO_INCARNATION = "none"


class Raw(asyncio.Protocol):
    """One connection. `async with Raw(address) as raw`."""

    def __init__(self, address: str, *, hello: bool = True) -> None:
        self.address = address
        self.welcome: Welcome | None = None
        self.heard: deque[Message] = deque()
        self.transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()
        self._hello = hello
        self._decoder = FrameDecoder(64 * 1024 * 1024)
        self._news = asyncio.Event()
        self._request = 100

    async def __aenter__(self) -> Raw:
        host, _, port = self.address.rpartition(":")
        await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
        if self._hello:
            self.say(Hello(1, PROTOCOL_VERSION, PROTOCOL_VERSION, "tool", "raw"))
            self.welcome = await self.hear(Welcome)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.transport is not None
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has classes of its own

    def data_received(self, data: bytes) -> None:
        self.heard.extend(self._decoder.feed(data))
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._news.set()

    def next_request(self) -> int:
        self._request += 1
        return self._request

    def say(self, *messages: Message) -> None:
        """Send messages; several leave in one piece."""
        assert self.transport is not None
        self.transport.write(b"".join(bytes(part) for message in messages for part in encode(message)))

    async def hear(self, kind: type[M], *, request: int | None = None) -> M:
        """The next message of this kind (and number); others stay for later. Raises ConnectionError at the end."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for at, message in enumerate(self.heard):
                    if isinstance(message, kind) and request in (None, getattr(message, "request", None)):
                        del self.heard[at]
                        return message
                await self.more()

    async def more(self) -> None:
        """Wait for a new message. Raises ConnectionError at the end."""
        if self.closed.is_set():
            raise ConnectionError("the proxy closed the connection")
        self._news.clear()
        await self._news.wait()

    async def ask(self, cls: type[Any], *fields: Any) -> dict[str, Any] | Failed:
        """Send a request with one answer: its result, or the failure. fields: without `incarnation` (and `deletions`),
        which get their present values."""
        if cls in OF_ONE_INCARNATION:
            stream, *rest = fields
            told = await self.incarnation(stream)
            fields = (stream, told["incarnation"] or NO_INCARNATION, *rest)
            if cls is Create:
                fields = (stream, os.urandom(12).hex(), told["deletions"], *rest)
        return await self.ask_exactly(cls, *fields)

    async def incarnation(self, stream: str) -> dict[str, Any]:
        """The incarnation that has this name now."""
        told = await self.ask_exactly(GetIncarnation, stream)
        return {"incarnation": "", "deletions": 0} if isinstance(told, Failed) else told

    async def ask_exactly(self, cls: type[Any], *fields: Any) -> dict[str, Any] | Failed:
        """Send a request with exactly these fields: its result, or the failure."""
        number = self.next_request()
        self.say(cls(number, *fields))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer: Message = await self.hear(ANYTHING, request=number)
                if isinstance(answer, Done):
                    return answer.result
                if isinstance(answer, Failed):
                    return answer


class RawProducer:
    """Batches of one producer on one connection."""

    def __init__(self, raw: Raw, stream: str, producer: bytes | None = None, sequence: int = 0) -> None:
        self.raw = raw
        self.stream = stream
        self.producer = producer or os.urandom(16)
        self.sequence = sequence
        self.since: tuple[int, int, int] | None = None
        self.incarnation: str | None = None

    def batch(self, records: list[bytes], *, retry: bool = False, txid: int | None = None) -> Write:
        """The next batch as a message; its sequence is used up."""
        body = build_record_set(records)
        message = Write(
            self.raw.next_request(),
            self.stream,
            self.producer,
            self.sequence,
            len(records),
            txid,
            crc32c(body),
            retry,
            self.since,
            incarnation=self.incarnation,
            body=body,
        )
        self.sequence += len(records)
        return message

    async def write(self, records: list[bytes], **kw: Any) -> Written | Failed:
        """Send a batch and wait for its answer."""
        message = self.batch(records, **kw)
        self.raw.say(message)
        return await self.answer(message.request)

    async def answer(self, request: int) -> Written | Failed:
        """The answer that covers this request."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for heard in self.raw.heard:
                    if isinstance(heard, Written) and heard.first <= request <= heard.last:
                        if heard.last == request:
                            self.raw.heard.remove(heard)
                        return heard
                    if isinstance(heard, Failed) and heard.request == request:
                        self.raw.heard.remove(heard)
                        return heard
                await self.raw.more()


async def write_from_many(raw: Raw, stream: str, count: int, since: tuple[int, int, int] | None = None) -> None:
    """Write one batch from each of this many new producers."""
    producers = []
    for _ in range(count):
        producer = RawProducer(raw, stream)
        producer.since = since
        producers.append(producer)
    batches = [producer.batch([b"."]) for producer in producers]
    raw.say(*batches)
    answers = [await producer.answer(batch.request) for producer, batch in zip(producers, batches, strict=True)]
    refused = [answer for answer in answers if isinstance(answer, Failed)]
    if refused:
        assert {answer.code for answer in refused} == {ProducerUnknownError.code}
        last = refused[-1].detail["since"]
        await write_from_many(raw, stream, len(refused), (last[0], last[1], last[2]))
