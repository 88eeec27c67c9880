"""Reads the metadata stream of streams in objects from its segments, and applies its records to an image.

No proxy is asked: the list of segments comes from ZooKeeper, and the entries from the segments' stores. The machine is
dlog/objects/follower.py.

Invariants:
- records come in order, each once, from the first one that is kept or from where the reader was sent;
- a segment is left for the next one only when metadata has it as completed and it was read to its end in its store;
- a position that was truncated is a CutOffError, never a gap.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from dlog.errors import ConfigError, DamagedError, DLogError, MetadataUnavailableError, StreamUnavailableError
from dlog.io.metadata import AbsentStream, StreamMetadataStore, VersionedStore
from dlog.machine import Conflict, Missing, Outcome, OutcomeUnknown, Versioned
from dlog.model.dlsn import DLSN, DLSN_FIRST, of
from dlog.model.ids import METADATA_STREAM, EntryId
from dlog.model.segment import Location as SegmentLocation
from dlog.model.segment import Segment, StreamKey, StreamMetadata, StreamSettings
from dlog.objects.follower import EntryRead, Follower, LoadSnapshot, ReadFrom, SnapshotRead, StreamCutOff
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of, image_of
from dlog.options import KiB, MiB
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentNotFoundError,
    SegmentReader,
    SegmentRef,
    SegmentStore,
    SegmentTruncatedError,
    StoreUnavailableError,
)
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Objects
from dlog.wire.entry import decode_entry, parse_record_set
from dlog.wire.object_snapshot import SnapshotContents

METADATA_KEY = StreamKey(METADATA_STREAM)
READ_BYTES = MiB  # of entries at once
SNAPSHOT_PART_BYTES = 8 * MiB  # of one read of a snapshot
THREAD_BYTES = 256 * KiB  # what is larger is decoded in a thread
POSITIONS_MAX = 1024
READINGS_MAX = 3  # of a stream in which no snapshot was found
SEGMENT_BYTES = 64 * MiB  # of the metadata stream: truncation frees whole segments
STORES_OF_METADATA = ("ledger", "s3-direct", "file")

FindRoot = Callable[[], Awaitable[Location]]  # where the objects are: found at the first use, since it may ask metadata


class CutOffError(DLogError):
    """The stream was truncated beyond the position of a reader."""


class RecordPositions:
    """Where in the stream records are: some of the entries, thinned out so that there are at most POSITIONS_MAX.

    Invariants:
    - a position that is returned is never behind the wanted record, and at most by some entries before it.
    """

    def __init__(self) -> None:
        self._versions: list[int] = []  # ascending
        self.positions: list[DLSN] = []

    def add(self, version: int, position: DLSN) -> None:
        """An entry at `position` has the records from number version + 1 on."""
        if self._versions and version <= self._versions[-1]:
            return
        self._versions.append(version)
        self.positions.append(position)
        if len(self._versions) > POSITIONS_MAX:
            del self._versions[1::2], self.positions[1::2]

    def copy(self) -> RecordPositions:
        """Another table with the same."""
        other = RecordPositions()
        other._versions, other.positions = self._versions[:], self.positions[:]
        return other

    def floor(self, version: int) -> DLSN | None:
        """The position of an entry before which there are only records up to number `version`; None: none is known."""
        at = bisect_right(self._versions, version) - 1
        return self.positions[at] if at >= 0 else None


class MetadataStreamReader:
    """Reads the records of the metadata stream. Close it at the end.

    value: the stream's metadata as last read; None: there is no such stream. recheck_s: metadata is read again after so
    long without a record, since a watch is only a hint.
    """

    def __init__(
        self, metadata: VersionedStore, stores: Mapping[str, SegmentStore], *, recheck_s: float = 30.0
    ) -> None:
        self.value: StreamMetadata | None = None
        self._metadata = metadata
        self._stores = stores
        self._recheck_s = recheck_s
        self._changed = asyncio.Event()
        self._changed.set()
        self._read_at_s = 0.0
        self.position: DLSN | None = None  # of the next record; None: the first one that is kept
        self._open: tuple[Segment, SegmentReader] | None = None
        self._unwatch: Callable[[], None] | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether all segments of the list as last read were read, but the one in progress."""
        value = self.value
        if value is None or self._changed.is_set():
            return False
        if len(value.in_progress) > 1:
            return False  # one of them is being completed
        last = value.last_completed
        return last is None or (self.position is not None and self.position.segment > last.number)

    def go_to(self, position: DLSN | None) -> None:
        """Read from here on; None: from the first record that is kept."""
        self.position = position

    async def close(self) -> None:
        """Release the segment and the watch. Idempotent; reading again opens them."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        self._changed.set()
        await self._leave()

    async def read(self, wait_s: float) -> list[tuple[DLSN, bytes]]:
        """The next records with their positions; none if none came within wait_s.

        Raises CutOffError, MetadataUnavailableError, the errors of stores (all of them may be over at the next call),
        DamagedError.
        """
        value = await self._list()
        if value is None:
            await self.wait_change(wait_s)
            return []
        if self.position is None:
            self.position = value.first_dlsn
        if self.position < value.first_dlsn:
            raise CutOffError(f"the metadata stream was truncated: at={self.position} first={value.first_dlsn}")
        segment = value.segment(self.position.segment)
        if segment is None:
            await self.wait_change(wait_s)
            return []
        try:
            return await self._read(segment, self.position, wait_s)
        except (SegmentNotFoundError, SegmentTruncatedError):
            await self._leave()
            self._changed.set()
            value = await self._list()
            if value is not None and self.position < value.first_dlsn:
                raise CutOffError("the metadata stream was truncated") from None
            raise
        except (DLogError, OSError) as error:
            await self._leave()
            self._changed.set()
            if isinstance(error, OSError):
                raise StoreUnavailableError(f"the metadata stream cannot be read now: {error}") from error
            raise

    async def _read(self, segment: Segment, position: DLSN, wait_s: float) -> list[tuple[DLSN, bytes]]:
        reader = await self._reader(segment)
        if position.entry > reader.last_confirmed and reader.end is None:
            await reader.wait_lac(EntryId(position.entry - 1), wait_s)
        lac = reader.last_confirmed
        if position.entry <= lac:
            payloads = await reader.read(position.entry, lac, READ_BYTES)
            found = _records(segment, position, payloads)
            self.position = of(segment.number, position.entry + len(payloads), 0)
            return found
        if reader.end is not None and segment.completed:
            self.position = of(segment.number + 1, 0, 0)
            await self._leave()
        elif reader.end is not None:
            await self.wait_change(wait_s)  # it was ended just now: metadata will show it
        return []

    async def _reader(self, segment: Segment) -> SegmentReader:
        if self._open is not None:
            known, reader = self._open
            if (known.number, known.location, known.completed) == (segment.number, segment.location, segment.completed):
                return reader
            await self._leave()
        store = self._stores.get(segment.store)
        if store is None:
            raise MisconfiguredError(
                "the metadata of streams in objects is in a store that this process is not configured with: "
                f"store={segment.store} known={sorted(self._stores)}"
            )
        ref = SegmentRef(METADATA_STREAM, segment.number, segment.name)
        sealed_at = segment.last_entry if segment.completed else None
        reader = await store.open_reader(ref, sealed_at=sealed_at)
        self._open = segment, reader
        return reader

    async def _leave(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened[1].close()

    async def _list(self) -> StreamMetadata | None:
        """The stream's metadata, read again if it may have changed."""
        now_s = asyncio.get_running_loop().time()
        if not self._changed.is_set() and now_s - self._read_at_s < self._recheck_s:
            return self.value
        if self._unwatch is None:
            self._unwatch = self._metadata.watch(METADATA_KEY, self._changed.set)
        self._changed.clear()
        try:
            self.value = found_stream(await self._metadata.read(METADATA_KEY))
        except BaseException:
            self._changed.set()
            raise
        self._read_at_s = now_s
        return self.value

    async def wait_change(self, wait_s: float) -> None:
        """Wait for a change of metadata; then it is read again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._changed.wait()


def choose_metadata_store(stores: Iterable[str], chosen: str = "") -> str:
    """The store for the segments of the metadata stream and of write-ahead logs: it needs no metadata stream itself.

    chosen: by configuration; "": the first of STORES_OF_METADATA that there is. Raises ConfigError.
    """
    known = list(stores)
    if chosen and chosen not in STORES_OF_METADATA:
        raise ConfigError(f"metadata and write-ahead logs are in one of {', '.join(STORES_OF_METADATA)}: wal={chosen}")
    for name in (chosen,) if chosen else STORES_OF_METADATA:
        if name in known:
            return name
    raise ConfigError(
        f"the store s3 needs one of {', '.join(STORES_OF_METADATA)} for its metadata and write-ahead log: "
        f"wal={chosen or 'any'} stores={','.join(known)}"
    )


async def create_metadata_stream(metadata: StreamMetadataStore, store: str) -> None:
    """Create the metadata stream, with its segments in this store, unless it exists. Raises MetadataUnavailableError:
    it may exist."""
    settings = StreamSettings(store=store, segment_bytes=SEGMENT_BYTES)
    made = StreamMetadata(name=METADATA_STREAM, settings=settings, incarnation=os.urandom(12).hex())
    while True:
        outcome = await metadata.compare_and_set(METADATA_KEY, made, AbsentStream(await metadata.deletions()))
        match outcome:
            case Versioned() | Conflict():
                return
            case Missing():
                continue  # a stream was deleted meanwhile
            case OutcomeUnknown(reason):
                raise MetadataUnavailableError(
                    f"it is unknown whether the metadata stream was created: {reason}", outcome_unknown=True
                )


def found_stream(outcome: Outcome) -> StreamMetadata | None:
    """What a read of a stream's metadata found. Raises MetadataUnavailableError."""
    match outcome:
        case Versioned(value):
            found: StreamMetadata = value
            return found
        case Missing():
            return None
    raise MetadataUnavailableError(f"metadata cannot be read now: {outcome}")


