"""Follows the owner of one stream while readers wait at the tail, and passes its LACs and entries on.

Invariants:
- one connection to the owner serves all readers;
- a LAC or entry sent by an owner is used for a location only after metadata, read after the LAC arrived, lists that
  location in the stream incarnation the owner was asked about: a re-created stream reuses segment numbers;
- when a reader opens, an owner's LAC is taken as the tail only if metadata read after the open names that owner's
  epoch, because a deposed owner may not know it yet. Only a proxy without ZooKeeper uses the metadata it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from actors.block_fetcher import BlockFetcher
from actors.lac_watches import LacWatches
from actors.metadata_follower import MetadataFollower
from actors.owner_feed import OwnerFeed, OwnerSubscriptions
from actors.retrying import ChangeSignal, RetryBackoff
from dlog.errors import DLogError, OwnedElsewhereError
from dlog.model.segment import Segment


class OwnerFollower:
    """The connection to a stream's owner. It works while `run` runs.

    wait_s: longest wait of a new reader for the owner's LAC. changed: metadata or the waiting readers changed.
    """

    def __init__(
        self,
        metadata: MetadataFollower,
        lacs: LacWatches,
        fetches: BlockFetcher,
        upstream: OwnerSubscriptions,
        wait_s: float,
        pauses: RetryBackoff,
        changed: ChangeSignal,
    ) -> None:
        self.is_receiving = False  # a connected owner has sent a LAC
        self._metadata = metadata
        self._lacs = lacs
        self._fetches = fetches
        self._upstream = upstream
        self._wait_s = wait_s
        self._pauses = pauses
        self._changed = changed
        self._following: OwnerFeed | None = None  # the connection on which an owner was asked
        self._tail_seekers = 0  # readers that wait for an owner to report the tail

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Connect to the owner, or to where it redirects, whenever a reader waits; until cancelled."""
        self._pauses.reset()
        metadata = self._metadata
        redirect: str | None = None
        asked: object = None  # incarnation and epoch in metadata when the redirecting proxy was asked
        while True:
            named = metadata.owner.address if metadata.owner is not None else None
            before, asked = asked, (metadata.incarnation, metadata.epoch)
            address = redirect if redirect and before == asked else named
            if address is None or not (len(self._lacs) or self._tail_seekers):
                await self._changed.wait()
                redirect = None
                continue
            feed = OwnerFeed(self, address, metadata.incarnation, metadata.epoch if address == named else None)
            error = await self._follow(tasks, feed)
            feed.end()
            redirect = None
            if feed.anything:
                self._pauses.reset()
            if isinstance(error, OwnedElsewhereError) and error.location not in (None, address):
                redirect = error.location
            if error is not None:
                metadata.read_again()
                await asyncio.sleep(self._pauses.next_s())

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Follow the owner meanwhile even if no reader waits at the tail."""
        self._tail_seekers += 1
        self._changed.notify()
        try:
            yield
        finally:
            self._tail_seekers -= 1

    async def confirms_tail(self, reads_before: int) -> bool:
        """Whether the owner has sent its LAC after this call began. reads_before: see FeedSubscription.

        Metadata read after the reader came names the owner at that time or later; an owner that claimed the stream
        after that read confirmed nothing before. Without ZooKeeper any proxy that acts as owner is believed.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._is_to_be_asked(self._following, reads_before) and self._metadata.owner is not None:
                    await self._changed.wait()
                following = self._following
                if following is None or not self._is_to_be_asked(following, reads_before):
                    return False
                await self._upstream.sync(following)
                await following.settle()
        except (TimeoutError, DLogError):
            return False
        return self._is_to_be_asked(following, reads_before)

    def moved(self) -> None:
        """The segment list changed."""
        if self._following is not None:
            self._following.moved(self._metadata.listed)

    def clear(self) -> None:
        """Forget the connection."""
        self.is_receiving, self._following = False, None

    def _is_to_be_asked(self, following: OwnerFeed | None, reads_before: int) -> bool:
        if following is None or self._metadata.newest_read <= reads_before:
            return following is not None
        return following.epoch is not None and following.epoch == self._metadata.epoch

    def _is_of_this_incarnation(self, feed: OwnerFeed) -> bool:
        """Whether the stream is the incarnation the owner was asked about; "" matches any, as it may be set later."""
        return not feed.incarnation or feed.incarnation == self._metadata.incarnation

    async def _follow(self, tasks: asyncio.TaskGroup, feed: OwnerFeed) -> DLogError | None:
        """Receive from the owner until it ends (returns the error) or metadata names another owner or incarnation
        (returns None)."""
        metadata = self._metadata
        name = f"receive from {feed.address} {metadata.stream}"
        following = tasks.create_task(self._listen(feed), name=name)
        try:
            while not following.done():
                changed = tasks.create_task(self._changed.wait(), name="change")
                try:
                    await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if metadata.value is None or not self._is_of_this_incarnation(feed):
                    return None
                if metadata.owner is not None and metadata.epoch != feed.epoch and not following.done():
                    return None
        finally:
            following.cancel()
        return following.result()

    async def _listen(self, feed: OwnerFeed) -> DLogError:
        try:
            await self._upstream.follow(feed.address, self._metadata.stream, feed, lambda: self._asked(feed))
        except DLogError as error:
            return error
        raise AssertionError("OwnerSubscriptions.follow must raise")

    def _asked(self, feed: OwnerFeed) -> None:
        self._following = feed
        self._changed.notify()

    # ---- what an owner sent: see OwnerFeedUser -----------------------------------------------------------------------

    def on_first_lac(self, feed: OwnerFeed, number: int) -> None:
        """The first LAC of segment `number` on this connection came."""
        self._metadata.refresh(partial(self._locate, feed, number))

    def _locate(self, feed: OwnerFeed, number: int, error: DLogError | None) -> None:
        if error is None:
            if self._is_of_this_incarnation(feed):  # otherwise the LAC is dropped and the connection ends
                feed.locate(number, self._metadata.listed(number))
        elif not feed.is_over:
            self.on_first_lac(feed, number)

    def on_lac(self, segment: Segment, lac: int, ended: bool) -> None:
        """A LAC is certain; it may have been received on a connection that is lost by now."""
        self.is_receiving = self._following is not None
        if not segment.completed:
            self._lacs.learn(segment, lac, ended)

    def on_entries(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        """Cache confirmed entries."""
        self._fetches.keep(segment, first, payloads)

    def on_closed(self, feed: OwnerFeed) -> None:
        """The connection is over. The store is polled until an owner sends a LAC again."""
        self.clear()
        self._changed.notify()
