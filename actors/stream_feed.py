"""Serves metadata, the LAC and entries of one stream to all its readers in this process.

Requests and replies are those of dlog/log/source_messages.py. This module connects the readers to the parts that know
the replies: actors/metadata_follower.py, actors/lac_watches.py, actors/owner_follower.py, actors/tail_finder.py and
actors/block_fetcher.py. Source: segment stores 6.7.

Invariants:
- one metadata read, one connection to the owner and one fetch of a block serve all readers that wait for them;
- errors and absences go to the readers that asked and are not cached;
- a request held back for a slow reader costs only its own few bytes.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from actors.block_fetcher import BlockFetcher
from actors.entry_cache import EntryCache
from actors.feed_options import FeedOptions
from actors.feed_subscription import FeedSubscription
from actors.lac_watches import LacWatches
from actors.metadata_follower import MetadataFollower
from actors.owner_feed import OwnerSubscriptions
from actors.owner_follower import OwnerFollower
from actors.retrying import ChangeSignal, FreezeTolerantTimeout, RetryBackoff
from actors.segment_readers import SegmentReaders, segment_key
from actors.tail_finder import TailFinder
from dlog.errors import DLogError
from dlog.io.metadata import VersionedStore
from dlog.log.source_messages import GetEntries, GetStream, Locate, SourceFailed, SourceQuestion, StreamSeen, WatchLac
from dlog.machine import Fact
from dlog.model.ids import NO_ENTRY, StreamName
from dlog.model.segment import Segment, StreamMetadata
from dlog.stores.contract import SegmentStore


class StreamFeed:
    """Source of one stream. It works while `run` runs; readers may be attached only then."""

    def __init__(
        self,
        stream: StreamName,
        *,
        metadata: VersionedStore,
        stores: Mapping[str, SegmentStore],
        cache: EntryCache,
        fetches: asyncio.Semaphore,
        upstream: OwnerSubscriptions,
        options: FeedOptions,
        rng: random.Random,
    ) -> None:
        def pauses() -> RetryBackoff:
            return RetryBackoff(options.retry_min_s, options.retry_max_s, rng)

        def run_errand(errand: Coroutine[Any, Any, None], name: str) -> None:
            weak._run_errand(errand, name)

        weak = weakref.proxy(self)  # for parts with the same lifetime: no reference cycle
        self.name = f"stream_tailer {stream}"
        self._metadata_wait_s = options.metadata_wait_s
        self._subscriptions: dict[FeedSubscription, None] = {}  # in order of attachment
        self._alone_since: int | None = None  # newest metadata read when an open timed out waiting for one
        self._stopping = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._errands: set[asyncio.Task[None]] = set()  # tasks started for a waiting reader
        self._changed = ChangeSignal()  # metadata, the connection to the owner or the waiting readers changed
        self._cache = cache
        self._readers = SegmentReaders(stream, stores)
        self._metadata = MetadataFollower(
            stream, metadata, pauses(), lambda old: weak._metadata_changed(old), lambda error: weak._lacs.fail(error)
        )
        self._lacs = LacWatches(self._metadata, self._readers, options, run_errand, self._stopping)
        self._fetches = BlockFetcher(
            self._metadata, self._lacs, run_errand, cache, self._readers, fetches, options.fetch_bytes
        )
        self._owner = OwnerFollower(
            self._metadata, self._lacs, self._fetches, upstream, options.owner_wait_s, pauses(), self._changed
        )
        self._tail = TailFinder(
            self._metadata, self._lacs, self._owner, self._readers, options.store_wait_s, pauses(), self._changed
        )

    def lac(self, segment: Segment) -> int:
        """The segment's LAC as far as it is known here; -1 if unknown."""
        return self._lacs.lac(segment)

    async def run(self) -> None:
        """Serve until `stop`."""
        self._stopping.clear()
        stream = self._metadata.stream
        try:
            with self._metadata.watched():
                async with asyncio.TaskGroup() as self._tasks:
                    loops = [
                        self._tasks.create_task(self._metadata.run(), name=f"metadata of {stream}"),
                        self._tasks.create_task(self._owner.run(self._tasks), name=f"LAC from owners of {stream}"),
                        self._tasks.create_task(self._tail.poll_store(), name=f"LAC from the store of {stream}"),
                    ]
                    await self._stopping.wait()
                    # errands may wait for these loops; the readers that they work for get `on_lost`
                    for task in (*loops, *self._errands):
                        task.cancel()
        finally:
            self._begin_anew()
            await self._readers.close()

    def stop(self) -> None:
        self._stopping.set()

    def doubt(self) -> None:
        """Called periodically: if there are readers and nothing new came since the last call, read metadata again.
        Finds a new owner, a new segment or the end of one that no watch reported."""
        self._metadata.doubt(has_readers=bool(self._subscriptions) and self._tasks is not None)

    def _begin_anew(self) -> None:
        """Forget all requests and what may change; notify every reader that the source is lost."""
        self._tasks = None
        for part in (self._owner, self._lacs, self._fetches):
            part.clear()
        for subscription in tuple(self._subscriptions):
            subscription.on_lost()

    def attach(self, post: Callable[[Fact], None], on_lost: Callable[[], None]) -> FeedSubscription:
        """Connect a new reader, which closes the returned view at the end."""
        subscription = FeedSubscription(self, post, on_lost, self._metadata.reads_begun)
        self._subscriptions[subscription] = None
        return subscription

    def detach(self, subscription: FeedSubscription) -> None:
        self._subscriptions.pop(subscription, None)
        self._lacs.detach(subscription)

    def answer(self, subscription: FeedSubscription, question: SourceQuestion) -> None:
        """Reply to a request, at once or when the reply is known."""
        match question:
            case _ if self._metadata.defect is not None:
                subscription.send(SourceFailed(question, self._metadata.defect))
            case GetStream(fresh):
                self._get_stream(subscription, question, fresh)
            case _ if self._tasks is None:
                subscription.on_lost()
            case GetEntries():
                self._fetches.answer(subscription, question)
            case Locate(segment):
                name = f"locate in {self._metadata.stream} {segment.number}"
                self._run_errand(self._locate(subscription, question), name)
            case WatchLac(segment, known) if known < NO_ENTRY and not segment.completed:
                self._run_errand(self._find_tail(subscription, question), f"find the tail of {self._metadata.stream}")
            case WatchLac():
                self._watch(subscription, question)

    async def _locate(self, subscription: FeedSubscription, question: Locate) -> None:
        try:
            subscription.send(await self._readers.locate(question))
        except DLogError as error:
            subscription.send(SourceFailed(question, error))

    def _run_errand(self, errand: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task for a waiting reader; it is cancelled when `run` ends, and the reader gets `on_lost`."""
        assert self._tasks is not None, "requests come while `run` runs"
        task = self._tasks.create_task(errand, name=name)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # ---- the LAC ----------------------------------------------------------------------------------------------------

    async def _find_tail(self, subscription: FeedSubscription, question: WatchLac) -> None:
        """Find the tail for a new reader. If it cannot be found the reader gets an error and asks again."""
        try:
            await self._tail.find(question.segment, subscription.reads_before)
        except DLogError as error:
            subscription.send(SourceFailed(question, error))
        else:
            self._watch(subscription, question)

    def _watch(self, subscription: FeedSubscription, question: WatchLac) -> None:
        waits = self._lacs.watch(subscription, question)
        if waits and (len(self._lacs) == 1 or not self._owner.is_receiving):
            self._changed.notify()  # otherwise the owner's LAC is already being received, and the store is not polled

    # ---- metadata ---------------------------------------------------------------------------------------------------

    def _get_stream(self, subscription: FeedSubscription, question: GetStream, fresh: bool) -> None:
        if self._metadata.is_known and not fresh and (subscription.has_metadata or self._is_cut_off):
            self._show(subscription, fresh=False)
        elif self._metadata.tail is None or fresh:
            self._metadata.refresh(lambda error: self._show_or_fail(subscription, question, error))
        else:
            self._run_errand(
                self._show_first(subscription, question), f"metadata for a new reader of {self._metadata.stream}"
            )

    def _show(self, subscription: FeedSubscription, *, fresh: bool) -> None:
        subscription.has_metadata = True
        subscription.send(StreamSeen(self._metadata.value, fresh=fresh))

    def _show_or_fail(self, subscription: FeedSubscription, question: GetStream, error: DLogError | None) -> None:
        if error is None:
            self._show(subscription, fresh=True)
        else:
            subscription.send(SourceFailed(question, error))

    async def _show_first(self, subscription: FeedSubscription, question: GetStream) -> None:
        """Send a new reader metadata that was read after it came. Without a ZooKeeper session wait
        `metadata_wait_s`, not counting time in which this process was frozen; then send the metadata known here."""
        metadata = self._metadata
        patience = FreezeTolerantTimeout(self._metadata_wait_s)
        refreshed = metadata.refreshed()
        while metadata.newest_read <= subscription.reads_before:
            if refreshed.done():
                refreshed = metadata.refreshed()
            await patience.wait(refreshed)
            if subscription.is_closed:
                return
            if metadata.defect is not None:
                subscription.send(SourceFailed(question, metadata.defect))
                return
            is_late = patience.is_over and metadata.newest_read <= subscription.reads_before
            if is_late and not metadata.is_connected and metadata.tail is not None:
                self._alone_since = metadata.newest_read
                break
        self._show(subscription, fresh=metadata.newest_read > subscription.reads_before)

    @property
    def _is_cut_off(self) -> bool:
        """Whether readers get the metadata known here, because ZooKeeper is out of reach and an owner has the tail."""
        metadata = self._metadata
        is_alone = self._alone_since == metadata.newest_read
        return is_alone and not metadata.is_connected and metadata.tail is not None

    def _metadata_changed(self, before: StreamMetadata | None) -> None:
        """Notify the readers and the other parts."""
        value = self._metadata.value
        if before is not None:
            self._forget(before, value)
        for subscription in tuple(self._subscriptions):
            if subscription.has_metadata:
                subscription.send(StreamSeen(value, fresh=False))
        self._owner.moved()
        self._lacs.settle()
        self._changed.notify()

    def _forget(self, before: StreamMetadata, now: StreamMetadata | None) -> None:
        """Drop truncated, deleted and changed segments from the cache and from the open segment readers."""
        changes = now.readable_changes_since(before) if now is not None else ((s, None) for s in before.segments)
        for old, new in changes:
            if old is None:
                continue
            key = segment_key(old)
            if new is None or segment_key(new) != key:
                self._cache.drop(key)
                self._readers.drop(key)
                self._lacs.forget(key)
                self._fetches.forget(key)
                continue
            if new.completed and not old.completed:
                self._readers.drop(key)  # opened again as a completed segment
            if new.min_entry > old.min_entry:
                self._cache.drop(key, new.min_entry)
