"""Keeps the LACs and ends of one stream's segments as far as they are known here, and notifies the readers at the tail.

Invariants:
- the end of a completed segment comes from its store, not from the segment list, which may be wrong;
- after notifying many tail readers the next notification waits longer and carries all confirmed meanwhile;
- an error goes to the readers that wait for it and is not kept.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from actors.fanout_pacer import FanoutPacer
from actors.feed_options import FeedOptions
from actors.feed_subscription import FeedSubscription
from actors.metadata_follower import MetadataFollower
from actors.segment_readers import SegmentReaders, segment_key
from dlog.errors import DLogError
from dlog.log.source_messages import SOURCE, SegmentLacSeen, SourceFailed, WatchLac
from dlog.machine import Fact, Received
from dlog.model.ids import NO_ENTRY, EntryId, SegmentNumber
from dlog.model.segment import Location, Segment


class LacWatches:
    """Known LACs, and the requests that wait for a higher one.

    run_errand: runs a named task that ends with the stream's source. stopping: set when no more replies are sent.
    """

    def __init__(
        self,
        metadata: MetadataFollower,
        readers: SegmentReaders,
        options: FeedOptions,
        run_errand: Callable[[Coroutine[Any, Any, None], str], None],
        stopping: asyncio.Event,
    ) -> None:
        self._metadata = metadata
        self._readers = readers
        self._run_errand = run_errand
        self._stopping = stopping
        self._lacs: dict[str, int] = {}  # by segment key
        self._ends: dict[str, EntryId] = {}  # by segment key: last entry of segments known to have ended
        self._seeking: set[str] = set()  # keys of segments whose end is being read from the store
        self._watching: list[tuple[FeedSubscription, WatchLac]] = []
        weak = weakref.proxy(self)  # the pacer has the same lifetime: no reference cycle
        self._pacer = FanoutPacer(lambda: weak.settle(), options.notify_pause_s, options.notify_pause_max_s)

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._watching)

    def lac(self, segment: Segment) -> int:
        """The segment's LAC as far as it is known here; -1 if unknown."""
        return self._lacs.get(segment_key(segment), -1)

    def knows_lac(self, segment: Segment) -> bool:
        return segment_key(segment) in self._lacs

    def knows_end(self, segment: Segment) -> bool:
        return segment_key(segment) in self._ends

    def waits_for(self, segment: Segment) -> bool:
        """Whether a request waits for this segment's LAC."""
        key = segment_key(segment)
        return any(segment_key(question.segment) == key for _, question in self._watching)

    def watch(self, subscription: FeedSubscription, question: WatchLac) -> bool:
        """Reply now if the reply is known; otherwise keep the request and return True."""
        reply = self._lac_seen(question) if self._metadata.is_known else None
        is_in_turn = reply is not None and not reply.ended and question.known >= NO_ENTRY and self._pacer.must_wait
        if reply is not None and not is_in_turn:
            subscription.send(reply)
            return False
        self._watching.append((subscription, question))
        if is_in_turn:
            self._pacer.ask()
        return True

    def learn(self, segment: Segment, lac: int, ended: bool) -> None:
        """The segment is confirmed up to `lac`; ended: that is its last entry."""
        self._metadata.note_news()
        key = segment_key(segment)
        self._lacs[key] = max(lac, self._lacs.get(key, -1))
        if ended:
            self._ends[key] = EntryId(lac)
        self._pacer.ask(at_once=ended)

    def settle(self) -> None:
        """Answer every request whose reply is known now; equal requests share one reply."""
        self._pacer.cancel()
        if not self._watching or not self._metadata.is_known or self._stopping.is_set():
            return
        left: list[tuple[FeedSubscription, WatchLac]] = []
        answered: list[tuple[FeedSubscription, Fact]] = []
        facts: dict[tuple[Location, SegmentNumber, EntryId], Fact | None] = {}
        for subscription, question in self._watching:
            asked = question.segment
            same = (asked.location, asked.number, question.known)
            if same not in facts:
                reply = self._lac_seen(question)
                facts[same] = None if reply is None else Received(SOURCE, reply)
            fact = facts[same]
            if fact is None:
                left.append((subscription, question))
            else:
                answered.append((subscription, fact))
        self._watching = left
        self._pacer.took(len(answered))
        for subscription, fact in answered:
            subscription.deliver(fact)

    def fail(self, error: DLogError, key: str | None = None) -> None:
        """Fail the requests for the segment of this key; None: all."""
        watching, self._watching = self._watching, []
        for subscription, question in watching:
            if key is None or segment_key(question.segment) == key:
                subscription.send(SourceFailed(question, error))
            else:
                self._watching.append((subscription, question))

    def detach(self, subscription: FeedSubscription) -> None:
        """Drop the requests of a reader that is gone."""
        self._watching = [(v, q) for v, q in self._watching if v is not subscription]

    def forget(self, key: str) -> None:
        """A segment was deleted or truncated."""
        self._lacs.pop(key, None)
        self._ends.pop(key, None)

    def clear(self) -> None:
        """Drop all requests; what is known of segments stays true."""
        self._watching.clear()
        self._pacer.cancel()
        self._seeking.clear()

    def _lac_seen(self, question: WatchLac) -> SegmentLacSeen | None:
        asked = question.segment
        key = segment_key(asked)
        now = self._metadata.listed(asked.number)
        if now is None or segment_key(now) != key:
            return SegmentLacSeen(asked.number, asked.location, question.known, True)
        end = self._ends.get(key)
        if now.completed:
            if end is None:
                self._seek_end(now)
                return None
            return SegmentLacSeen(asked.number, asked.location, end, True)
        lac = self._lacs.get(key)
        if lac is not None and (lac > question.known or end is not None):
            return SegmentLacSeen(asked.number, asked.location, EntryId(max(lac, question.known)), end is not None)
        return None

    def _seek_end(self, segment: Segment) -> None:
        """Start reading a completed segment's end from its store, unless under way."""
        key = segment_key(segment)
        if key not in self._seeking:
            self._seeking.add(key)
            self._run_errand(self._find_end(segment), f"find the end of {self._metadata.stream} {key}")

    async def _find_end(self, segment: Segment) -> None:
        key = segment_key(segment)
        try:
            end = await self._readers.find_end(segment)
        except DLogError as error:
            self.fail(error, key)
            return
        finally:
            self._seeking.discard(key)
        self.learn(segment, end, True)
