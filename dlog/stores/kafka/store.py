"""The segment store on regions, in Kafka or in a directory: the contract of dlog/stores/contract.py.

Each process writes regions of its own, so a stream can move to any other process on its own. A segment is a table; its
end is a record in the region's data topic, which a new owner of the stream appends (dlog/region/follower.py). Visible
entries are final, since a record that counts is never dropped.

Invariants:
- What Kafka does not have is reported as not found only if the topics at this address are those with this cluster's
  segments: the namespace of their names is recorded in the cluster's metadata, and a topic of that name exists.
- Topics of a region are deleted only once no table is left in it and no owner can begin one.
- A segment counts as truncated only if the topic begins behind records of it that no process of this store deleted: it
  deletes those of dropped tables only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import msgpack

from dlog.errors import DamagedError, DLogError, InvalidRequestError, UnsupportedVersionError
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.segment import StoreSettings
from dlog.options import MiB
from dlog.region.counting import TableDropped, TableEnd
from dlog.region.items import RECORD_OVERHEAD_BYTES, decode_stored, records_of
from dlog.region.loading import RegionFrontLostError
from dlog.region.messages import RecoverTable, RemoveTable, RetireRegion, TableFound, Topic, TrimRegion
from dlog.region.names import region_number, topic_names
from dlog.region.reading import RegionEntry
from dlog.region.topics import OffsetOutOfRangeError, Topics
from dlog.stores.contract import (
    PAGE_CACHES,
    STAGE,
    SYNCED,
    Capabilities,
    RecoveredSegment,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStat,
    SegmentTruncatedError,
    StoreError,
    StoreOutOfReachError,
    StoreUnavailableError,
    Verification,
)
from dlog.stores.kafka.errors import store_error
from dlog.stores.kafka.followed import FollowedRegion, FollowedRegions, ReadBytes, wait_set
from dlog.stores.kafka.locations import TableLocation, parse_location
from dlog.stores.kafka.options import KAFKA_SETTINGS, NAME, KafkaStoreOptions
from dlog.stores.kafka.owned import OwnedRegions
from dlog.stores.kafka.ports import FindNamespace, NoSegmentsYetError, StartActor
from dlog.stores.kafka.segment_reader import FETCH_BYTES, KafkaSegmentReader, TableScan
from dlog.stores.kafka.segment_writer import KafkaSegmentWriter
from dlog.wire.region import NONCE_BYTES, RecordKind

T = TypeVar("T")

REGION_CHECK_S = 1.0  # how often it is checked that a region is open; one read of metadata until there are segments
VERIFY_BYTES = 1024 * 1024  # at once
LAST_PAYLOADS = 3  # that a recovery returns, if they are at hand
FIND_BYTES_MAX = 8 * MiB  # read to find the offset of an entry


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A segment as its region has it. stream, number: that it was created for; "" and 0: the record that says so is
    deleted. topic: the region's data topic. payload_bytes: of all entries so far."""

    stream: str
    number: int
    topic: str
    entries: int
    payload_bytes: int
    has_ended: bool


def marker_topic(namespace: str) -> str:
    """The topic whose existence shows that the topics of a namespace are at this address."""
    return f"{namespace}.store"


def wrong_topics(namespace: str) -> str:
    """The message for topics that do not have the marker of a namespace."""
    return (
        "the topics with this cluster's segments are not at this address, correct --kafka of `dlog up`, or `topics` in "
        f"[kafka]: missing={marker_topic(namespace)}"
    )


