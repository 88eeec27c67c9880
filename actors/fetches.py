"""Entries on their way from a store, and what each who waits for them gets.

The law of this room: one fetch serves all who want some of it, each gets no more than it asked for, and who asked the
same is told the same. Two blocks of a stream are ahead of who reads on: one on its way from the store while the one
before it goes to the reader. A fetch that failed is told to those who waited for it and kept for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from actors.entry_cache import EntryCache
from actors.segment_readers import SegmentReaders, segment_key
from actors.source_view import View
from dlog.errors import DLogError
from dlog.log.read_messages import EntriesGot, GetEntries, SourceFailed
from dlog.model.ids import EntryId, StreamName
from dlog.model.segment import Segment
from dlog.stores.contract import ReaderClosedError

AHEAD = 2  # blocks that are on their way, or here and unread, before who reads on
_UNREAD_MAX = 64  # blocks of a segment that are remembered as unread; one that is forgotten only stops reading ahead


class Source(Protocol):
    """The stream whose entries are fetched."""

    @property
    def stream(self) -> StreamName: ...

    def lac(self, segment: Segment) -> int:
        """What is known to be confirmed of a segment."""
        ...

    def listed(self, number: int) -> Segment | None:
        """The segment as the list has it now, unless it is truncated."""
        ...

    def run_errand(self, errand: Coroutine[Any, Any, None], name: str) -> None:
        """Do it as long as the stream's source lives."""
        ...


