"""Reads one segment, also while it is being written: finds the chunk of an entry, and looks for further chunks.

A process looks for further chunks once for all its readers of a segment (ChainView).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dlog.errors import DamagedError
from dlog.model.ids import EntryId
from dlog.objects.chain import PAGE, ChainFollower, HeadsRead, ListBehind, Listed, ReadHeads, TailFound
from dlog.stores.contract import (
    Buffer,
    ReaderClosedError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from dlog.stores.object_storage.seeking import is_span_before, search
from dlog.stores.s3_direct.chunks import Chain, ChunkStart
from dlog.wire.chunk import ChunkHead, ChunkKind

if TYPE_CHECKING:
    from dlog.stores.s3_direct.store import S3DirectStore

FOLLOWED_MAX = 16  # sequential reads of a reader that are recognised as such
STEPS_MAX = 32  # numbers of chunks that are looked at in order; the tail is searched if there are more
KNOWN_MAX = 4096  # chunks whose entries are remembered


class ChainView:
    """What this process knows of a segment: which of its chunks count, and which entries some of them have."""

    def __init__(self, store: S3DirectStore, chain: Chain) -> None:
        self.chain = chain
        self.readers = 0
        self._store = store
        self._follower = ChainFollower(1, 0)
        self._lac = -1
        self._moved = asyncio.Event()  # replaced each time it is set
        self._looking: asyncio.Future[None] | None = None
        self._firsts: list[int] = []  # of known chunks with entries, in order
        self._known: list[tuple[int, int]] = []  # number, end of the entries

    @property
    def lac(self) -> EntryId:
        return EntryId(self._lac)

    @property
    def end(self) -> EntryId | None:
        return EntryId(self._entries - 1) if self._follower.is_ended else None

    @property
    def next_number(self) -> int:
        return self._follower.next_number

    @property
    def moved(self) -> asyncio.Event:
        return self._moved

    def advance(self, found: TailFound) -> None:
        """Take over what a search for the tail found, unless more is known already."""
        self._change(ChainFollower(found.next_number, found.end, found.is_ended))

    def learn_lac(self, lac: int) -> None:
        if not self._follower.is_ended and lac > self._lac:
            self._lac = lac
            self.wake()

    def wake(self) -> None:
        """Look for further chunks now, if a call waits."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def look(self) -> None:
        """Look for further chunks. Calls at the same time share one look. Raises StoreError."""
        if self._follower.is_ended:
            return
        if self._looking is None:
            self._looking = self._store.cache.start(self._look, f"look at {self.chain.name}")
        looking = self._looking
        await asyncio.wait((looking,))
        if self._looking is looking:
            self._looking = None
        looking.result()

    async def chunk_of(self, entry: int) -> ChunkStart:
        """The chunk with an entry up to the LAC. Raises StoreError."""
        for _ in range(2):  # the look that is under way may have begun before the entry was written
            if entry < self._entries or self._follower.is_ended:
                break
            await self.look()
        if entry >= self._entries:
            raise StoreUnavailableError(
                f"the entry was reported as written, and is not found: entry={entry} folder={self.chain.folder}"
            )
        low, low_end, high, high_first = 0, 0, self.next_number, self._entries
        at = bisect_right(self._firsts, entry)
        if at:
            low, low_end = self._known[at - 1]
            if entry < low_end:
                return await self._start(low)
        if at < len(self._firsts):
            high, high_first = self._known[at][0], self._firsts[at]
        halves = False
        while (between := high - low - 1) > 0:
            number = low + 1  # reading in sequence
            if entry != low_end and halves:
                number += between // 2
            elif entry != low_end:
                number += min(between - 1, (entry - low_end) * between // max(1, high_first - low_end))
            halves = not halves
            start = await self._start(number)
            if start.head.kind is not ChunkKind.DATA:
                break
            self._learn(start.head)
            if entry < start.head.first:
                high, high_first = number, start.head.first
            elif entry >= start.head.end:
                low, low_end = number, start.head.end
            else:
                return start
        raise SegmentCorruptError(f"no chunk has the entry: entry={entry} folder={self.chain.folder}")

    async def locate(self, first: int, last: int, least: int, *, by_time: bool) -> tuple[int, int]:
        """See SegmentReader.locate. Judges chunks by their first entries, so those of one chunk are left."""
        probed: dict[int, int] = {}  # chunk -> its first entry

        async def is_before(number: int) -> bool | None:
            try:
                start = await self._start(number)
                head = start.head
                if head.kind is not ChunkKind.DATA:
                    return None
                self._learn(head)
                if head.end <= first:
                    return True
                if head.first > last:
                    return False
                entry = probed[number] = max(first, head.first)
                payload = await self._store.reads.payload(self.chain, start, entry)
            except StoreError:
                return None
            return None if payload is None else is_span_before(self._store.span_of(payload), least, by_time=by_time)

        low, high = await search(1, self.next_number, is_before)
        before, after = probed.get(low - 1), probed.get(high)
        return first if before is None else before + 1, last if after is None else after

    # ---- internal ---------------------------------------------------------------------------------------------------

    @property
    def _entries(self) -> int:
        """How many are known to count."""
        assert self._follower.end is not None, "it is known from the beginning"
        return self._follower.end

    def _change(self, follower: ChainFollower) -> None:
        if (follower.next_number, follower.is_ended) <= (self._follower.next_number, self._follower.is_ended):
            return
        self._follower = follower
        if follower.is_ended:
            self._lac = self._entries - 1
        else:
            self._lac = max(self._lac, self._entries - 1)
        self.wake()

    async def _look(self) -> None:
        """List the chunks from the last known one on, which shows that they are there."""
        follower = self._follower
        [effect] = follower.poll()
        assert isinstance(effect, ListBehind)
        listed = await self._store.reads.numbers_behind(self.chain, effect.number - 1, PAGE)
        is_there = bool(listed) and listed[0] == effect.number
        if not is_there and await self._store.reads.index(self.chain) is None:
            raise await self._store.missing(self.chain)
        is_gap_next = len(listed) > 1 and listed[1] > listed[0] + 1
        if not is_there or is_gap_next or listed[-1] - listed[0] > STEPS_MAX:
            self.advance(await self._store.find_tail_of(self.chain))
            return
        _, effects = follower.after(Listed(effect.number, listed[1:]))
        for one in effects:
            assert isinstance(one, ReadHeads)
            try:
                heads = await self._store.reads.heads(self.chain, one.numbers)
                changed, _ = follower.after(HeadsRead(heads))
            except SegmentNotFoundError:
                raise await self._store.missing(self.chain) from None
            except DamagedError as error:
                raise SegmentCorruptError(f"{error.message}: folder={self.chain.folder}") from error
            for head in heads[: changed.next_number - one.numbers[0]]:
                self._learn(head)
            if changed.is_ended:  # unless the number of a deleted chunk was used again
                self.advance(await self._store.find_tail_of(self.chain))
            else:
                self._change(changed)

    async def _start(self, number: int) -> ChunkStart:
        try:
            return await self._store.reads.start(self.chain, number)
        except SegmentNotFoundError:
            raise await self._store.missing(self.chain) from None

    def _learn(self, head: ChunkHead) -> None:
        if head.kind is not ChunkKind.DATA:
            return
        at = bisect_right(self._firsts, head.first)
        if not at or self._firsts[at - 1] != head.first:
            self._firsts.insert(at, head.first)
            self._known.insert(at, (head.number, head.end))
        if len(self._firsts) > KNOWN_MAX:
            del self._firsts[1::2]
            del self._known[1::2]


class S3DirectReader:
    """A SegmentReader. It sees what this process's writer confirms at once, and another process's by looking at the
    storage from time to time."""

    def __init__(self, store: S3DirectStore, view: ChainView) -> None:
        self._store = store
        self._view = view
        self._awaited: OrderedDict[int, None] = OrderedDict()  # entries that a sequential reader requests next
        self._is_open = True
        view.readers += 1

    @property
    def last_confirmed(self) -> EntryId:
        return self._view.lac

    @property
    def end(self) -> EntryId | None:
        return self._view.end

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        return [bytes(view) for view in await self.read_views(first, last, max_bytes)]

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> Sequence[Buffer]:
        self._check_open()
        view, reads = self._view, self._store.reads
        last = min(last, view.lac)
        assert 0 <= first <= last, f"read above the LAC: first={first} lac={view.lac}"
        is_sequential = self._awaited.pop(first, False) is None
        found: list[memoryview] = []
        size, entry = 0, int(first)
        while entry <= last:
            chunk = await view.chunk_of(entry)
            if is_sequential:
                reads.read_ahead(view.chain, chunk, entry, view.next_number)
            try:
                more = await reads.payloads(view.chain, chunk, entry, last, max(0, max_bytes - size))
            except SegmentNotFoundError:
                raise await self._store.missing(view.chain) from None
            if found and more and size + len(more[0]) > max_bytes:
                break
            found += more
            size += sum(map(len, more))
            entry += len(more)
            if not more or not chunk.is_whole or size >= max_bytes or entry < min(chunk.head.end, last + 1):
                break
        self._check_open()
        if not found:
            raise SegmentCorruptError(f"the entry's checksum does not match: folder={view.chain.folder} entry={first}")
        self._awaited[entry] = None
        if len(self._awaited) > FOLLOWED_MAX:
            self._awaited.popitem(last=False)
        return found

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        self._check_open()
        low, high = await self._view.locate(first, last, least, by_time=by_time)
        return EntryId(low), EntryId(high)

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        wait_s = self._store.options.poll_min_s
        while True:
            self._check_open()
            view = self._view
            if view.lac > known or view.end is not None:
                return view.lac
            moved = view.moved
            await view.look()
            left_s = deadline_s - loop.time()
            if view.lac > known or view.end is not None or left_s <= 0:
                return view.lac
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, left_s)):
                    await moved.wait()
            wait_s = min(wait_s * 2, self._store.options.poll_max_s)

    async def object_of(self, entry: EntryId) -> str:
        """The location of the object with an entry up to the LAC, for tools. Raises StoreError."""
        start = await self._view.chunk_of(entry)
        return str(await self._store.reads.place_of(self._view.chain, start.head.number))

    def learn_lac(self, lac: EntryId) -> None:
        self._view.learn_lac(lac)

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._view.readers -= 1
            self._view.wake()
            self._store.reader_closed(self, self._view)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ReaderClosedError(f"the reader is closed, open another one: location={self._view.chain.name}")
