"""The segment store `s3`: the contract of dlog/stores/contract.py on the node of this process and the metadata of
streams in objects.

A segment is an object stream with one range (places.py says why). Its entries are acknowledged by the node's
write-ahead log, which all segments of the process share, and are uploaded later. Visible entries are final.

Invariants:
- A segment that the image here does not have is not found only if an image says so that is newer than the call.
- The end of a segment is that of its range in the metadata. A process that needs it decided closes the range: on
  this process's node if that writes it, else by a failover of the node that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from types import TracebackType
from typing import Any

from dlog.errors import DLogError, InvalidRequestError, TruncatedError
from dlog.events import Event
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.object_streams import NodeId, ObjectRef
from dlog.model.segment import StoreSettings
from dlog.objects.image import Image, Range
from dlog.objects.node_messages import CloseStreamsHere, OpenStreamHere
from dlog.objects.operations import CreateStreams, DeleteStreams, Done, StreamsCreated
from dlog.objects.search import find_objects
from dlog.stores.contract import (
    STAGE,
    Capabilities,
    MisconfiguredError,
    ReaderClosedError,
    RecoveredSegment,
    SegmentCorruptError,
    SegmentFencedError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStat,
    SegmentStore,
    StoreError,
    StoreUnavailableError,
    Verification,
)
from dlog.stores.object_storage.async_lru_cache import AsyncLruCache
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Objects
from dlog.stores.object_storage.seeking import SpanOf
from dlog.stores.s3.compaction import Compactions
from dlog.stores.s3.errors import given_up
from dlog.stores.s3.failovers import LAST_PAYLOADS, Failovers
from dlog.stores.s3.gone_nodes import GoneNodes
from dlog.stores.s3.metadata import MetadataView
from dlog.stores.s3.object_reads import ObjectGoneError, ObjectReads, object_name
from dlog.stores.s3.object_writes import ObjectWrites
from dlog.stores.s3.options import (
    ENTRIES_IN_FLIGHT,
    NAME,
    S3_SETTINGS,
    WAL_OVERHEAD_BYTES,
    compaction_options,
    node_options,
)
from dlog.stores.s3.own_node import OwnNode
from dlog.stores.s3.places import FIRST_EPOCH, Place, parse_place, parse_segment_key, range_of, segment_key
from dlog.stores.s3.ports import FindObjects, ObjectMetadata, Processes, StartMachine
from dlog.stores.s3.read_plan import payload_bytes
from dlog.stores.s3.reader import EntryReads, S3Reader
from dlog.stores.s3.storage_check import StorageCheck
from dlog.stores.s3.tasks import Tasks
from dlog.stores.s3.views import SegmentView, SegmentViews
from dlog.stores.s3.wal_follower import WalFollower, WalFollowers
from dlog.stores.s3.wal_segments import WalSegments
from dlog.stores.s3.writer import S3Writer
from dlog.stores.s3_direct.options import NAME as S3_DIRECT
from dlog.stores.s3_direct.options import ObjectsOptions

METADATA_S = 10.0  # for the image here to reach a version
OTHER_FAILOVER_S = 3.0  # for a failover that another process has begun
OBJECTS_AT_ONCE = 64  # of one search, when a segment is walked through
READ_BYTES = 1 << 20  # at once, when a segment is walked through
NODE_S = 20.0  # for the node to serve, when it is checked
_NONCE_BITS = 64
_DECIDE_FIRST_S, _DECIDE_MAX_S = 0.05, 2.0  # between two attempts to decide an end; each asks the controller


class S3Store:
    """A SegmentStore: `async with S3Store(...) as store`. The caller closes the objects and the WAL's stores.

    node: the id of this process's node, the same after a restart; None: it creates no segments. wal: where the node's
    log is written; wals: all stores of this process that may have logs of nodes, by name. find_objects: the folder of
    the objects. span_of: the txids and times of an entry, for the indexes of objects. processes: of the cluster; None:
    this process does nothing for other nodes. check_objects: checks that the storage has this cluster's objects and can
    hold more; raises StoreError. on_event: gets events.
    """

    name = NAME
    settings = S3_SETTINGS

    def __init__(
        self,
        metadata: ObjectMetadata,
        objects: Objects,
        find_objects: FindObjects,
        wal: SegmentStore | None,
        wals: Mapping[str, SegmentStore],
        options: ObjectsOptions,
        start: StartMachine,
        span_of: SpanOf,
        rng: Random,
        *,
        node: NodeId | None = None,
        processes: Processes | None = None,
        check_objects: Callable[[], Awaitable[None]] | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        largest = min(
            [store.capabilities.entry_bytes_max for store in (*wals.values(), *([wal] if wal else []))] or [0]
        )
        self.capabilities = Capabilities(
            visible_is_final=True,
            entry_bytes_max=max(0, largest - WAL_OVERHEAD_BYTES),
            is_written=node is not None and wal is not None,
            takes_stages=False,
            durability=wal.capabilities.durability if wal is not None else "",
            entries_in_flight=ENTRIES_IN_FLIGHT,
            bytes_in_flight=ENTRIES_IN_FLIGHT * max(1, largest),
            reads_ahead=options.reads_ahead,
        )
        self.options = options
        find_objects = _Remembered(find_objects)
        self.tasks = Tasks(on_event)
        self.cache: AsyncLruCache[Any, Any] = AsyncLruCache(options.cache_bytes_max)
        self.metadata = MetadataView(metadata, METADATA_S, self.tasks)
        self.reads = ObjectReads(
            objects, find_objects, self.cache, fetches_max=options.fetches_max, limits=options.read_limits
        )
        self.entries = EntryReads(self)
        self.followers = WalFollowers(partial(self._new_follower, wals), self.tasks)
        self.node: OwnNode | None = None
        self.compactions: Compactions | None = None
        machine_options = node_options(options, max(largest, 2 * WAL_OVERHEAD_BYTES))
        new_writes = partial(ObjectWrites, objects, find_objects, span_of)
        if wal is not None and node is not None:
            self.node = OwnNode(
                node,
                self.metadata,
                partial(WalSegments, wal, wals),
                new_writes(node),
                machine_options,
                start,
                self.tasks,
                rng,
                on_event,
            )
            self.compactions = Compactions(
                self.node,
                self.metadata,
                objects,
                find_objects,
                new_writes,
                self.reads,
                processes,
                compaction_options(options),
                on_event,
            )
        self.views = SegmentViews(self.metadata, self.node, self.followers, self.tasks)
        any_wal = wal if wal is not None else next(iter(wals.values()), None)
        self._failovers: Failovers | None = None
        if any_wal is not None:
            self._failovers = Failovers(
                self.metadata,
                partial(WalSegments, any_wal, wals),
                new_writes,
                machine_options,
                self.cache,
                start,
                self.tasks,
                rng,
                on_event,
                other_s=OTHER_FAILOVER_S,
            )
        self.has_log_in_objects = wal is not None and wal.name == S3_DIRECT
        self._storage = StorageCheck(check_objects, self.cache)
        self.gone_nodes: GoneNodes | None = None
        if self._failovers is not None and processes is not None:
            self.gone_nodes = GoneNodes(node, self.metadata, self._failovers, processes, self.tasks)
        self._rng = rng
        self._is_open = False
        self._writers: set[S3Writer] = set()
        self._readers: set[S3Reader] = set()

    async def __aenter__(self) -> S3Store:
        await self.cache.__aenter__()
        await self.tasks.__aenter__()
        if self.compactions is not None:
            self.tasks.start(partial(self.compactions.run, self.options.compaction_s), "compacts objects")
        if self.gone_nodes is not None:
            self.tasks.start(partial(self.gone_nodes.run, self.options.compaction_s), "takes over nodes that are gone")
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            await self.tasks.__aexit__(kind, error, trace)
            await self.cache.__aexit__(kind, error, trace)

    def check_capacity(self, settings: StoreSettings) -> None:
        """Does nothing: what a segment needs, its node's log and the object storage have."""

    async def check_node(self) -> None:
        """Check that the node of this process acknowledges appends. It is begun if need be, which needs the controller
        and the store of the log. Raises StoreError."""
        await self._own_node().serving(NODE_S)

    async def check_objects(self) -> None:
        """Check that the object storage answers, has this cluster's objects, and can hold more. Raises StoreError."""
        await self._storage.check()

    async def check_controller(self) -> None:
        """Check that a controller records what it is asked. Costs an entry of the metadata stream. Raises
        StoreError."""
        await self.metadata.fresh()

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> S3Writer:
        self._check_open()
        self.settings.complete(dict(settings))
        if number == STAGE:
            raise InvalidRequestError("no stage can be written here, choose another store for it: store=s3")
        node = self._own_node()
        await self._storage.wait_not_refused()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.options.retry_s
        key = segment_key(stream, number, f"{self._rng.getrandbits(_NONCE_BITS):016x}")
        while True:
            try:
                return await self._create(node, key, max(0.1, end_s - loop.time()))
            except ReaderClosedError:
                raise
            except (SegmentFencedError, SegmentNotFoundError, StoreUnavailableError) as error:
                if loop.time() >= end_s:
                    raise given_up(error, outcome_unknown=False) from error
            await asyncio.sleep(0.05)
            with suppress(StoreError):
                await self.metadata.fresh()  # another process may have taken over the node's work
            key = segment_key(stream, number, f"{self._rng.getrandbits(_NONCE_BITS):016x}")

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        place = parse_place(ref.name)
        self._check_open()
        if self.node is not None:  # a take-over creates a segment next: what that needs begins beside the recovery
            self.node.begin()
            self._storage.begin()
        try:
            found = await self._decide(place)
        except ReaderClosedError:
            raise
        except StoreUnavailableError as error:  # it was tried for long
            raise given_up(error) from error
        assert found.end is not None
        return RecoveredSegment(EntryId(found.end - found.start - 1), self._last_payloads(place, found))

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> S3Reader:
        place = parse_place(ref.name)
        found = await self._find(place)
        if found.end is None and not self._is_written_here(place):
            with suppress(StoreUnavailableError):  # without a controller, what is known is read
                found = await self._find(place, is_fresh=True)
        if found.end is None and sealed_at is not None:
            found = await self._decide(place)
        view = self.views.acquire(place, found)
        reader = S3Reader(self, view)
        self._readers.add(reader)
        return reader

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        place = parse_place(ref.name)
        found = await self._find(place, is_fresh=True)
        if found.end is None and sealed_at is not None:
            found = await self._decide(place)
        if found.end is None:
            return SegmentStat()
        return SegmentStat(EntryId(found.end - found.start - 1), await self._payload_bytes(place, found))

    async def stage_of(self, name: str) -> StreamName | None:
        place = parse_place(name)
        await self._find(place)
        described = self.describe(await self.metadata.read(), place)
        return described[0] if described is not None and described[1] == STAGE else None

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        place = parse_place(ref.name)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.options.retry_s
        while True:
            found = await self._find(place, is_fresh=True)
            if found.end is not None:
                return EntryId(found.end - found.start - 1)
            try:
                end = await self._confirmed_end(place, found)
            except SegmentNotFoundError as error:  # of the log: uploaded and deleted meanwhile, as metadata shows
                if loop.time() >= end_s:
                    raise StoreUnavailableError(
                        f"a segment of the write-ahead log is missing: node={found.node} why={error.message}"
                    ) from error
                continue
            found = await self._find(place)  # what the log does not have any more, the image has by now
            return EntryId(max(found.committed, found.end or 0, end) - found.start - 1)

    async def delete(self, ref: SegmentRef) -> None:
        """See SegmentStore.delete. Its stream objects are deleted by the controller; what it has in shared objects goes
        when they are compacted."""
        try:
            place = parse_place(ref.name)
            await self._decide(place)
        except SegmentNotFoundError:
            return
        key = _key_of(await self.metadata.read(), place)
        done = await self.metadata.ask(DeleteStreams((place.stream,), key))
        assert isinstance(done, Done)
        await self.metadata.reach(done.version)

    async def list(self) -> AsyncIterator[str]:
        self._check_open()
        image = await self.metadata.fresh()
        for stream, its in tuple(image.streams.items()):
            for one in its.ranges:
                if not one.is_dropped:
                    yield Place(stream, one.epoch).name

    async def verify(self, ref: SegmentRef) -> Verification:
        """Read every block of every object, past the cache, and what is not uploaded. The storage keeps its own
        replicas."""
        place = parse_place(ref.name)
        found = await self._find(place, is_fresh=True)
        end = found.start + await self.find_tail(ref) + 1
        view = self.views.acquire(place, found)
        damaged: list[tuple[EntryId, str]] = []
        try:
            at = found.start
            while at < end:
                upto, reason = await self._verify_from(view, at, end)
                if reason:
                    damaged += [(EntryId(one - found.start), reason) for one in range(at, upto)]
                at = upto
        finally:
            self.views.release(view)
        return Verification(end - found.start, tuple(damaged))

    async def close(self) -> None:
        """Abandon every writer, close every reader, stop the node. What is not uploaded stays in its log."""
        self._is_open = False
        self.tasks.is_open = False
        for writer in tuple(self._writers):
            await writer.abandon()
        for reader in tuple(self._readers):
            await reader.close()
        if self.node is not None:
            await self.node.close()
        await self.followers.close()

    async def upload_left(self) -> None:
        """Begin this process's node if its last process left a log, so that this is uploaded. In a cluster that has a
        metadata stream. Raises StoreError."""
        if self.node is not None and self.node.current is None:
            known = (await self.metadata.read()).nodes.get(self.node.node)
            if known is not None and known.wal:
                await self.node.serving(self.options.retry_s)

    # ---- for writers, readers and tools ------------------------------------------------------------------------------

    def writer_ended(self, writer: S3Writer) -> None:
        self._writers.discard(writer)

    def reader_closed(self, reader: S3Reader, view: SegmentView) -> None:
        if reader in self._readers:
            self._readers.discard(reader)
            self.views.release(view)

    def describe(self, image: Image, place: Place) -> tuple[StreamName, SegmentNumber] | None:
        """For which stream a segment was created, and under which number."""
        key = _key_of(image, place)
        return None if key is None else parse_segment_key(key)

    async def log_segments(self) -> frozenset[str]:
        """Names of the segments of all nodes' write-ahead logs, in whatever store. Raises StoreError."""
        image = await self.metadata.fresh()
        return frozenset(segment.name for node in image.nodes.values() for segment in node.wal)

    # ---- internal ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise ReaderClosedError(f"the store is closed, open another one: store={NAME}")

    def _own_node(self) -> OwnNode:
        if self.node is None:
            raise MisconfiguredError("this process has no node, so it cannot create segments: store=s3")
        return self.node

    def _new_follower(self, wals: Mapping[str, SegmentStore], node: NodeId) -> WalFollower:
        return WalFollower(node, self.metadata, wals, self.cache, self.views.confirmed, poll_s=self.options.poll_max_s)

    async def _create(self, node: OwnNode, key: str, timeout_s: float) -> S3Writer:
        running = await node.serving(timeout_s)
        created = await self.metadata.ask(CreateStreams(key, 1))
        assert isinstance(created, StreamsCreated)
        place = Place(created.streams[0], FIRST_EPOCH)
        try:
            start: int = await running.actor.ask(OpenStreamHere(place.stream, place.epoch))
        except DLogError as error:
            raise running.error(error) from error
        writer = S3Writer(self, running, place, start)
        self._writers.add(writer)
        self._check_open()
        return writer

    def _is_written_here(self, place: Place) -> bool:
        return self.node is not None and self.node.confirmed_end(place.stream) is not None

    async def _find(self, place: Place, *, is_fresh: bool = False) -> Range:
        """The range of a segment. is_fresh: as of now; else perhaps an older one, still open. Raises
        SegmentNotFoundError, StoreUnavailableError."""
        self._check_open()
        image = await (self.metadata.fresh() if is_fresh else self.metadata.read())
        found = range_of(image, place)
        if found is None and not is_fresh:
            found = range_of(await self.metadata.fresh(), place)
        if found is None:
            raise SegmentNotFoundError(f"no such segment, it was deleted: location={place.name}")
        return found

    async def _decide(self, place: Place) -> Range:
        """The range of a segment once it has an end. Raises SegmentNotFoundError, StoreUnavailableError."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.options.retry_s
        pause_s = _DECIDE_FIRST_S
        while True:
            found = await self._find(place)  # an end is final, however old the image is that has it
            if found.end is None:
                found = await self._find(place, is_fresh=True)
            if found.end is not None:
                return found
            try:
                await self._close_range(place, found, max(0.1, end_s - loop.time()))
            except (StoreUnavailableError, SegmentFencedError) as error:
                if loop.time() >= end_s:
                    raise StoreUnavailableError(
                        f"the segment's end cannot be decided now: location={place.name} why={error.message}"
                    ) from error
                await self._wait_ended(place, pause_s * self._rng.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _DECIDE_MAX_S)

    async def _wait_ended(self, place: Place, timeout_s: float) -> None:
        """Wait until the image here says that a range has ended, at most so long; asks nobody."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not _is_closed(place, await self.metadata.read()):
                    await self.metadata.wait_newer(timeout_s)

    async def _confirmed_end(self, place: Place, found: Range) -> int:
        """The end of what the log of a range's node has of it; 0: nothing. Raises StoreError; SegmentNotFoundError is
        about a segment of the log."""
        end = None if self.node is None else self.node.confirmed_end(place.stream)
        if end is not None:
            return end
        async with self.followers.use(found.node) as follower:
            await follower.catch_up()
            return follower.end_of(place.stream) or 0

    async def _close_range(self, place: Place, found: Range, timeout_s: float) -> None:
        """Close an open range where it is, or fail over its node. Raises StoreError."""
        if self.node is not None and found.node == self.node.node:
            running = await self.node.serving(timeout_s)
            if found.node_epoch != running.node_epoch:
                return  # this node closed it when it started
            try:
                [(_, end)] = await running.actor.ask(CloseStreamsHere((place.stream,)))
            except DLogError as error:
                raise StoreUnavailableError(error.message) from error  # another call closes it, or the node ended
            self.views.ended(place.stream, end)
            return
        if self._failovers is None:
            raise MisconfiguredError("this process has no store for the logs of nodes, so it cannot recover: store=s3")
        await self._failovers.close_streams(found.node, partial(_is_closed, place), timeout_s)

    def _last_payloads(self, place: Place, found: Range) -> tuple[bytes, ...]:
        """Payloads of the last entries, if this process's node has them, or a failover here had to read them."""
        assert found.end is not None
        start = max(found.start, found.end - LAST_PAYLOADS)
        cached = [] if self.node is None else self.node.cached(place.stream, start, found.end, READ_BYTES)
        if cached and len(cached) == found.end - start:
            return tuple(bytes(entry.payload) for entry in cached)
        last = () if self._failovers is None else self._failovers.last_payloads(place.stream, found.end)
        return last[-(found.end - start) :] if found.end > start else ()

    async def _payload_bytes(self, place: Place, found: Range) -> int:
        """Of all entries of a segment that has an end: from the indexes of objects, and of what is not uploaded."""
        assert found.end is not None
        view = self.views.acquire(place, found)
        try:
            total, at, end = 0, found.start, found.end
            while at < end:
                objects = await self._objects_from(place, at, end)
                try:
                    for ref in objects:
                        name = object_name(await self.metadata.read(), ref.object)
                        upto = min(ref.end, end)
                        rows = await self.reads.rows(name, place.stream, at, upto)
                        if rows[0].start != at or rows[-1].end != upto:
                            break
                        total += sum(map(payload_bytes, rows))
                        at = upto
                except ObjectGoneError:
                    await self.metadata.fresh()
                if at < end and (not objects or objects[-1].start < at):
                    some = await self.entries.read(view, at - found.start, end - found.start - 1, READ_BYTES)
                    total += sum(map(len, some))
                    at += len(some)
            return total
        finally:
            self.views.release(view)

    async def _objects_from(self, place: Place, at: int, end: int) -> tuple[ObjectRef, ...]:
        try:
            return find_objects(await self.metadata.read(), place.stream, at, end, OBJECTS_AT_ONCE).objects
        except TruncatedError as error:
            raise SegmentNotFoundError(f"no such segment, it was deleted: location={place.name}") from error

    async def _verify_from(self, view: SegmentView, at: int, end: int) -> tuple[int, str]:
        """Check some entries from `at` on: up to which, and what is wrong with them; empty: nothing."""
        upto, stream = at, view.place.stream
        for ref in (await self._objects_from(view.place, at, end))[:1]:
            upto = min(ref.end, end)
            try:
                name = object_name(await self.metadata.read(), ref.object)
                rows = await self.reads.rows(name, stream, at, upto)
                upto = min(rows[0].end, end)
                await self.reads.block(name, rows[0], past_cache=True)
            except ObjectGoneError as error:
                image = await self.metadata.fresh()
                if range_of(image, view.place) is None:
                    raise SegmentNotFoundError(f"no such segment: location={view.place.name}") from error
                if ref not in await self._objects_from(view.place, at, end):
                    return at, ""  # compacted meanwhile
                return upto, f"an object is missing: {error.message}"
            except SegmentCorruptError as error:
                return upto, error.message
            return upto, ""
        try:
            some = await self.entries.read(view, at - view.start, end - view.start - 1, READ_BYTES)
        except SegmentCorruptError as error:
            return at + 1, error.message
        return at + len(some), ""


class _Remembered:
    """Asks for the folder of objects once: it stays the same while the metadata stream does."""

    def __init__(self, find: FindObjects) -> None:
        self._find = find
        self._folder: Location | None = None

    async def __call__(self) -> Location:
        if self._folder is None:
            self._folder = await self._find()
        return self._folder


def _key_of(image: Image, place: Place) -> str | None:
    """The key that names a segment."""
    stream = image.streams.get(place.stream)
    return stream.key if stream is not None and stream.key in image.keys else None


def _is_closed(place: Place, image: Image) -> bool:
    found = range_of(image, place)
    return found is None or found.end is not None
