"""Segments that were moved to cold storage: read, verified and deleted by their streams, and never written to.

The law of this file: what lies here is sealed for good. Nothing is created here, since a segment comes by being copied
whole and then named by its stream's metadata (dlog/spark/jobs/offload.py); so there is nobody to fence, and the end is
what the object says. Only a place that bears an object's name, below the roots that are allowed, is touched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.offloading import COLD
from dlog.model.quorum import Quorum
from dlog.stores.cold.format import ENTRY_BYTES_MAX, Row, Summary, next_entry
from dlog.stores.cold.keeping import Keeping
from dlog.stores.cold.objects import Objects
from dlog.stores.cold.options import ColdOptions
from dlog.stores.cold.places import Location, parse_object
from dlog.stores.cold.reader import ColdSegmentReader, Extent, Key, Opened, Rows, Shelves
from dlog.stores.contract import (
    Capabilities,
    MisconfiguredError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentWriter,
    Verification,
)
from dlog.wire.digest import crc32c

NAME = COLD


@dataclass(slots=True)
class Scanned:
    """What was found in an object, read from its first byte to its last."""

    summary: Summary
    entries: int = 0
    records: int = 0
    payload_bytes: int = 0
    entries_crc: int = 0
    first_txid: int = -1
    last_txid: int = -1
    damaged: list[tuple[EntryId, str]] = field(default_factory=list)

    def note(self, rows: list[Row], extent: Extent) -> None:
        for entry, (row, payload) in enumerate(zip(rows, extent.payloads, strict=True), extent.first):
            if payload is None:
                self.damaged.append((EntryId(entry), "the payload's checksum does not match"))
                continue
            self.entries += 1
            self.records += row.records
            self.payload_bytes += len(payload)
            self.entries_crc = next_entry(self.entries_crc, row.length, row.crc)
            self.first_txid = self.first_txid if self.first_txid >= 0 else row.first_txid
            self.last_txid = max(self.last_txid, row.last_txid)


class ColdStore:
    """A SegmentStore: `async with ColdStore(objects, options) as store`. The objects are closed by who opened them."""

    name = NAME

    def __init__(self, objects: Objects, options: ColdOptions | None = None) -> None:
        self.capabilities = Capabilities(visible_is_final=True, entry_bytes_max=ENTRY_BYTES_MAX, is_written=False)
        self.objects = objects
        self.options = options or ColdOptions()
        self._roots = self.options.allowed()
        self._keeping: Keeping[Key, Extent | Rows] = Keeping(self.options.cache_bytes_max)
        self._shelves = Shelves(objects, self.options, self._keeping)

    async def __aenter__(self) -> ColdStore:
        await self._keeping.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._keeping.__aexit__(kind, error, trace)

    async def create(self, stream: StreamName, number: SegmentNumber, epoch: Epoch, quorum: Quorum) -> SegmentWriter:
        """Raises MisconfiguredError, always."""
        raise MisconfiguredError(
            f"nothing is written to cold storage directly: let the stream write to another store, and "
            f"`dlog pipeline offload` move its segments: stream={stream}"
        )

    async def recover(self, ref: SegmentRef, epoch: Epoch) -> EntryId:
        """The end, as it was decided before the segment came here."""
        return EntryId((await self._open(ref)).last)

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> ColdSegmentReader:
        """Raises SegmentNotFoundError, SegmentCorruptError, StoreUnavailableError, UnsupportedVersionError."""
        return ColdSegmentReader(await self._open(ref), self._shelves)

    async def stage_of(self, place: str) -> StreamName | None:
        """Of none: what lies here was in a list before it came."""
        self._location(place)
        return None

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        return EntryId((await self._open(ref)).last)

    async def delete(self, ref: SegmentRef) -> None:
        """Idempotent. Raises MisconfiguredError for what lies outside of the allowed roots, StoreUnavailableError."""
        if parse_object(ref.place) is not None:
            await self.objects.delete(self._location(ref.place))

    async def list(self) -> AsyncIterator[str]:
        """Places of all objects below the roots that were told; none if none was."""
        for root in self._roots:
            async for found in self.objects.list(root):
                if parse_object(found.place) is not None:
                    yield found.place

    async def verify(self, ref: SegmentRef) -> Verification:
        """Read the whole object and check every byte. Raises SegmentCorruptError where it is not even one."""
        opened = await self._open(ref)
        scanned = Scanned(opened.summary)
        async with aclosing(self._scan(opened, scanned)) as extents:
            async for _ in extents:
                pass
        return Verification(scanned.entries + len(scanned.damaged), tuple(scanned.damaged))

    async def scan(self, ref: SegmentRef) -> tuple[Scanned, AsyncGenerator[Extent, None]]:
        """All of an object, from its first byte to its last: what is found adds up in the first while the second is
        gone through. Raises SegmentCorruptError, then or at the end, for damage that is in no entry."""
        opened = await self._open(ref)
        scanned = Scanned(opened.summary)
        return scanned, self._scan(opened, scanned)

    async def close(self) -> None:
        """There are no writers."""

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _open(self, ref: SegmentRef) -> Opened:
        opened = await self._shelves.open(self._location(ref.place))
        head = opened.summary.head
        if (head.stream, head.number) != (ref.stream, ref.number):
            raise SegmentCorruptError(
                f"the object is another segment's: place={ref.place} wanted={ref.stream}:{ref.number} "
                f"found={head.stream}:{head.number}"
            )
        return opened

    def _location(self, place: str) -> Location:
        """Raises SegmentNotFoundError for what is no place of ours, MisconfiguredError for one that is not allowed."""
        found = parse_object(place)
        if found is None:
            raise SegmentNotFoundError(f"no place of a segment object: place={place[:200]!r}")
        if self._roots and not any(root.holds(found[0]) for root in self._roots):
            raise MisconfiguredError(f"the place lies below none of the roots of [cold]; add its root: place={place}")
        return found[0]

    async def _scan(self, opened: Opened, scanned: Scanned) -> AsyncGenerator[Extent, None]:
        summary = opened.summary
        crc = crc32c(opened.header)
        size, first = self.options.extent_bytes, 0
        rows = await opened.plan(first, opened.last, size)
        ahead = self._keeping.start(partial(opened.extent, first, rows), f"scan {opened.place}")
        try:
            while True:
                extent, of_extent = await ahead, rows
                first = extent.last + 1
                if first <= opened.last:
                    rows = await opened.plan(first, opened.last, size)
                    ahead = self._keeping.start(partial(opened.extent, first, rows), f"scan {opened.place}")
                scanned.note(of_extent, extent)
                for payload in extent.payloads:
                    crc = crc32c(payload, crc) if payload is not None else crc
                yield extent
                if first > opened.last:
                    break
        finally:
            ahead.cancel()
        at = summary.header_bytes + summary.footer.payload_bytes
        end = summary.footer.summary_at + summary.footer.summary_bytes
        while at < end:
            data = await self._shelves.fetch(opened.place, at, min(size, end - at))
            if not data:
                break
            crc = crc32c(data, crc)
            at += len(data)
        _check_whole(opened, scanned, crc)


def _check_whole(opened: Opened, scanned: Scanned, crc: int) -> None:
    """Every part of it was sound: then the sums are those that were written. Raises SegmentCorruptError."""
    footer = opened.summary.footer
    if scanned.damaged:
        return
    found = (scanned.entries, scanned.records, scanned.payload_bytes, scanned.entries_crc, crc)
    told = (footer.entries, footer.records, footer.payload_bytes, footer.entries_crc, footer.object_crc)
    if found != told:
        raise SegmentCorruptError(f"the object is not what its footer says: place={opened.place}")
