"""Reads one segment: from the newest entries that the region's follower keeps, else from the topic.

The topic has the entries of all segments of the region, so a scan of one reads those of others too: at most all bytes
from its first entry to its last, without gaps of SEEK_BYTES or more behind which the mapping has an entry
(RegionMeta.add). Readers of several segments that go through the same part of a region at about the same time fetch it
once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dlog.model.ids import NO_ENTRY, EntryId
from dlog.region.messages import LostEntries
from dlog.region.reading import EntryScan
from dlog.region.topics import OffsetOutOfRangeError, Topics
from dlog.stores.contract import (
    Buffer,
    ReaderClosedError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    StoreError,
    StoreUnavailableError,
)
from dlog.stores.kafka.followed import FollowedRegion, wait_set
from dlog.stores.kafka.locations import TableLocation
from dlog.stores.kafka.options import KafkaStoreOptions

T = TypeVar("T")
Run = Callable[[str, Awaitable[T]], Awaitable[T]]

FETCH_BYTES = 1024 * 1024  # of the topic, at once
SCANS_MAX = 8  # of one reader; a read that goes on where one ended uses its scan


class TableScan:
    """Entries of one table, in order, from a sequence on up to those that were known when it was made.

    next: the sequence that `take` returns next; all below `end` can be taken.
    """

    def __init__(self, region: FollowedRegion, topics: Topics, table: int, first: int) -> None:
        meta = region.table(table)
        assert meta is not None and first < meta.next_seq_num, "only known entries are scanned"
        self._table = table
        self.next = first
        self.end = meta.next_seq_num
        self._region = region
        self._topics = topics
        self._scan: EntryScan = region.scan(table, first)
        self._ahead: deque[bytes] = deque()
        self._lost: LostEntries | None = None

    @property
    def problems(self) -> Sequence[str]:
        """Records that could not be used, one line each."""
        return self._scan.problems

    @property
    def has_fetched(self) -> bool:
        """Whether the next entry is fetched already."""
        return bool(self._ahead)

    async def take(self, last: int, bytes_max: int) -> list[bytes]:
        """Entries up to `last`: at most bytes_max bytes of them, but at least one.

        Raises SegmentCorruptError if the next one is not there, SegmentTruncatedError if it was removed by another
        program, SegmentNotFoundError if the segment was deleted, and what the topics raise.
        """
        assert self.next < self.end, "there is nothing to take"
        ahead, passed = self._ahead, self._region.passed
        while not ahead:
            if self._lost is not None:
                why = "; ".join(self._scan.problems[:3]) or "the records are not in the topic"
                raise SegmentCorruptError(
                    f"entries are lost: table={self._lost.table} sequence={self._lost.first}: {why}"
                )
            try:
                records = await self._topics.read(self._region.data_topic, self._scan.offset, FETCH_BYTES)
            except OffsetOutOfRangeError as error:
                raise await self._out_of_range(error) from None
            self._region.counts.fetched += sum(len(one.key) + len(one.value) for one in records)
            self._scan.beside = passed.beside(self._table, self._region.table)
            for one in self._scan.feed(records):
                if isinstance(one, LostEntries):
                    self._lost = one
                elif one.table != self._table:
                    passed.keep(one)
                elif self._lost is None:
                    ahead.append(one.payload)
        found: list[bytes] = []
        while ahead and self.next <= last and (not found or len(ahead[0]) <= bytes_max):
            bytes_max -= len(ahead[0])
            found.append(ahead.popleft())
            self.next += 1
        return found

    async def _out_of_range(self, error: OffsetOutOfRangeError) -> StoreError:
        """Why the records are not in the topic. The store deletes only those of tables that were dropped."""
        await self._region.catch_up()
        place = f"store=kafka region={self._region.name} table={self._table}"
        if self._region.table(self._table) is None:
            return SegmentNotFoundError(f"the segment was deleted: {place}")
        return SegmentTruncatedError(
            f"Kafka's retention, or another program, removed records of the segment: {place} first_offset={error.first}"
        )


class KafkaSegmentReader:
    """A SegmentReader. run: performs a call of the store, see KafkaStore.run."""

    def __init__(
        self,
        region: FollowedRegion,
        topics: Topics,
        location: TableLocation,
        options: KafkaStoreOptions,
        run: Callable[[str, Awaitable[object]], Awaitable[object]],
        on_closed: Callable[[KafkaSegmentReader], None],
    ) -> None:
        self.location = str(location)
        self._region = region
        self._topics = topics
        self._table = location.table
        self._options = options
        self._run = run
        self._on_closed = on_closed
        self._end: EntryId | None = None
        self._lac = NO_ENTRY
        self._scans: dict[int, TableScan] = {}  # by the sequence that each returns next
        self._closed = False
        region.users += 1
        self._look()

    @property
    def last_confirmed(self) -> EntryId:
        return self._lac

    @property
    def end(self) -> EntryId | None:
        return self._end

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        last = min(last, self._lac)
        assert 0 <= first <= last, f"read above the LAC: first={first} lac={self._lac}"
        found: list[bytes] = []

        async def read() -> None:
            found.extend(await self._read(first + 1, last + 1, max_bytes))

        await self._run(self.location, read())
        self._region.counts.delivered += sum(map(len, found))
        return found

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> Sequence[Buffer]:
        return await self.read(first, last, max_bytes)

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        """Narrow nothing: there is no index of txids and times."""
        return first, last

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        wait_s = self._options.poll_min_s
        age_s = 0.0
        while True:
            self._check_open()
            news = self._region.news()
            await self._run(self.location, self._region.read_on(age_s))
            self._look()
            left_s = deadline_s - loop.time()
            if self._lac > known or self._end is not None or left_s <= 0:
                return self._lac
            await wait_set(news, min(wait_s, left_s))
            age_s = wait_s
            wait_s = min(wait_s * 2, self._options.poll_max_s)

    def learn_lac(self, lac: EntryId) -> None:
        if self._end is None and lac > self._lac:
            self._lac = lac
            self._region.wake()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._scans.clear()
            self._region.passed.leave(self._table)
            self._region.leave()
            self._on_closed(self)
            self._region.wake()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take over what the follower knows."""
        meta = self._region.table(self._table)
        if meta is None or self._end is not None:
            return
        lac = EntryId(meta.next_seq_num - 2)
        if self._region.has_ended(self._table):
            self._end = self._lac = lac
        else:
            self._lac = max(self._lac, lac)

    async def _read(self, first: int, last: int, bytes_max: int) -> list[bytes]:
        """Read sequences."""
        self._check_open()
        region = self._region
        found = region.recent(self._table, first, last, bytes_max)
        if found:
            region.passed.leave(self._table)
            return found
        meta = region.table(self._table)
        if meta is None or meta.next_seq_num <= last:  # the owner reported more than this process has read
            await region.read_on(0.0)
            meta = region.table(self._table)
            if meta is None or meta.next_seq_num <= first:
                await region.catch_up()
                meta = region.table(self._table)
            if meta is None:
                raise SegmentNotFoundError(f"the segment was deleted: store=kafka location={self.location}")
            if meta.next_seq_num <= first:
                raise StoreUnavailableError(
                    f"the entry cannot be read yet: store=kafka location={self.location} entry={first - 1}"
                )
            last = min(last, meta.next_seq_num - 1)
            found = region.recent(self._table, first, last, bytes_max)
            if found:
                return found
        found = await self._read_old(first, last, bytes_max)
        region.passed.want(self._table, first + len(found))
        return found

    async def _read_old(self, first: int, last: int, bytes_max: int) -> list[bytes]:
        """Read sequences that are known, from what was fetched, else from the topic."""
        scan = self._scans.pop(first, None)
        if scan is not None and scan.has_fetched:
            return await self._take(scan, last, bytes_max)
        region = self._region
        region.passed.want(self._table, first)
        async with region.passed.pass_lock:
            found = region.passed.find(self._table, first, last, bytes_max)
            if found:
                return found
            return await self._take(scan or TableScan(region, self._topics, self._table, first), last, bytes_max)

    async def _take(self, scan: TableScan, last: int, bytes_max: int) -> list[bytes]:
        found = await scan.take(last, bytes_max)
        if scan.next < scan.end:
            self._scans[scan.next] = scan
        if len(self._scans) > SCANS_MAX:
            del self._scans[next(iter(self._scans))]
        return found

    def _check_open(self) -> None:
        if self._closed or self._region.actor.ended:
            raise ReaderClosedError(f"the reader is closed, open another one: location={self.location}")
