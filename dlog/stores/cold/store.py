"""The segment store of cold storage: segments are read, verified and deleted here, never written.

dlog/spark/jobs/offload.py copies a whole segment, then the stream's metadata names the copy. So nothing needs fencing.

Invariants:
- every segment here is sealed; its end is in its object;
- only an object with a valid name, below the allowed roots, is touched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.offloading import COLD
from dlog.model.segment import StoreSettings
from dlog.stores.cold.format import ENTRY_BYTES_MAX, Row, Summary, next_entry
from dlog.stores.cold.locations import parse_object, payload_bytes
from dlog.stores.cold.options import ColdOptions
from dlog.stores.cold.reader import ColdSegmentReader, Extent, Key, ObjectReads, OpenObject, Rows
from dlog.stores.contract import (
    Capabilities,
    MisconfiguredError,
    RecoveredSegment,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStat,
    SegmentWriter,
    Verification,
)
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Objects
from dlog.stores.settings import SettingsSchema
from dlog.wire.digest import crc32c

NAME = COLD


@dataclass(slots=True)
class Scanned:
    """Totals of an object that was read from its first byte to its last."""

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
    """A SegmentStore: `async with ColdStore(objects, options) as store`. The caller closes the objects."""

    name = NAME
    settings = SettingsSchema(NAME)

    def __init__(self, objects: Objects, options: ColdOptions | None = None) -> None:
        self.capabilities = Capabilities(
            visible_is_final=True,
            entry_bytes_max=ENTRY_BYTES_MAX,
            is_written=False,
            takes_stages=False,
            reads_ahead=4,  # an object store answers after 30 ms
        )
        self.objects = objects
        self.options = options or ColdOptions()
        self._roots = self.options.allowed()
        self._cache: AsyncLruCache[Key, Extent | Rows] = AsyncLruCache(self.options.cache_bytes_max)
        self._reads = ObjectReads(objects, self.options, self._cache)

    async def __aenter__(self) -> ColdStore:
        await self._cache.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cache.__aexit__(kind, error, trace)

    def check_capacity(self, settings: StoreSettings) -> None:
        """Does nothing: no segment is created here."""

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> SegmentWriter:
        """Always raises MisconfiguredError."""
        raise MisconfiguredError(
            f"segments are not created in cold storage: let the stream write to another store, and "
            f"`dlog pipeline offload` move its segments: stream={stream}"
        )

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        """Return the end, which was decided before the segment was moved here."""
        return RecoveredSegment(EntryId((await self._open(ref)).last))

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> ColdSegmentReader:
        """Raises SegmentNotFoundError, SegmentCorruptError, StoreUnavailableError, UnsupportedVersionError."""
        return ColdSegmentReader(await self._open(ref), self._reads)

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        """With sealed_at nothing is read: the object's name shows its size, and its end was decided before."""
        self._location(ref.name)
        end = EntryId((await self._open(ref)).last) if sealed_at is None else sealed_at
        return SegmentStat(end, payload_bytes(ref.name))

    async def stage_of(self, name: str) -> StreamName | None:
        """Return None: a segment here was in a segment list before."""
        self._location(name)
        return None

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        return EntryId((await self._open(ref)).last)

    async def delete(self, ref: SegmentRef) -> None:
        """Delete the object. Idempotent. Raises MisconfiguredError outside the allowed roots, StoreUnavailableError."""
        if parse_object(ref.name) is not None:
            await self.objects.delete(self._location(ref.name))

    async def list(self) -> AsyncIterator[str]:
        """Yield the locations of all objects below the configured roots."""
        for root in self._roots:
            async for found in self.objects.list(root):
                if parse_object(found.location) is not None:
                    yield found.location

    async def verify(self, ref: SegmentRef) -> Verification:
        """Read the whole object and check every byte. Raises SegmentCorruptError if it is no segment object."""
        opened = await self._open(ref)
        scanned = Scanned(opened.summary)
        async with aclosing(self._scan(opened, scanned)) as extents:
            async for _ in extents:
                pass
        return Verification(scanned.entries + len(scanned.damaged), tuple(scanned.damaged))

    async def scan(self, ref: SegmentRef) -> tuple[Scanned, AsyncGenerator[Extent, None]]:
        """Return totals and an iterator over the whole object; the totals are complete when it ends. Raises
        SegmentCorruptError, now or at the end, for damage outside of the entries.
        """
        opened = await self._open(ref)
        scanned = Scanned(opened.summary)
        return scanned, self._scan(opened, scanned)

    async def close(self) -> None:
        """Does nothing: there are no writers."""

    # ---- internal ---------------------------------------------------------------------------------------------------

    async def _open(self, ref: SegmentRef) -> OpenObject:
        opened = await self._reads.open(self._location(ref.name))
        head = opened.summary.head
        if (head.stream, head.number) != (ref.stream, ref.number):
            raise SegmentCorruptError(
                f"the object is another segment's: location={ref.name} wanted={ref.stream}:{ref.number} "
                f"found={head.stream}:{head.number}"
            )
        return opened

    def _location(self, name: str) -> Location:
        """Parse a location. Raises SegmentNotFoundError if it is not an object's, MisconfiguredError if it is not
        allowed.
        """
        found = parse_object(name)
        if found is None:
            raise SegmentNotFoundError(f"not the location of a segment object: location={name[:200]!r}")
        if self._roots and not any(root.holds(found[0]) for root in self._roots):
            raise MisconfiguredError(
                f"the location is below none of the roots of [cold]; add its root: location={name}"
            )
        return found[0]

    async def _scan(self, opened: OpenObject, scanned: Scanned) -> AsyncGenerator[Extent, None]:
        summary = opened.summary
        crc = crc32c(opened.header)
        size, first = self.options.extent_bytes, 0
        rows = await opened.plan(first, opened.last, size)
        ahead = self._cache.start(partial(opened.extent, first, rows), f"scan {opened.location}")
        try:
            while True:
                extent, of_extent = await ahead, rows
                first = extent.last + 1
                if first <= opened.last:
                    rows = await opened.plan(first, opened.last, size)
                    ahead = self._cache.start(partial(opened.extent, first, rows), f"scan {opened.location}")
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
            data = await self._reads.fetch(opened.location, at, min(size, end - at))
            if not data:
                break
            crc = crc32c(data, crc)
            at += len(data)
        _check_whole(opened, scanned, crc)


def _check_whole(opened: OpenObject, scanned: Scanned, crc: int) -> None:
    """Compare the totals with the footer, if no entry is damaged. Raises SegmentCorruptError."""
    footer = opened.summary.footer
    if scanned.damaged:
        return
    found = (scanned.entries, scanned.records, scanned.payload_bytes, scanned.entries_crc, crc)
    expected = (footer.entries, footer.records, footer.payload_bytes, footer.entries_crc, footer.object_crc)
    if found != expected:
        raise SegmentCorruptError(f"the object's contents do not match its footer: location={opened.location}")
