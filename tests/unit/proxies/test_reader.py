"""Tests a reader on one connection, with a source that has everything cached and a client that changes its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from actors.feed_subscription import FeedSubscription
from dlog.log.source_messages import (
    EntriesGot,
    GetEntries,
    GetStream,
    SegmentLacSeen,
    SourceQuestion,
    StreamSeen,
    WatchLac,
)
from dlog.model.ids import EntryId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamMetadata
from dlog.wire.entry import Record, encode_entry
from dlog.wire.proxy import Entries, Message, Read, Start
from proxies.read.reader import ReaderActor

ENTRY = b"".join(bytes(part) for part in encode_entry([Record(0, 1, 1, bytes(1000))]))
SEGMENT = Segment(number=SegmentNumber(1), name="a", first_txid=Txid(0))


class Source:
    """A thousand entries, all in the cache: every request is answered at once. It is its own registry."""

    def __init__(self) -> None:
        self.asked: list[SourceQuestion] = []
        self.subscriptions: list[FeedSubscription] = []

    @contextlib.asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[Source]:
        yield self

    def attach(self, post: Callable[[Any], None], on_lost: Callable[[], None]) -> FeedSubscription:
        subscription = FeedSubscription(self, post, on_lost, reads_before=0)
        self.subscriptions.append(subscription)
        return subscription

    def detach(self, subscription: FeedSubscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)

    def answer(self, subscription: FeedSubscription, question: SourceQuestion) -> None:
        self.asked.append(question)
        match question:
            case GetStream():
                subscription.send(StreamSeen(StreamMetadata(name=StreamName("s"), segments=(SEGMENT,)), fresh=True))
            case WatchLac():
                subscription.send(SegmentLacSeen(SEGMENT.number, SEGMENT.location, EntryId(999), False))
            case GetEntries(_, first):
                subscription.send(EntriesGot(SEGMENT.number, SEGMENT.location, first, (ENTRY,)))


class Client:
    """Keeps what it is sent; `on_entries` is called with the number of frames."""

    def __init__(self, on_entries: Callable[[int], None]) -> None:
        self.sent = 0
        self._on_entries = on_entries

    def send(self, message: Message) -> None:
        if isinstance(message, Entries):
            self.sent += 1
            self._on_entries(self.sent)


def reading(source: Source, client: Client, credit: int) -> ReaderActor:
    read = Read(1, "s", Start.START, None, credit, True)
    return ReaderActor(client, read, source, lambda: None, chunk_bytes=1)  # type: ignore[arg-type]


async def test_a_reader_that_is_cancelled_sends_nothing_of_the_credit_it_has_left() -> None:
    source = Source()
    client = Client(lambda count: reader.stop() if count == 3 else None)
    reader = reading(source, client, 400_000)
    async with asyncio.timeout(30):
        await reader.run()
    assert client.sent == 3
    assert not source.subscriptions
    assert sum(isinstance(q, GetEntries) for q in source.asked) <= 4


async def test_what_is_held_back_for_a_reader_is_dropped_when_it_is_cancelled() -> None:
    source, held = Source(), asyncio.Event()

    def hold(count: int) -> None:
        if count == 3:
            reader.hold(True)
            held.set()

    client = Client(hold)
    reader = reading(source, client, 400_000)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(reader.run(), name="reader")
        await held.wait()
        reader.stop()
        reader.hold(False)
    assert client.sent == 3


async def test_a_reader_sends_as_much_as_it_has_credit_for() -> None:
    enough = asyncio.Event()
    source = Source()
    client = Client(lambda count: enough.set() if count == 20 else None)
    reader = reading(source, client, 20 * len(ENTRY))
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(reader.run(), name="reader")
        await enough.wait()
        reader.stop()
    assert client.sent == 20