def _records(segment: Segment, position: DLSN, payloads: list[bytes]) -> list[tuple[DLSN, bytes]]:
    """The records of these entries from `position` on, each with its own."""
    found: list[tuple[DLSN, bytes]] = []
    for entry, payload in enumerate(payloads, position.entry):
        for record in decode_entry(payload, expand=False, enveloped=segment.version >= 4):
            if not record.is_user:
                continue
            inner = parse_record_set(record.payload) if record.is_set else [bytes(record.payload)]
            for slot, data in enumerate(inner, record.slot):
                at = of(segment.number, entry, slot)
                if at >= position:
                    found.append((at, data))
    return found


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """A record of the metadata stream. segment: where the segment of its position is; after ZooKeeper was restored
    another one may have the same number, and an equal record at that position."""

    position: DLSN
    data: bytes
    segment: SegmentLocation | None


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """How far a replay has come: another one may go on from there. last: the last record of the metadata stream that is
    in the image."""

    incarnation: str
    contents: SnapshotContents
    last: RecordSeen
    positions: RecordPositions


class MetadataReplay:
    """An image that follows the metadata stream.

    image: after the records read so far; None until the stream was once read to its end. It stays the last known one
    while a snapshot is loaded. incarnation: of the stream, once it was found; "" before, and as long as there is no
    stream: then the image is empty.
    """

    def __init__(self, reader: MetadataStreamReader, objects: Objects, find_root: FindRoot) -> None:
        self.image: Image | None = None
        self.incarnation = ""
        self.positions = RecordPositions()
        self.reader = reader
        self._objects = objects
        self._find_root = find_root
        self._machine = Follower()
        self._has_read = False
        self._readings = 0  # of the whole stream, without a snapshot
        self._last: RecordSeen | None = None  # the last record that is in the image
        self._to_confirm: RecordSeen | None = None  # the first record to be read, after `go_on_from`

    def point(self) -> ReplayPoint | None:
        """How far this one has come; None: its image is not known."""
        image = self._machine.image
        if image is None or self._last is None:
            return None
        return ReplayPoint(self.incarnation, contents_of(image), self._last, self.positions.copy())

    async def go_on_from(self, point: ReplayPoint) -> None:
        """Go on from where another replay is. To be called first. The record there is read again: if the stream does
        not have it, such as after ZooKeeper was restored, all of the stream is read."""
        self._machine.image = await asyncio.to_thread(image_of, point.contents)
        self.incarnation, self.positions = point.incarnation, point.positions
        self._last = self._to_confirm = point.last
        self.reader.go_to(point.last.position)

    def _begin_anew(self) -> None:
        """Read all of the stream."""
        self._machine = Follower()
        self.incarnation, self.positions = "", RecordPositions()
        self._last = self._to_confirm = None
        self.reader.go_to(None)

    async def read_to_end(self, wait_s: float, is_over: Callable[[], bool]) -> Image:
        """Read all completed segments of the stream, and return the image; the caller takes it over. For an owner,
        whose own segment has no record yet. is_over: asked again and again; True: raise StreamUnavailableError.

        wait_s: for one change of metadata. Raises as `step`.
        """
        while True:
            if is_over():
                raise StreamUnavailableError("the stream has another owner, or will have")
            before = self.reader.position
            if not await self.step(0.0) and self.reader.position == before and not self.reader.is_at_end:
                await self.reader.wait_change(wait_s)
            elif self.reader.is_at_end:
                self._caught_up()
                if self.image is not None:
                    return self.image
            await asyncio.sleep(0)

    async def step(self, wait_s: float) -> bool:
        """Read on, and apply what came; whether anything came within wait_s.

        Raises what MetadataStreamReader.read raises but CutOffError, and what the object storage raises: the next call
        goes on. DamagedError, UnsupportedVersionError: this replay is used no more.
        """
        try:
            records = await self.reader.read(wait_s)
        except CutOffError:
            self._follow(self._machine.handle(StreamCutOff()))
            return True
        value = self.reader.value
        if self._to_confirm is not None and not self._may_go_on(value, records):
            self._begin_anew()
            return True
        if value is not None and self.incarnation != value.incarnation:
            if self.incarnation:
                raise DamagedError(
                    "the metadata stream was deleted and created again, its streams in objects are lost: "
                    f"stream={METADATA_STREAM} former={self.incarnation} now={value.incarnation}"
                )
            self.incarnation = value.incarnation
        for position, data in records:
            if not await self._apply(position, data):
                break
        self._has_read = self._has_read or bool(records)
        if not records and (value is None or self.reader.is_at_end):
            self._caught_up()
        elif self.image is not None and self._machine.image is not None:
            self.image = self._machine.image
        return bool(records)

    def _may_go_on(self, value: StreamMetadata | None, records: list[tuple[DLSN, bytes]]) -> bool:
        """Whether the stream may have the record from which this one goes on. Settled once a record is read."""
        if value is None or value.incarnation != self.incarnation or self._to_confirm is None:
            return False
        last = self._to_confirm
        if self._location_of(last.position) != last.segment or last.segment is None:
            return False
        if not records:
            return self.reader.position == last.position and not self.reader.is_at_end
        self._to_confirm = None
        return records[0] == (last.position, last.data)

    def _location_of(self, position: DLSN) -> SegmentLocation | None:
        """Where the segment of a position is, by the list that was read last."""
        segment = None if self.reader.value is None else self.reader.value.segment(position.segment)
        return None if segment is None else segment.location

    def _caught_up(self) -> None:
        """Everything was read that can be read now. Raises DamagedError if the image is still not known, also after the
        stream was read again: snapshots are deleted, and the stream is truncated, while it is read."""
        value, image = self.reader.value, self._machine.image
        if image is None and self.image is None:
            is_cut = value is not None and value.first_dlsn > DLSN_FIRST
            if self._has_read or is_cut:
                self._readings += 1
                if self._readings < READINGS_MAX:
                    self._machine = Follower()
                    self.reader.go_to(None)
                    return
                raise DamagedError(
                    f"the metadata stream begins in the middle and has no snapshot: stream={METADATA_STREAM} "
                    f"first={value.first_dlsn if value is not None else None}"
                )
            image = Image()  # there is no record yet
        self.image = image or self.image

    async def _apply(self, position: DLSN, data: bytes) -> bool:
        """Apply one record of the stream; False: go on reading elsewhere."""
        machine = self._machine
        before = -1 if machine.image is None else machine.image.version
        effects = machine.handle(EntryRead(data))
        if machine.image is not None and machine.image.version > max(before, 0):
            self.positions.add(max(before, 0), position)
            self._last = RecordSeen(position, bytes(data), self._location_of(position))
        while effects:
            match effects.pop(0):
                case LoadSnapshot(key):
                    try:
                        found = await self._load(key)
                    except BaseException:
                        self._machine = Follower()
                        self.reader.go_to(None)
                        raise
                    effects += await asyncio.to_thread(machine.handle, SnapshotRead(found))
                case ReadFrom() as effect:
                    self._follow([effect])
                    return False
        return True

    def _follow(self, effects: list[LoadSnapshot | ReadFrom]) -> None:
        self._last = self._to_confirm = None
        for effect in effects:
            assert isinstance(effect, ReadFrom), f"unexpected effect: {effect}"
            self.reader.go_to(self.positions.floor(effect.version) if effect.version else None)
            if not effect.version:
                self.positions = RecordPositions()

    async def _load(self, key: str) -> bytes | None:
        """Read a whole snapshot; None: there is no such object."""
        location = (await self._find_root()).below(key)
        try:
            _, size = await self._objects.read_end(location, 1)
            parts = []
            for at in range(0, size, SNAPSHOT_PART_BYTES):
                parts.append(await self._objects.read(location, at, SNAPSHOT_PART_BYTES))
        except SegmentNotFoundError:
            return None
        return b"".join(parts)
