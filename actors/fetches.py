"""Entries on their way from a store, and what each who waits for them gets.

The law of this room: one fetch serves all who want some of it, each gets no more than it asked for, and who asked the
same is told the same. The next block of a stream is fetched while the one before is on its way to its reader. A fetch
that failed is told to those who waited for it and kept for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from actors.entry_cache import EntryCache
from actors.segment_readers import SegmentReaders, segment_key
from actors.source_view import View
from dlog.errors import DLogError
from dlog.log.read_messages import EntriesGot, GetEntries, SourceFailed
from dlog.model.ids import EntryId, StreamName
from dlog.model.segment import Segment
from dlog.stores.contract import ReaderClosedError


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
        self._flights: dict[str, list[_Flight]] = {}  # by segment key
        self._unread: dict[str, tuple[int, int]] = {}  # by segment key: block read ahead last, while nobody is there

    def clear(self) -> None:
        """What is under way is nobody's any more."""
        self._flights.clear()
        self._unread.clear()

    def forget(self, key: str) -> None:
        """A segment is gone."""
        self._unread.pop(key, None)

    def answer(self, view: View, question: GetEntries) -> None:
        """From the cache, or with what a fetch brings."""
        segment, first = question.segment, question.first
        key = segment_key(segment)
        payloads = self._cache.run(key, first, question.last, question.max_bytes)
        if payloads:
            view.say(EntriesGot(segment.number, segment.place, first, tuple(payloads)))
            after = first + len(payloads)
            self._read_ahead(segment, key, after)
            unread = self._unread.get(key)
            if unread is not None and unread[0] < after and first < unread[1]:
                del self._unread[key]
                self._read_ahead(segment, key, unread[1])
            return
        self._find_flight(segment, key, first, question.last).waiters.append((view, question))

    def _read_ahead(self, segment: Segment, key: str, first: int) -> None:
        if first <= self._source.lac(segment) and not self._cache.holds(key, first):
            self._find_flight(segment, key, first, self._source.lac(segment))

    def _find_flight(self, segment: Segment, key: str, first: int, last: int) -> _Flight:
        flights = self._flights.setdefault(key, [])
        for flight in flights:
            if flight.first <= first <= flight.last:
                return flight
        flight = _Flight(first, max(last, self._source.lac(segment)))
        flights.append(flight)
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
            self._keep(segment.number, key, flight.first, payloads)
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
            self._read_ahead(segment, key, after)  # fetched while this block is on its way to who asked
        elif error is None and not flight.waiters:
            self._unread[key] = (flight.first, after)

    def _keep(self, number: int, key: str, first: int, payloads: list[bytes]) -> None:
        """Put into the cache what was fetched, but for what was truncated or deleted while it was on its way."""
        now = self._source.listed(number)
        if now is None or segment_key(now) != key:
            return
        gone = max(0, now.min_entry - first)
        self._cache.put(key, first + gone, payloads[gone:])

    def _land(self, key: str, flight: _Flight) -> None:
        flights = self._flights[key]
        flights.remove(flight)
        if not flights:
            del self._flights[key]


class _Flight:
    """Entries `first`..`last` of a segment on their way from the store, and who waits for some of them."""

    __slots__ = ("first", "last", "waiters")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.waiters: list[tuple[View, GetEntries]] = []


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
