"""Performs what a node's machine asks of the store of its write-ahead log, by the contract of segment stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from dlog.model.ids import WAL_STREAM, EntryId, Epoch, SegmentNumber
from dlog.model.object_streams import NodeEpoch, WalSegment
from dlog.objects.node_messages import WalLocation
from dlog.options import MiB
from dlog.stores.contract import (
    Buffer,
    MisconfiguredError,
    SegmentReader,
    SegmentRef,
    SegmentStore,
    SegmentWriter,
    StoreError,
    StoreUnavailableError,
)

READ_BYTES = 4 * MiB  # of a recovery's read


def wal_ref(segment: WalSegment) -> SegmentRef:
    return SegmentRef(WAL_STREAM, SegmentNumber(segment.number), segment.name)


def wal_store(stores: Mapping[str, SegmentStore], name: str) -> SegmentStore:
    """The store of a segment of a log. Raises MisconfiguredError if this process does not have it."""
    found = stores.get(name)
    if found is None:
        known = ", ".join(sorted(stores)) or "none"
        raise MisconfiguredError(
            f"a write-ahead log lies in a store that this process lacks, configure it: store={name} known={known}"
        )
    return found


class WalSegments:
    """The segments of one node's log, for one machine. store: new segments are created there. stores: all that may have
    segments of logs, by name."""

    def __init__(self, store: SegmentStore, stores: Mapping[str, SegmentStore]) -> None:
        self._store = store
        self._stores = stores
        self._writers: dict[str, SegmentWriter] = {}  # by location
        self._readers: dict[str, SegmentReader] = {}
        self._is_closed = False

    async def create(self, number: int, node_epoch: NodeEpoch) -> WalLocation:
        settings = self._store.settings.complete({})
        writer = await self._store.create(WAL_STREAM, SegmentNumber(number), Epoch(node_epoch), settings)
        self._writers[writer.name] = writer
        return WalLocation(self._store.name, writer.name)

    def append(
        self, segment: WalSegment, entry: int, parts: tuple[Buffer, ...], sink: Callable[[StoreError | None], None]
    ) -> None:
        writer = self._writers.get(segment.name)
        if writer is None:
            sink(StoreUnavailableError(f"the segment of the log is not written here: number={segment.number}"))
        else:
            writer.submit(EntryId(entry), parts, sink)

    async def seal(self, segment: WalSegment) -> None:
        writer = self._writers.pop(segment.name, None)
        if writer is not None:
            await writer.seal()

    async def recover(self, segment: WalSegment) -> int:
        """Fence it; returns its number of entries."""
        return (await wal_store(self._stores, segment.store).recover(wal_ref(segment))).end + 1

    async def read(self, segment: WalSegment, first: int, end: int) -> tuple[Buffer, ...]:
        """Entries of a recovered segment, at least one."""
        reader = self._readers.get(segment.name)
        if reader is None:
            reader = await wal_store(self._stores, segment.store).open_reader(wal_ref(segment))
            if self._is_closed:
                await reader.close()
                raise StoreUnavailableError(f"the log is not read any more: number={segment.number}")
            for name in tuple(self._readers):  # segments are read one after another
                await self._readers.pop(name).close()
            self._readers[segment.name] = reader
        return tuple(await reader.read(EntryId(first), EntryId(end - 1), READ_BYTES))

    async def delete(self, segment: WalSegment) -> None:
        writer = self._writers.pop(segment.name, None)
        if writer is not None:
            with suppress(StoreError):
                await writer.abandon()
        await wal_store(self._stores, segment.store).delete(wal_ref(segment))

    async def close(self) -> None:
        """Abandon what is written and close what is read; the segments remain."""
        self._is_closed = True
        writers, self._writers = self._writers, {}
        readers, self._readers = self._readers, {}
        for writer in writers.values():
            with suppress(StoreError):
                await writer.abandon()
        for reader in readers.values():
            await reader.close()
