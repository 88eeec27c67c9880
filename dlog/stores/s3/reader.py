"""Reads one segment, from this process's node, from objects, and from the log of the node that wrote it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dlog.errors import TruncatedError
from dlog.model.ids import EntryId
from dlog.objects.search import find_objects
from dlog.stores.contract import (
    Buffer,
    ReaderClosedError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from dlog.stores.object_storage.seeking import is_span_before, search
from dlog.stores.s3.object_reads import ObjectGoneError, object_name
from dlog.stores.s3.places import range_of
from dlog.stores.s3.views import SegmentView
from dlog.wire.stream_object import BlockRow

if TYPE_CHECKING:
    from dlog.stores.s3.store import S3Store

OBJECTS_AT_ONCE = 8  # of one search; the first is read, the others are fetched ahead
NEWER_S = 0.5  # wait for newer metadata, before everything is tried again


class EntryReads:
    """Reads entries of segments wherever they are now, while they move from logs to objects and between objects."""

    def __init__(self, store: S3Store) -> None:
        self._store = store

    async def read(self, view: SegmentView, first: int, last: int, max_bytes: int) -> list[Buffer]:
        """Entries from `first` on, up to `last`, at least one. They are confirmed.

        Raises SegmentNotFoundError (deleted), SegmentCorruptError, StoreUnavailableError (not found anywhere until the
        deadline: metadata lag).
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._store.options.retry_s
        attempt, gone = 0, ""
        while True:
            trouble: StoreError | None = None
            try:
                found = await self._read_now(view, first, last, max_bytes)
                if found:
                    return found
            except ObjectGoneError as error:
                if gone == error.message and attempt > 1:  # the newest metadata has it still
                    raise SegmentCorruptError(f"an object of the segment is missing: {error.message}") from error
                gone = error.message
            except StoreUnavailableError as error:
                trouble = error
            if attempt and loop.time() >= end_s:
                raise trouble or StoreUnavailableError(
                    f"the entry is confirmed and not found yet, the metadata here lag: segment={view.place.name} "
                    f"entry={first} version={self._store.metadata.version}"
                )
            await self._catch_up(view, attempt, end_s - loop.time(), must_be_fresh=bool(gone))
            attempt += 1

    async def locate(self, view: SegmentView, start: int, end: int, least: int, *, by_time: bool) -> tuple[int, int]:
        """Narrow the offsets start..end-1 to those of one block, by the indexes of objects; see SegmentReader.locate.
        What is not uploaded yet is left: it is in memory, or its log was just read."""
        store, stream = self._store, view.place.stream
        try:
            image = await store.metadata.read()
            refs = find_objects(image, stream, start, end, max(1, end - start)).objects
        except (StoreError, TruncatedError):
            return start, end

        async def rows_of(at: int) -> list[tuple[BlockRow, bool]]:
            """The blocks of an object, and whether they are before the target; without those of which it is unknown.
            In a block that is cut off by `start`, the record may be among those before it."""
            ref = refs[at]
            try:
                name = object_name(image, ref.object)
                rows = await store.reads.rows(name, stream, max(start, ref.start), min(end, ref.end))
            except StoreError:
                return []
            judged = [(row, is_span_before(row.span, least, by_time=by_time)) for row in rows]
            return [(row, bool(known)) for row, known in judged if known or (known is False and row.start >= start)]

        async def is_object_before(at: int) -> bool | None:
            rows = await rows_of(at)
            return rows[-1][1] if rows else None

        low, high = await search(0, len(refs), is_object_before)
        known = [row for at in (low - 1, high) if 0 <= at < len(refs) for row in await rows_of(at)]
        before = [row.end for row, is_before in known if is_before]
        others = [row.end for row, is_before in known if not is_before]
        return min(end, max([start, *before])), min([end, *others])

    async def _catch_up(self, view: SegmentView, attempt: int, left_s: float, *, must_be_fresh: bool) -> None:
        """Learn of what is newer: first in the log, then in the metadata."""
        if attempt > 1:
            await self._store.metadata.wait_newer(max(0.0, min(left_s, NEWER_S)))
        if attempt or must_be_fresh:
            with suppress(StoreUnavailableError):
                await self._store.metadata.fresh()
        with suppress(StoreUnavailableError, SegmentNotFoundError):
            await self._store.views.follower(view).catch_up()

    async def _read_now(self, view: SegmentView, first: int, last: int, max_bytes: int) -> list[Buffer]:
        """What can be read now, by the image that is here; none: nothing."""
        store, stream = self._store, view.place.stream
        start, end = view.offset(first), view.offset(last) + 1
        if store.node is not None and (cached := store.node.cached(stream, start, end, max_bytes)):
            return [entry.payload for entry in cached]
        image = await store.metadata.read()
        if range_of(image, view.place) is not None:
            try:
                result = find_objects(image, stream, start, end, OBJECTS_AT_ONCE)
            except TruncatedError as error:
                raise _deleted(view) from error
            if result.objects:
                for ahead in result.objects[1:]:
                    store.reads.fetch_ahead(object_name(image, ahead.object), ahead, stream)
                ref = result.objects[0]
                return list(await store.reads.read(object_name(image, ref.object), ref, stream, start, end, max_bytes))
        elif stream < image.next_stream:
            raise _deleted(view)
        return await store.views.follower(view).read(stream, start, end, max_bytes)


def _deleted(view: SegmentView) -> SegmentNotFoundError:
    return SegmentNotFoundError(f"no such segment, it was deleted: location={view.place.name}")


class S3Reader:
    """A SegmentReader."""

    def __init__(self, store: S3Store, view: SegmentView) -> None:
        self._store = store
        self._view = view
        self._is_open = True

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
        view = self._view
        last = min(last, view.lac)
        assert 0 <= first <= last, f"read above the LAC: first={first} lac={view.lac}"
        found: list[Buffer] = []
        size, entry = 0, int(first)
        while entry <= last and (not found or size < max_bytes):
            try:
                more = await self._store.entries.read(view, entry, last, max(0, max_bytes - size))
            except StoreError:
                if found:
                    break  # the next read raises it
                raise
            if found and size + len(more[0]) > max_bytes:
                break
            found += more
            size += sum(map(len, more))
            entry += len(more)
        self._check_open()
        return found

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        self._check_open()
        view = self._view
        start, end = view.offset(first), view.offset(last) + 1
        low, high = await self._store.entries.locate(view, start, end, least, by_time=by_time)
        return EntryId(low - view.start), EntryId(high - 1 - view.start)

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        view = self._view
        while True:
            self._check_open()
            if view.is_deleted:
                raise _deleted(view)
            left_s = deadline_s - loop.time()
            if view.lac > known or view.end is not None or left_s <= 0:
                return view.lac
            moved = view.moved
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await moved.wait()

    def learn_lac(self, lac: EntryId) -> None:
        self._view.learn(lac)

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._view.wake()
            self._store.reader_closed(self, self._view)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ReaderClosedError(f"the reader is closed, open another one: location={self._view.place.name}")
