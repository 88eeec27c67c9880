"""The segment store on regions, in Kafka or in a directory: the contract of dlog/stores/contract.py.

Each process writes regions of its own, so a stream can move to any other process on its own. A segment is a table; its
end is a record in the region's data topic, which a new owner of the stream appends (dlog/region/follower.py). Visible
entries are final, since a record that counts is never dropped.

Invariants:
- What Kafka does not have is told as not found only if the topics at this address are those with this cluster's
  segments: the namespace of their names is recorded in the cluster's metadata, and a topic of that name exists.
- Topics of a region are deleted only once no table is left in it and no owner can begin one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import msgpack

from dlog.errors import DLogError, InvalidRequestError
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.segment import StoreSettings
from dlog.region.items import RECORD_OVERHEAD_BYTES
from dlog.region.messages import RecoverTable, RemoveTable, RetireRegion, TableFound, Topic, TrimRegion
from dlog.region.names import topic_names
from dlog.region.topics import Topics
from dlog.stores.contract import (
    STAGE,
    Capabilities,
    RecoveredSegment,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStat,
    StoreUnavailableError,
    Verification,
)
from dlog.stores.kafka.errors import store_error
from dlog.stores.kafka.followed import FollowedRegion, FollowedRegions
from dlog.stores.kafka.locations import TableLocation, parse_location
from dlog.stores.kafka.options import KAFKA_SETTINGS, NAME, KafkaStoreOptions
from dlog.stores.kafka.owned import OwnedRegions
from dlog.stores.kafka.ports import FindNamespace, StartActor
from dlog.stores.kafka.segment_reader import KafkaSegmentReader, TableScan
from dlog.stores.kafka.segment_writer import KafkaSegmentWriter

T = TypeVar("T")

LAST_PAYLOADS = 3  # that a recovery returns, if they are at hand


def marker_topic(namespace: str) -> str:
    """The topic whose existence shows that the topics of a namespace are at this address."""
    return f"{namespace}.store"


class KafkaStore:
    """A SegmentStore: `async with KafkaStore(...) as store`. The caller closes the topics.

    batch_bytes_max: of the records of one append, as the topics take them. find_namespace: asked at the first use.
    sweeps: this process writes segments: look for regions without segments from time to time, and delete them; open a
    region for the next segment while one is recovered.
    """

    name = NAME
    settings = KAFKA_SETTINGS

    def __init__(
        self,
        topics: Topics,
        find_namespace: FindNamespace,
        start: StartActor,
        options: KafkaStoreOptions,
        rng: Random,
        *,
        batch_bytes_max: int,
        sweeps: bool = False,
    ) -> None:
        self.capabilities = Capabilities(
            visible_is_final=True, entry_bytes_max=batch_bytes_max - RECORD_OVERHEAD_BYTES, takes_stages=False
        )
        self.options = options
        self._topics = topics
        self._find_namespace = find_namespace
        self._namespace = ""  # not asked yet
        self._sweeps = sweeps
        self._tasks = asyncio.TaskGroup()
        self._sweeping: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._open = False
        self._writers: set[KafkaSegmentWriter] = set()
        self._readers: dict[str, set[KafkaSegmentReader]] = {}
        self._followed = FollowedRegions(start, options, rng)
        self._owned = OwnedRegions(
            topics,
            start,
            options,
            rng,
            batch_bytes_max=batch_bytes_max,
            spawn=self._spawn,
            on_closed=self._region_closed,
        )
        self._dropped_bytes: dict[str, int] = {}  # by region: of segments deleted since its front was

    async def __aenter__(self) -> KafkaStore:
        await self._tasks.__aenter__()
        self._open = True
        if self._sweeps:
            self._sweeping = self._tasks.create_task(self._sweep_from_time_to_time(), name="sweep regions")
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self.close()
        finally:
            await self._tasks.__aexit__(kind, error, trace)

    def check_capacity(self, settings: StoreSettings) -> None:
        """Does nothing: a segment needs no members."""

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> KafkaSegmentWriter:
        self.settings.complete(dict(settings))
        if number == STAGE:
            raise InvalidRequestError(f"a stage cannot be written to this store, use another: store={NAME}")
        described = msgpack.packb([stream, number, epoch])
        region, location = await self.run("", self._begin(described))
        writer = KafkaSegmentWriter(
            region,
            location,
            entry_bytes_max=self.capabilities.entry_bytes_max,
            on_confirmed=self._confirmed,
            on_ended=self._writer_ended,
        )
        self._writers.add(writer)
        return writer

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        location = parse_location(ref.name)
        with await self._follow(location) as region:
            if self._sweeps:  # the stream's next segment follows: a new region takes longer to open than this
                self._preparing = self._spawn(self._owned.prepare(self._namespace))
            found = await self.run(ref.name, region.ask(RecoverTable(location.table)))
            last: list[bytes] = []
            for sequence in range(found.entries, max(0, found.entries - LAST_PAYLOADS), -1):
                if not (payloads := region.recent(location.table, sequence, sequence, 0)):
                    break
                last.insert(0, payloads[0])
            return RecoveredSegment(_last_entry(found), tuple(last))

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> KafkaSegmentReader:
        location = parse_location(ref.name)
        with await self._known(ref.name, location) as region:
            await self._decide(ref.name, region, location, sealed_at)
            reader = KafkaSegmentReader(
                region, self._topics, location, self.options, self.run, on_closed=self._reader_closed
            )
        self._readers.setdefault(ref.name, set()).add(reader)
        return reader

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        location = parse_location(ref.name)
        with await self._caught_up(ref.name, location) as region:
            await self._decide(ref.name, region, location, sealed_at)
            meta = region.table(location.table)
            if meta is None or not region.has_ended(location.table):
                return SegmentStat()
            return SegmentStat(EntryId(meta.next_seq_num - 2), meta.payload_bytes)

    async def stage_of(self, name: str) -> StreamName | None:
        """Return None for a segment: no stage is written here."""
        with await self._known(name, parse_location(name)):
            return None

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        location = parse_location(ref.name)
        with await self._caught_up(ref.name, location) as region:
            meta = region.table(location.table)
            assert meta is not None, "it was looked for"
            return EntryId(meta.next_seq_num - 2)

    async def delete(self, ref: SegmentRef) -> None:
        """See SegmentStore.delete. The space is free once all segments of a region are deleted, or those at its front
        have trim_bytes."""
        try:
            location = parse_location(ref.name)
            with await self._follow(location) as region:
                if not region.is_loaded:
                    await self.run(ref.name, region.catch_up())
                known = region.table(location.table)
                await self.run(ref.name, region.ask(RemoveTable(location.table)))
                dropped = self._dropped_bytes.get(region.name, 0) + (0 if known is None else known.payload_bytes)
                self._dropped_bytes[region.name] = dropped
                is_empty = not region.state.meta.tables
        except SegmentNotFoundError:
            return
        if is_empty or dropped >= self.options.trim_bytes:
            self._spawn(self._tidy(location.region))

    async def list(self) -> AsyncIterator[str]:
        for region in await self.run("", self._regions()):
            try:
                with await self._follow(TableLocation(region, 0, 0)) as followed:
                    await self.run(region, followed.catch_up())
                    tables = [TableLocation(region, *one) for one in _begun(followed)]
            except SegmentNotFoundError:
                continue  # deleted meanwhile
            for location in tables:
                yield str(location)

    async def verify(self, ref: SegmentRef) -> Verification:
        """Read every entry and check it. The replicas are Kafka's to compare."""
        location = parse_location(ref.name)
        with await self._caught_up(ref.name, location) as region:
            meta = region.table(location.table)
            assert meta is not None, "it was looked for"
            entries = 0
            if meta.next_seq_num > 1:
                scan = TableScan(region, self._topics, location.table, 1)
                try:
                    while scan.next < scan.end:
                        entries += len(await self.run(ref.name, scan.take(scan.end - 1, 1 << 20)))
                except SegmentCorruptError as error:
                    return Verification(entries, ((EntryId(scan.next - 1), error.message),))
            return Verification(entries)

    async def close(self) -> None:
        """Abandon every writer, close every reader and region; what is confirmed remains."""
        if not self._open:
            return
        for task in (self._sweeping, self._preparing):
            if task is not None:
                task.cancel()
        for writer in tuple(self._writers):
            await writer.abandon()
        for readers in tuple(self._readers.values()):
            for reader in tuple(readers):
                await reader.close()
        self._open = False
        await self._owned.close()
        await self._followed.close()

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def run(self, location: str, work: Awaitable[T]) -> T:
        """Await a call to regions or topics; its errors become those of the contract."""
        try:
            return await work
        except DLogError as error:
            told = store_error(error, location)
            if isinstance(told, SegmentNotFoundError):
                await self._check_address()
            raise told from None

    async def _check_address(self) -> None:
        """Raise unless the topics at this address are those with this cluster's segments."""
        try:
            if await self._topics.exists(marker_topic(self._namespace)):
                return
        except DLogError as error:
            raise store_error(error, "") from None
        raise StoreUnavailableError(
            f"the topics with this cluster's segments are not at this address, correct `topics` in [kafka]: "
            f"missing={marker_topic(self._namespace)}"
        )

    async def _begin(self, described: bytes) -> Any:
        return await self._owned.begin_table(await self._ready(), described)

    async def _ready(self) -> str:
        if not self._open:
            raise StoreUnavailableError("the store is closed, open another one: store=kafka")
        if not self._namespace:
            self._namespace = await self._find_namespace()
        return self._namespace

    async def _regions(self) -> Sequence[str]:
        """The regions that have a data topic."""
        prefix = topic_names(await self._ready(), "")[Topic.DATA]
        return [name.removeprefix(prefix) for name in await self._topics.names(prefix)]

    async def _follow(self, location: TableLocation) -> FollowedRegion:
        """The follower of a segment's region; use it as a context manager at once."""
        namespace = await self.run(str(location), self._ready())
        return self._followed.get(namespace, location.region)

    async def _known(self, name: str, location: TableLocation) -> FollowedRegion:
        """The follower of a segment's region, which knows the segment. Raises SegmentNotFoundError."""
        region = await self._follow(location)
        with region:
            if not region.is_loaded or region.table(location.table) is None:
                await self._catch_up(name, region, location)
        return region

    async def _caught_up(self, name: str, location: TableLocation) -> FollowedRegion:
        """`_known`, and it knows everything that the topic has now."""
        region = await self._follow(location)
        with region:
            await self._catch_up(name, region, location)
        return region

    async def _catch_up(self, name: str, region: FollowedRegion, location: TableLocation) -> None:
        await self.run(name, region.catch_up())
        if region.table(location.table) is None:
            await self._check_address()
            raise SegmentNotFoundError(f"no such segment, it was deleted: store=kafka location={name}")

    async def _decide(
        self, name: str, region: FollowedRegion, location: TableLocation, sealed_at: EntryId | None
    ) -> None:
        """If the list says that the segment is completed, no writer may append: see that it has ended."""
        if sealed_at is None or region.has_ended(location.table):
            return
        await self.run(name, region.ask(RecoverTable(location.table)))

    # ---- regions without segments ------------------------------------------------------------------------------------

    async def _tidy(self, name: str) -> None:
        """Delete the topics of a region in which no segment is left, else the front that no segment needs."""
        namespace = await self._ready()
        region = self._followed.get(namespace, name)
        with region:
            await region.catch_up()
            if region.state.meta.tables:
                self._dropped_bytes.pop(name, None)
                await region.ask(TrimRegion())
                return
            if self._owned.is_owned(name) or not await region.ask(RetireRegion()):
                return  # a segment may begin there
        self._followed.forget(name)
        self._dropped_bytes.pop(name, None)
        paths = topic_names(namespace, name)
        for topic in (Topic.DATA, Topic.META):
            await self._topics.delete(paths[topic])

    async def sweep(self, before: frozenset[str] = frozenset()) -> frozenset[str]:
        """Delete regions without segments that were there and empty `before`, and topics left of deleted ones. Returns
        those that are empty now. Raises StoreError."""
        namespace = await self.run("", self._ready())
        names = await self.run("", self._regions())
        empty: set[str] = set()
        for name in names:
            region = self._followed.get(namespace, name)
            with region:
                try:
                    await self.run(name, region.catch_up())
                except SegmentNotFoundError:
                    continue
                if region.state.meta.tables:
                    continue
            if name not in before:
                empty.add(name)
            elif not self._owned.is_owned(name):
                await self.run(name, self._tidy(name))
        meta_prefix = topic_names(namespace, "")[Topic.META]
        metas = {path.removeprefix(meta_prefix) for path in await self.run("", self._topics.names(meta_prefix))}
        for name in metas.difference(names):  # a region without a data topic: half made, or half deleted
            if name not in before:
                empty.add(name)
            else:
                await self.run(name, self._topics.delete(f"{meta_prefix}{name}"))
        return frozenset(empty)

    async def _sweep_from_time_to_time(self) -> None:
        empty: frozenset[str] = frozenset()
        while True:
            await asyncio.sleep(self.options.sweep_s)
            try:
                empty = await self.sweep(empty)
            except DLogError:
                continue  # the next time may do

    # ---- told by parts -----------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that may fail: a later call does it again."""

        async def quietly() -> None:
            with suppress(DLogError):
                await work

        return self._tasks.create_task(quietly(), name="regions")

    def _region_closed(self, name: str) -> None:
        if self._open:
            self._spawn(self._tidy(name))

    def _confirmed(self, location: str, lac: EntryId) -> None:
        for reader in self._readers.get(location, ()):
            reader.learn_lac(lac)

    def _writer_ended(self, writer: KafkaSegmentWriter) -> None:
        self._writers.discard(writer)
        self._owned.table_ended(writer.region)

    def _reader_closed(self, reader: KafkaSegmentReader) -> None:
        readers = self._readers.get(reader.location, set())
        readers.discard(reader)
        if not readers:
            self._readers.pop(reader.location, None)


def _last_entry(found: TableFound) -> EntryId:
    return EntryId(found.entries - 1)


def _begun(region: FollowedRegion) -> list[tuple[int, int]]:
    """The tables of a region, each with the offset of the record that began it."""
    return [(table, meta.begin) for table, meta in region.state.meta.tables.items()]