class Fetches:
    """Of one stream's source. at_once: how many the process makes at the same time; fetch_bytes: of one."""

    def __init__(
        self,
        source: Source,
        cache: EntryCache,
        readers: SegmentReaders,
        at_once: asyncio.Semaphore,
        fetch_bytes: int,
    ) -> None:
        self._source = source
        self._cache = cache
        self._readers = readers
        self._at_once = at_once
        self._fetch_bytes = fetch_bytes
        self._ways: dict[str, _Way] = {}  # by segment key

    def clear(self) -> None:
        """What is under way is nobody's any more."""
        self._ways.clear()

    def forget(self, key: str) -> None:
        """A segment is gone."""
        way = self._ways.get(key)
        if way is not None:
            way.unread.clear()
            self._drop_if_idle(key)

    def answer(self, view: View, question: GetEntries) -> None:
        """From the cache, or with what a fetch brings."""
        segment, first = question.segment, question.first
        key = segment_key(segment)
        payloads = self._cache.run(key, first, question.last, question.max_bytes)
        if payloads:
            view.say(EntriesGot(segment.number, segment.place, first, tuple(payloads)))
            self._read_on(segment, key, first, first + len(payloads))
            return
        self._find_flight(segment, key, first, question.last).waiters.append((view, question))

    def _read_on(self, segment: Segment, key: str, first: int, after: int) -> None:
        """Somebody was given `first` .. `after` - 1 from the cache: what lies behind it, or behind a block that was
        read ahead and that he is the first to come to, is wanted soon."""
        self._read_ahead(segment, key, after)
        way = self._ways.get(key)
        end = way.come_to(first, after) if way is not None else None
        if end is not None:
            self._read_blocks_ahead(segment, key, end)

    def _read_ahead(self, segment: Segment, key: str, first: int) -> None:
        if first <= self._source.lac(segment) and not self._cache.holds(key, first):
            self._find_flight(segment, key, first, first)

    def _read_blocks_ahead(self, segment: Segment, key: str, first: int) -> None:
        """From `first` on AHEAD blocks are on their way or unread, as far as it is known where a block will end."""
        for _ in range(AHEAD):
            way = self._ways.get(key)
            end = way.end_of_block_at(first) if way is not None else None
            if end is None:
                if first > self._source.lac(segment) or self._cache.holds(key, first):
                    return
                end = self._find_flight(segment, key, first, first).last + 1
            first = end

    def _find_flight(self, segment: Segment, key: str, first: int, last: int) -> _Flight:
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = _Way()
        flight = way.flight_over(first)
        if flight is None:
            flight = way.begin(first, max(last, self._source.lac(segment)))
            self._source.run_errand(self._fetch(segment, key, flight), f"fetch {self._source.stream} {key} {first}")
        return flight

    async def _fetch(self, segment: Segment, key: str, flight: _Flight) -> None:
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
        for view, question in flight.waiters:
            if view.is_closed or view.keep(question):
                continue
            if error is not None:
                view.say(SourceFailed(question, error))
            elif question.first < after:
                goes_on = goes_on or question.last >= after
                same = (question.first, question.last, question.max_bytes)
                reply = got.get(same)
                if reply is None:
                    taken = cut(payloads, question.first - flight.first, question)
                    reply = got[same] = EntriesGot(segment.number, segment.place, question.first, taken)
                    self._read_ahead(segment, key, question.first + len(taken))
                view.say(reply)
            else:
                self.answer(view, question)
        if goes_on:
            self._read_blocks_ahead(segment, key, after)  # fetched while this block is on its way to who asked
        elif error is None and not flight.waiters:
            self._ways[key].unread.append((flight.first, after))
        self._drop_if_idle(key)

    def keep(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        """Put into the cache what has come, but for what was truncated or deleted while it was on its way."""
        key = segment_key(segment)
        now = self._source.listed(segment.number)
        if now is None or segment_key(now) != key:
            return
        gone = max(0, now.min_entry - first)
        self._cache.put(key, first + gone, payloads[gone:])

    def _land(self, key: str, flight: _Flight) -> None:
        self._ways[key].flights.remove(flight)

    def _drop_if_idle(self, key: str) -> None:
        way = self._ways.get(key)
        if way is not None and not way.flights and not way.unread:
            del self._ways[key]


class _Flight:
    """Entries `first`..`last` of a segment on their way from the store, and who waits for some of them."""

    __slots__ = ("first", "last", "waiters")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.waiters: list[tuple[View, GetEntries]] = []


class _Way:
    """What is on its way of one segment, and what came that nobody has looked at.

    unread: blocks as (first entry, the one behind the last). A flight ends where a block like the one before would, so
    that it is known where the next begins before this one has come.
    """

    __slots__ = ("_block", "flights", "unread")

    def __init__(self) -> None:
        self.flights: list[_Flight] = []
        self.unread: deque[tuple[int, int]] = deque(maxlen=_UNREAD_MAX)
        self._block = 0  # entries that fill a block, by what came last; 0: not known

    def flight_over(self, entry: int) -> _Flight | None:
        for flight in self.flights:
            if flight.first <= entry <= flight.last:
                return flight
        return None

    def begin(self, first: int, last: int) -> _Flight:
        """A flight from `first` to the end of a block, at most to `last`, and not into what is on its way or unread."""
        if self._block:
            last = min(last, first + self._block - 1)
        taken = [flight.first for flight in self.flights] + [block[0] for block in self.unread]
        flight = _Flight(first, min([last, *(begin - 1 for begin in taken if begin > first)]))
        self.flights.append(flight)
        return flight

    def end_of_block_at(self, entry: int) -> int | None:
        """The entry behind the block on its way, or unread, that holds `entry`; None if none does."""
        flight = self.flight_over(entry)
        if flight is not None:
            return flight.last + 1
        for first, end in self.unread:
            if first <= entry < end:
                return end
        return None

    def come_to(self, first: int, after: int) -> int | None:
        """Unread blocks that hold some of `first` .. `after` - 1 are so no more; the end of the last of them."""
        here = [block for block in self.unread if block[0] < after and first < block[1]]
        for block in here:
            self.unread.remove(block)
        return max(end for _, end in here) if here else None

    def learn(self, payloads: Sequence[bytes], block_bytes: int) -> None:
        size = sum(map(len, payloads))
        if size:
            self._block = max(1, len(payloads) * block_bytes // size)


def cut(payloads: list[bytes], at: int, question: GetEntries) -> tuple[bytes, ...]:
    """Of a fetch, what a question asked for."""
    got: list[bytes] = []
    size = 0
    for payload in payloads[at : at + question.last - question.first + 1]:
        got.append(payload)
        size += len(payload)
        if size >= question.max_bytes:
            break
    return tuple(got)
