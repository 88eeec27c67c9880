"""A stream's production source between metadata and a store in memory, and an owner whose messages the test sends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from actors.entry_cache import EntryCache
from actors.feed_options import FeedOptions
from actors.feed_subscription import FeedSubscription
from actors.owner_feed import OwnerListener
from actors.stream_feed import StreamFeed
from dlog.errors import ConnectionLostError
from dlog.log.source_messages import EntriesGot, GetStream, Located, SegmentLacSeen, SourceFailed, StreamSeen
from dlog.machine import Fact, Received, Versioned
from dlog.model.ids import EntryId, Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata
from dlog.stores.contract import SegmentWriter
from tests.memory_metadata import MemoryMetadata
from tests.memory_store import MemoryStore

R = TypeVar("R", StreamSeen, SegmentLacSeen, EntriesGot, Located, SourceFailed)
SHORT = FeedOptions(metadata_wait_s=0.05, owner_wait_s=0.05, store_wait_s=0.05)
STREAM = StreamName("orders")
KEY = StreamKey(STREAM)


class Words:
    """An owner that sends what the test says. `open` is set once a subscription was requested."""

    def __init__(self) -> None:
        self.hear: OwnerListener | None = None
        self.first: tuple[int, int, bool] | None = None  # sent as soon as a subscription is requested
        self.asked = asyncio.Event()
        self.lost = asyncio.Event()
        self.frozen = False  # pings are not answered

    async def follow(
        self, address: str, stream: StreamName, listener: OwnerListener, on_open: Callable[[], None]
    ) -> None:
        self.hear = listener
        on_open()
        if self.first is not None:
            listener(*self.first)
        self.asked.set()
        await self.lost.wait()
        raise ConnectionLostError("lost")

    async def sync(self, listener: OwnerListener) -> None:
        if self.lost.is_set():
            raise ConnectionLostError("lost")
        if self.frozen:
            await self.lost.wait()


class Asker:
    """A reader's machine, controlled by the test."""

    def __init__(self, source: StreamFeed) -> None:
        self._said: asyncio.Queue[Any] = asyncio.Queue()
        self.subscription: FeedSubscription = source.attach(self._post, lambda: None)

    def _post(self, fact: Fact) -> None:
        assert isinstance(fact, Received)
        self._said.put_nowait(fact.message)

    async def look(self) -> StreamMetadata | None:
        """Request the stream."""
        self.subscription.ask(GetStream())
        return (await self.hear(StreamSeen)).metadata

    async def hear(self, kind: type[R]) -> R:
        """The next answer of this kind; messages pushed in between are skipped."""
        async with asyncio.timeout(90.0):
            while not isinstance(said := await self._said.get(), kind):
                pass
        return said

    @property
    def is_quiet(self) -> bool:
        return self._said.empty()


class Stage:
    """One stream in memory, its source, its owner's messages."""

    def __init__(self, options: FeedOptions = SHORT) -> None:
        self.metadata = MemoryMetadata()
        self.store = MemoryStore()
        self.writer: SegmentWriter  # of the segment that was written last
        self.words = Words()
        self.cache = EntryCache(1 << 20)
        self.source = StreamFeed(
            STREAM,
            metadata=self.metadata,
            stores={"memory": self.store},
            cache=self.cache,
            fetches=asyncio.Semaphore(4),
            upstream=self.words,
            options=options,
            rng=random.Random(1),
        )

    async def write(self, count: int, *, owned: bool = True) -> Segment:
        """Write a segment in progress with entries b"0", b"1", ..., and put it into the stream's list."""
        writer = self.writer = await self.store.create(STREAM, SegmentNumber(1), Epoch(1), ())
        for entry in range(count):
            await writer.append(EntryId(entry), [b"%d" % entry])
        segment = Segment(number=SegmentNumber(1), name=writer.name, store="memory", first_txid=Txid(0))
        seen = await self.metadata.read(KEY)
        before = seen.value if isinstance(seen, Versioned) else StreamMetadata(name=STREAM)
        owner = Owner(epoch=Epoch(1), proxy=ProxyId("w"), address="owner:1", released=not owned)
        version = seen.version if isinstance(seen, Versioned) else None
        await self.metadata.compare_and_set(KEY, replace(before, segments=(segment,), owner=owner), version)
        return segment

    async def more(self, first: int, end: int) -> None:
        """Append, as the owner, to the segment that was written last."""
        for entry in range(first, end):
            await self.writer.append(EntryId(entry), [b"%d" % entry])

    async def change(self, segment: Segment) -> None:
        """Change one segment of the stream's list."""
        seen = await self.metadata.read(KEY)
        assert isinstance(seen, Versioned)
        await self.metadata.compare_and_set(KEY, seen.value.with_segment(segment), seen.version)

    async def truncate(self, number: int) -> None:
        """Move the truncation point to this segment."""
        seen = await self.metadata.read(KEY)
        assert isinstance(seen, Versioned)
        await self.metadata.compare_and_set(KEY, seen.value.with_truncated_before(number), seen.version)


@asynccontextmanager
async def stage(options: FeedOptions = SHORT) -> AsyncIterator[Stage]:
    built = Stage(options)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(built.source.run())
        try:
            yield built
        finally:
            built.source.stop()
            await asyncio.wait((running,))
