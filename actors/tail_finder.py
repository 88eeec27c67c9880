"""Finds the tail of one stream: from its owner while there is one, and from the segment store otherwise."""

from __future__ import annotations

import asyncio

from actors.lac_watches import LacWatches
from actors.metadata_follower import MetadataFollower
from actors.owner_follower import OwnerFollower
from actors.retrying import ChangeSignal, RetryBackoff
from actors.segment_readers import SegmentReaders, segment_key
from dlog.errors import DLogError
from dlog.model.ids import EntryId
from dlog.model.segment import Segment
from dlog.stores.contract import SegmentCorruptError


class TailFinder:
    """Learns LACs for new readers, and for all readers while no owner sends any.

    wait_s: length of one long poll of the store. changed: metadata, the connection or the waiting readers changed.
    """

    def __init__(
        self,
        metadata: MetadataFollower,
        lacs: LacWatches,
        owner: OwnerFollower,
        readers: SegmentReaders,
        wait_s: float,
        pauses: RetryBackoff,
        changed: ChangeSignal,
    ) -> None:
        self._metadata = metadata
        self._lacs = lacs
        self._owner = owner
        self._readers = readers
        self._wait_s = wait_s
        self._pauses = pauses
        self._changed = changed

    async def find(self, segment: Segment, reads_before: int) -> None:
        """Find the tail for a new reader, which must see everything confirmed by now. reads_before: see
        FeedSubscription.

        Ask the owner. If it does not answer, read metadata again, since it may name another owner. If it does not,
        have the store find the tail: the LAC that an owner sent earlier may be far behind.
        Raises MetadataUnavailableError and the store's errors if the tail cannot be found.
        """
        metadata = self._metadata
        with self._owner.wanted():
            while not (confirmed := await self._owner.confirms_tail(reads_before)):
                before = metadata.owner
                if (error := await metadata.refreshed()) is not None:
                    raise error
                if metadata.owner in (None, before):
                    break
            # a LAC from an earlier poll of the store may be out of date
            if not (confirmed and self._lacs.knows_lac(segment)) and not self._is_settled(segment):
                self._lacs.learn(segment, await self._readers.find_tail(segment), False)

    def _is_settled(self, segment: Segment) -> bool:
        """Whether the segment's end is known from metadata, or it is gone."""
        now = self._metadata.listed(segment.number)
        return now is None or now.completed or segment_key(now) != segment_key(segment)

    async def poll_store(self) -> None:
        """Long-poll the store for the LAC while readers wait at the tail and no owner sends it; until cancelled. Damage
        is passed on to the readers; any other failure may be temporary, and the poll is repeated."""
        self._pauses.reset()
        while True:
            segment = self._metadata.tail
            if self._owner.is_receiving or segment is None or not self._lacs.waits_for(segment):
                await self._changed.wait()
                continue
            known = EntryId(self._lacs.lac(segment))
            try:
                reader = await self._readers.open(segment)
                lac = await reader.wait_lac(known, self._wait_s)
                ended = reader.end is not None
            except DLogError as error:
                self._readers.drop(segment_key(segment))
                if isinstance(error, SegmentCorruptError):
                    self._lacs.fail(error, segment_key(segment))
                await asyncio.sleep(self._pauses.next_s())
                continue
            self._pauses.reset()
            if ended and not self._lacs.knows_end(segment):
                self._metadata.read_again()  # it was recovered: read the new segment list
            self._lacs.learn(segment, lac, ended)
            if ended:
                await asyncio.sleep(self._pauses.longest_s())