class KafkaStore:
    """A SegmentStore: `async with KafkaStore(...) as store`. The caller closes the topics.

    batch_bytes_max: of the records of one append, as the topics take them. find_namespace: asked at the first use.
    is_synced: the topics sync an append before they confirm it. sweeps: this process writes segments: record a
    namespace if there is none; look for regions without segments from time to time, and delete them; open a region for
    the next segment while one is recovered.
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
        is_synced: bool = True,
        sweeps: bool = False,
    ) -> None:
        self.capabilities = Capabilities(
            visible_is_final=True,
            entry_bytes_max=batch_bytes_max - RECORD_OVERHEAD_BYTES,
            takes_stages=False,
            durability=SYNCED if is_synced else PAGE_CACHES,
            entries_in_flight=8,  # a region appends in batches of up to 1 MiB, one after the other
            bytes_in_flight=8 * MiB,
        )
        self.options = options
        self._topics = topics
        self._find_namespace = find_namespace
        self._namespace = ""  # not asked yet
        self._sweeps = sweeps
        self._region_checked = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._background: set[asyncio.Task[None]] = set()
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
            check_address=self._check_address,
            spawn=self._spawn,
            on_closed=self._region_closed,
        )
        self._dropped_bytes: dict[str, int] = {}  # by region: of segments deleted since its front was

    async def __aenter__(self) -> KafkaStore:
        await self._tasks.__aenter__()
        self._open = True
        if self._sweeps:
            self._spawn(self._sweep_from_time_to_time())
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self.close()
        finally:
            await self._tasks.__aexit__(None, None, None)  # an error of the caller stays what it is

    @property
    def read_bytes(self) -> ReadBytes:
        """What this process read of topics, and what readers got of it. Both grow only."""
        return self._followed.counts

    @property
    def regions(self) -> tuple[int, int]:
        """How many regions this process writes, and how many it follows."""
        return len(self._owned), len(self._followed)

    async def check_topics(self) -> None:
        """Check that the topics answer, and that they are those with this cluster's segments. Raises StoreError."""
        await self.run("", self._ready())
        await self._check_address()

    async def keep_region_open(self, every_s: float = REGION_CHECK_S) -> None:
        """Keep a region open for the next segment, for ever, once a process of this cluster has created a segment here.
        A stream that comes to this process does not wait for new topics then."""
        while True:
            with suppress(DLogError):  # the next time may do
                await self._owned.prepare(await self._ready(creates=False))
            self._region_checked.set()
            await asyncio.sleep(every_s)

    async def wait_region_checked(self, timeout_s: float) -> None:
        """Wait until `keep_region_open` has opened a region, found that none is needed yet, or failed once; at most
        timeout_s. New topics take seconds, as a broker that follows one too early tries again after
        `replica.fetch.backoff.ms`."""
        await wait_set(self._region_checked, timeout_s)

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
                self._spawn(self._owned.prepare(self._namespace))
            try:
                found = await self.run(ref.name, region.ask(RecoverTable(location.table)))
            except SegmentTruncatedError:
                await self.run(ref.name, self._append(location, TableEnd(location.table)))
                raise
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
                try:
                    if not region.is_loaded:
                        await self.run(ref.name, region.catch_up())
                except SegmentTruncatedError:
                    await self.run(ref.name, self._append(location, TableDropped(location.table)))
                    return
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
        try:
            regions = await self._regions()
        except NoSegmentsYetError:
            return
        except DLogError as error:
            raise store_error(error, "") from None
        for region in regions:
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
            scan = TableScan(region, self._topics, location.table, 1) if meta.next_seq_num > 1 else None
            try:
                while scan is not None and scan.next < scan.end:
                    await self.run(ref.name, scan.take(scan.end - 1, VERIFY_BYTES))
            except SegmentCorruptError as error:
                assert scan is not None, "it was read"
                return Verification(scan.next - 1, ((EntryId(scan.next - 1), error.message),))
            return Verification(meta.next_seq_num - 1)

    async def describe(self, name: str) -> TableDescription:
        """What is known of a segment now. name: of its location. Raises StoreError."""
        location = parse_location(name)
        with await self._caught_up(name, location) as region:
            meta = region.table(location.table)
            assert meta is not None, "it was looked for"
            entries, has_ended = meta.next_seq_num - 1, region.has_ended(location.table)
            stream, number = await self.run(name, self._created_for(region, location))
            return TableDescription(stream, number, region.data_topic, entries, meta.payload_bytes, has_ended)

    async def _created_for(self, region: FollowedRegion, location: TableLocation) -> tuple[str, int]:
        """What the record that began a table says."""
        try:
            [stored, *_] = await self._topics.read(region.data_topic, location.offset, 1)
            record = decode_stored(region.number, stored)
            if (record.kind, record.table) == (RecordKind.TABLE_BEGIN, location.table):
                stream, number, _ = msgpack.unpackb(record.payload)
                return str(stream), int(number)
        except (OffsetOutOfRangeError, DamagedError, UnsupportedVersionError, ValueError, TypeError):
            pass  # the front of the topic is deleted, or its record is damaged
        return "", 0

    async def find_offset(self, name: str, entry: EntryId) -> int | None:
        """The offset of a segment's entry in the data topic; None: there is no such entry, or finding it would take
        much reading. Raises StoreError."""
        location, sequence = parse_location(name), entry + 1
        with await self._caught_up(name, location) as region:
            meta = region.table(location.table)
            if meta is None or not 1 <= sequence < meta.next_seq_num:
                return None
            scan, left_bytes = region.scan(location.table, sequence), FIND_BYTES_MAX
            while not scan.is_done and left_bytes > 0:
                records = await self.run(name, self._topics.read(region.data_topic, scan.offset, FETCH_BYTES))
                left_bytes -= sum(len(one.key) + len(one.value) for one in records)
                for one in scan.feed(records):
                    return one.offset if isinstance(one, RegionEntry) and one.sequence == sequence else None
            return None

    async def close(self) -> None:
        """Abandon every writer, close every reader and region; what is confirmed remains."""
        if not self._open:
            return
        background = tuple(self._background)
        for task in background:
            task.cancel()  # a later process does what it did
        if background:
            await asyncio.wait(background)
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
        except RegionFrontLostError as error:
            if "@" in location and parse_location(location).offset < error.first:  # else the name of a region
                raise SegmentTruncatedError(f"{error.message}: store=kafka location={location}") from None
            raise store_error(error, location) from None
        except DLogError as error:
            failure = store_error(error, location)
            if isinstance(failure, SegmentNotFoundError):
                await self._check_address()
            raise failure from None

    async def _check_address(self) -> None:
        """Raise unless the topics at this address are those with this cluster's segments."""
        try:
            if await self._topics.exists(marker_topic(self._namespace)):
                return
        except DLogError as error:
            raise store_error(error, "") from None
        raise StoreOutOfReachError(wrong_topics(self._namespace))

    async def _append(self, location: TableLocation, item: TableEnd | TableDropped) -> None:
        """Append an item to a region of which nothing is known."""
        paths = topic_names(await self._ready(), location.region)
        nonce = bytes(NONCE_BYTES)
        await self._topics.append(paths[Topic.DATA], records_of(region_number(location.region), 0, nonce, item))

    async def _begin(self, described: bytes) -> Any:
        return await self._owned.begin_table(await self._ready(), described)

    async def _ready(self, *, creates: bool = True) -> str:
        """The namespace of the topics. creates: record one if there is none, if this process writes segments."""
        if not self._open:
            raise StoreUnavailableError("the store is closed, open another one: store=kafka")
        if not self._namespace:
            self._namespace = await self._find_namespace(creates=creates and self._sweeps)
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
        await self.run(name, region.catch_up())  # else a reader whose state is old would append a record
        if not region.has_ended(location.table):
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
                except StoreError:
                    continue  # deleted meanwhile, or damaged
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

    # ---- called by parts ---------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that may fail: a later call does it again. A store that is closed runs nothing more."""
        if not self._open:
            work.close()
            return

        async def quietly() -> None:
            with suppress(DLogError):
                await work

        task = self._tasks.create_task(quietly(), name="regions")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _region_closed(self, name: str) -> None:
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
