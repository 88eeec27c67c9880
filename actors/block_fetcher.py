"""Fetches blocks of entries from segment stores for the readers of one stream, with single flight and prefetch.

Invariants:
- one fetch serves all readers that want some of its entries; each gets no more than it asked for, and equal requests
  share one reply;
- blocks ahead of a sequential reader are prefetched, as many as the store asks for (Capabilities.reads_ahead): they are
  fetched while those before go to the reader;
- an error goes to the readers that waited for the fetch and is not cached.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from actors.entry_cache import EntryCache
from actors.feed_subscription import FeedSubscription
from actors.lac_watches import LacWatches
from actors.metadata_follower import MetadataFollower
from actors.segment_readers import SegmentReaders, segment_key
from dlog.errors import DLogError
from dlog.log.source_messages import EntriesGot, GetEntries, SourceFailed
from dlog.model.ids import EntryId
from dlog.model.segment import Segment
from dlog.stores.contract import ReaderClosedError

_UNREAD_MAX = 64  # prefetched unread blocks remembered per segment; forgetting one only stops prefetching there


class BlockFetcher:
    """Fetches of one stream's source.

    run_errand: runs a named task that ends with the source. at_once: limits fetches of the process. fetch_bytes: size
    of one.
    """

    def __init__(
        self,
        metadata: MetadataFollower,
        lacs: LacWatches,
        run_errand: Callable[[Coroutine[Any, Any, None], str], None],
        cache: EntryCache,
        readers: SegmentReaders,
        at_once: asyncio.Semaphore,
        fetch_bytes: int,
    ) -> None:
        self._metadata = metadata
        self._lacs = lacs
        self._run_errand = run_errand
        self._cache = cache
        self._readers = readers
        self._at_once = at_once
        self._fetch_bytes = fetch_bytes
        self._ways: dict[str, _PrefetchState] = {}  # by segment key

    def clear(self) -> None:
        """Forget all fetches under way."""
        self._ways.clear()

    def forget(self, key: str) -> None:
        """A segment was deleted or truncated."""
        way = self._ways.get(key)
        if way is not None:
            way.unread.clear()
            self._drop_if_idle(key)

    def answer(self, subscription: FeedSubscription, question: GetEntries) -> None:
        """Reply from the cache, or after a fetch."""
        segment, first = question.segment, question.first
        key = segment_key(segment)
        payloads = self._cache.run(key, first, question.last, question.max_bytes)
        if payloads:
            subscription.send(EntriesGot(segment.number, segment.location, first, tuple(payloads)))
            self._read_on(segment, key, first, first + len(payloads))
            return
        self._find_flight(segment, key, first, question.last).waiters.append((subscription, question))

    def _read_on(self, segment: Segment, key: str, first: int, after: int) -> None:
        """A reader got `first` .. `after` - 1 from the cache: prefetch what follows, and what follows a prefetched
        block that this reader is the first to reach."""
        self._read_ahead(segment, key, after)
        way = self._ways.get(key)
        end = way.come_to(first, after) if way is not None else None
        if end is not None:
            self._read_blocks_ahead(segment, key, end)

    def _read_ahead(self, segment: Segment, key: str, first: int) -> None:
        if first <= self._lacs.lac(segment) and not self._cache.holds(key, first):
            self._find_flight(segment, key, first, first)

    def _read_blocks_ahead(self, segment: Segment, key: str, first: int) -> None:
        """Make sure that the blocks from `first` on are being fetched or unread, as far as block ends are known."""
        for _ in range(self._readers.reads_ahead(segment)):
            way = self._ways.get(key)
            end = way.end_of_block_at(first) if way is not None else None
            if end is None:
                if first > self._lacs.lac(segment) or self._cache.holds(key, first):
                    return
                end = self._find_flight(segment, key, first, first).last + 1
            first = end

    def _find_flight(self, segment: Segment, key: str, first: int, last: int) -> _InflightFetch:
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = _PrefetchState()
        flight = way.flight_over(first)
        if flight is None:
            flight = way.begin(first, max(last, self._lacs.lac(segment)))
            self._run_errand(self._fetch(segment, key, flight), f"fetch {self._metadata.stream} {key} {first}")
        return flight

    async def _fetch(self, segment: Segment, key: str, flight: _InflightFetch) -> None:
        error: DLogError | None = None
        payloads: list[bytes] = []
        try:
            async with self._at_once:
                reader = await self._readers.open(segment)
                reader.learn_lac(EntryId(flight.last))
                try:
                    payloads = await reader.read(EntryId(flight.first), EntryId(flight.last), self._fetch_bytes)
                except ReaderClosedError:
                    self._readers.discard(key, reader)
                    raise
        except DLogError as failure:
            error = failure
        finally:
            self._land(key, flight)
        if error is None:
            self.keep(segment, flight.first, payloads)
            self._ways[key].learn(payloads, self._fetch_bytes)
        after, goes_on = flight.first + len(payloads), False
        got: dict[tuple[int, int, int], EntriesGot] = {}
        for subscription, question in flight.waiters:
            if subscription.is_closed or subscription.keep(question):
                continue
            if error is not None:
                subscription.send(SourceFailed(question, error))
            elif question.first < after:
                goes_on = goes_on or question.last >= after
                same = (question.first, question.last, question.max_bytes)
                reply = got.get(same)
                if reply is None:
                    taken = cut(payloads, question.first - flight.first, question)
                    reply = got[same] = EntriesGot(segment.number, segment.location, question.first, taken)
                    self._read_ahead(segment, key, question.first + len(taken))
                subscription.send(reply)
            else:
                self.answer(subscription, question)
        if goes_on:
            self._read_blocks_ahead(segment, key, after)  # fetched while this block goes to its readers
        elif error is None and not flight.waiters:
            self._ways[key].unread.append((flight.first, after))
        self._drop_if_idle(key)

    def keep(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        """Put fetched entries into the cache, except those truncated or deleted meanwhile."""
        key = segment_key(segment)
        now = self._metadata.listed(segment.number)
        if now is None or segment_key(now) != key:
            return
        gone = max(0, now.min_entry - first)
        self._cache.put(key, first + gone, payloads[gone:])

    def _land(self, key: str, flight: _InflightFetch) -> None:
        self._ways[key].flights.remove(flight)

    def _drop_if_idle(self, key: str) -> None:
        way = self._ways.get(key)
        if way is not None and not way.flights and not way.unread:
            del self._ways[key]


class _InflightFetch:
    """One fetch of entries `first`..`last` of a segment, and the requests that wait for some of them."""

    __slots__ = ("first", "last", "waiters")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.waiters: list[tuple[FeedSubscription, GetEntries]] = []


class _PrefetchState:
    """Prefetch state of one segment: its fetches under way, and prefetched blocks that no reader has reached.

    unread: blocks as (first entry, last entry + 1). A fetch is limited to the entries of a typical block, so that the
    next one can begin before this one has come.
    """

    __slots__ = ("_block", "flights", "unread")

    def __init__(self) -> None:
        self.flights: list[_InflightFetch] = []
        self.unread: deque[tuple[int, int]] = deque(maxlen=_UNREAD_MAX)
        self._block = 0  # entries per block, estimated from the last fetch; 0: not known

    def flight_over(self, entry: int) -> _InflightFetch | None:
        for flight in self.flights:
            if flight.first <= entry <= flight.last:
                return flight
        return None

    def begin(self, first: int, last: int) -> _InflightFetch:
        """Add a fetch from `first` to the block's end, at most `last`; it stops before fetches and unread blocks."""
        if self._block:
            last = min(last, first + self._block - 1)
        taken = [flight.first for flight in self.flights] + [block[0] for block in self.unread]
        flight = _InflightFetch(first, min([last, *(begin - 1 for begin in taken if begin > first)]))
        self.flights.append(flight)
        return flight

    def end_of_block_at(self, entry: int) -> int | None:
        """Last entry + 1 of the fetch or unread block that contains `entry`; None if none does."""
        flight = self.flight_over(entry)
        if flight is not None:
            return flight.last + 1
        for first, end in self.unread:
            if first <= entry < end:
                return end
        return None

    def come_to(self, first: int, after: int) -> int | None:
        """Remove unread blocks that overlap `first` .. `after` - 1; return the end of the last one, None if none."""
        here = [block for block in self.unread if block[0] < after and first < block[1]]
        for block in here:
            self.unread.remove(block)
        return max(end for _, end in here) if here else None

    def learn(self, payloads: Sequence[bytes], block_bytes: int) -> None:
        size = sum(map(len, payloads))
        if size:
            self._block = max(1, len(payloads) * block_bytes // size)


def cut(payloads: list[bytes], at: int, question: GetEntries) -> tuple[bytes, ...]:
    """The part of a fetch's payloads that a request asked for."""
    got: list[bytes] = []
    size = 0
    for payload in payloads[at : at + question.last - question.first + 1]:
        got.append(payload)
        size += len(payload)
        if size >= question.max_bytes:
            break
    return tuple(got)
