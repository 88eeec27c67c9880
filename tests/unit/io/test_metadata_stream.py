"""Reading the metadata stream from its segments: order, changes of the list, truncation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedError, UnsupportedVersionError
from dlog.io.metadata_stream import (
    METADATA_KEY,
    POSITIONS_MAX,
    CutOffError,
    MetadataReplay,
    MetadataStreamReader,
    RecordPositions,
    create_metadata_stream,
)
from dlog.machine import Versioned
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import METADATA_STREAM, NO_ENTRY, EntryId, Epoch, SegmentNumber, Txid
from dlog.model.object_streams import KeyPut, SnapshotWritten
from dlog.model.segment import Segment, StreamMetadata
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of
from dlog.stores.contract import MisconfiguredError, SegmentWriter
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.wire.digest import crc32c
from dlog.wire.entry import RECORD_SET, Record, build_record_set, control_record, encode_entry
from dlog.wire.object_records import encode_entry as encode_records
from dlog.wire.object_snapshot import encode_snapshot
from tests.memory_metadata import MemoryMetadata
from tests.memory_objects import MemoryObjects
from tests.memory_store import MemoryStore

ROOT = parse_root("file:///objects")


async def find_root() -> Location:
    return ROOT


class Stream:
    """The metadata stream, with entries that the test writes."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        self.store = MemoryStore()
        self.objects = MemoryObjects()
        self.reader = MetadataStreamReader(self.metadata, {"memory": self.store})
        self.replay = MetadataReplay(self.reader, self.objects, find_root)
        self.writer: SegmentWriter
        self.next = EntryId(0)

    async def value(self) -> tuple[StreamMetadata, object]:
        seen = await self.metadata.read(METADATA_KEY)
        assert isinstance(seen, Versioned)
        return seen.value, seen.version

    async def begin(self, number: int) -> Segment:
        """A segment in progress."""
        self.writer = await self.store.create(METADATA_STREAM, SegmentNumber(number), Epoch(1), ())
        self.next = EntryId(0)
        segment = Segment(number=SegmentNumber(number), name=self.writer.name, store="memory", first_txid=Txid(0))
        value, version = await self.value()
        await self.metadata.compare_and_set(METADATA_KEY, value.with_segment(segment), version)
        return segment

    async def complete(self, segment: Segment) -> None:
        last = await self.writer.seal()
        value, version = await self.value()
        done = replace(segment, completed=True, last_entry=last, completed_unix_ms=1)
        await self.metadata.compare_and_set(METADATA_KEY, value.with_segment(done), version)

    async def write(self, *batches: bytes) -> None:
        """One entry with a batch of one record each."""
        records = [Record(RECORD_SET, n, 1, build_record_set([one])) for n, one in enumerate(batches, 1)]
        await self.append([*records, control_record(len(records), 1)])

    async def append(self, records: list[Record]) -> None:
        await self.writer.append(self.next, encode_entry(records))
        self.next = EntryId(self.next + 1)

    async def read(self) -> list[tuple[DLSN, bytes]]:
        """All there is now."""
        found: list[tuple[DLSN, bytes]] = []
        quiet = 0
        while quiet < 4:
            some = await self.reader.read(0.0)
            found += some
            quiet = 0 if some else quiet + 1
        return found

    async def truncate(self, number: int) -> None:
        value, version = await self.value()
        await self.metadata.compare_and_set(METADATA_KEY, value.with_truncated_before(number), version)


async def stream() -> Stream:
    made = Stream()
    await create_metadata_stream(made.metadata, "memory")
    return made


async def test_it_is_created_once() -> None:
    on = await stream()
    before, _ = await on.value()
    await create_metadata_stream(on.metadata, "other")
    value, _ = await on.value()
    assert (value.incarnation, value.settings) == (before.incarnation, before.settings)
    assert (value.settings.store, value.settings.retention_s) == ("memory", 0.0)


async def test_records_come_once_in_order_across_segments() -> None:
    on = await stream()
    assert await on.read() == []
    first = await on.begin(1)
    await on.write(b"a", b"b")
    assert await on.read() == [(of(1, 0, 0), b"a"), (of(1, 0, 1), b"b")]
    await on.append([control_record(0, 1)])
    await on.write(b"c")
    await on.complete(first)
    await on.begin(2)
    assert await on.read() == [(of(1, 2, 0), b"c")]
    assert on.reader.is_at_end
    await on.write(b"d")
    assert await on.read() == [(of(2, 0, 0), b"d")]
    on.reader.go_to(of(1, 0, 1))
    assert [data for _, data in await on.read()] == [b"b", b"c", b"d"]
    await on.reader.close()
    await on.write(b"e")
    assert [data for _, data in await on.read()] == [b"e"]


async def test_an_empty_segment_is_dropped_and_its_number_used_again() -> None:
    on = await stream()
    await on.complete(await on.begin(1))
    empty = await on.begin(2)
    assert await on.read() == []
    assert await on.writer.seal() == NO_ENTRY
    assert await on.read() == []
    value, version = await on.value()
    await on.metadata.compare_and_set(METADATA_KEY, value.without_segment(2), version)
    assert await on.read() == []
    again = await on.begin(2)
    assert again.name != empty.name
    await on.write(b"a")
    assert await on.read() == [(of(2, 0, 0), b"a")]


async def test_a_truncated_position_is_told() -> None:
    on = await stream()
    first = await on.begin(1)
    await on.write(b"a")
    await on.complete(first)
    second = await on.begin(2)
    await on.write(b"b")
    on.reader.go_to(of(1, 0, 0))
    await on.read()
    await on.complete(second)
    await on.begin(3)
    await on.truncate(2)
    on.reader.go_to(of(1, 0, 0))
    with pytest.raises(CutOffError):
        await on.read()
    on.reader.go_to(None)
    assert [data for _, data in await on.read()] == [b"b"]


async def test_a_store_that_is_not_configured_is_named() -> None:
    on = await stream()
    await on.begin(1)
    reader = MetadataStreamReader(on.metadata, {})
    with pytest.raises(MisconfiguredError, match="store=memory"):
        await reader.read(0.0)


async def test_a_replay_starts_from_a_snapshot_and_goes_on_when_it_is_cut_off() -> None:
    on = await stream()
    truth = Image()

    def put(key: str) -> bytes:
        data = encode_records(truth.version, [KeyPut(key, b"v")])
        truth.apply(KeyPut(key, b"v"))
        return data

    first = await on.begin(1)
    await on.write(put("a"), put("b"))
    await on.complete(first)
    second = await on.begin(2)
    await on.write(put("c"))
    early = MetadataReplay(MetadataStreamReader(on.metadata, {"memory": on.store}), on.objects, find_root)
    await early.step(0.0)
    snapshot = encode_snapshot(contents_of(truth))
    on.objects.objects[str(ROOT.below("x/snapshots/3"))] = snapshot
    record = SnapshotWritten("x/snapshots/3", truth.version, len(snapshot), crc32c(snapshot))
    await on.write(put("d"))
    data = encode_records(truth.version, [record])
    truth.apply(record)
    await on.write(data)
    await on.complete(second)
    await on.begin(3)
    await on.truncate(2)
    for replay in (on.replay, early):
        image = await replay.read_to_end(0.01, lambda: False)
        assert encode_snapshot(contents_of(image)) == encode_snapshot(contents_of(truth))
    await on.write(put("e"))
    while not await on.replay.step(0.0):
        pass
    assert on.replay.image is not None
    assert set(on.replay.image.keys) == {"a", "b", "c", "d", "e"}
    assert on.replay.positions.floor(truth.version) == of(3, 0, 0)


async def test_a_stream_without_its_beginning_and_without_a_snapshot_is_damaged() -> None:
    on = await stream()
    first = await on.begin(1)
    await on.write(encode_records(0, [KeyPut("a", b"v")]))
    await on.complete(first)
    second = await on.begin(2)
    await on.write(encode_records(1, [KeyPut("b", b"v")]))
    await on.complete(second)
    await on.begin(3)
    await on.truncate(2)
    with pytest.raises(DamagedError, match="no snapshot"):
        await on.replay.read_to_end(0.01, lambda: False)


async def test_records_of_a_newer_version_say_to_upgrade_and_are_not_applied() -> None:
    on = await stream()
    await on.begin(1)
    known, newer = encode_records(0, [KeyPut("a", b"v")]), bytearray(encode_records(1, [KeyPut("b", b"v")]))
    newer[0] += 1  # the version
    await on.write(known)
    while await on.replay.step(0.0) or on.replay.image is None:
        pass
    await on.write(bytes(newer))
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        while True:
            await on.replay.step(0.0)
    assert set(on.replay.image.keys) == {"a"}


async def test_another_incarnation_of_the_stream_is_damage() -> None:
    on = await stream()
    await on.replay.step(0.0)
    value, _ = await on.value()
    on.metadata._values[METADATA_KEY] = Versioned(replace(value, incarnation="other"), 99)
    await on.reader.close()
    with pytest.raises(DamagedError, match="created again"):
        await on.replay.step(0.0)


@given(st.lists(st.integers(1, 5), max_size=3 * POSITIONS_MAX, min_size=1), st.data())
def test_a_position_is_never_behind_the_record(steps: list[int], data: st.DataObject) -> None:
    kept = RecordPositions()
    known: list[tuple[int, DLSN]] = []
    version = 0
    for entry, step in enumerate(steps):
        kept.add(version, of(1, entry, 0))
        known.append((version, of(1, entry, 0)))
        version += step
    wanted = data.draw(st.integers(0, version))
    found = kept.floor(wanted)
    assert found is not None
    assert found <= max(at for before, at in known if before <= wanted)
    assert len(kept._versions) <= POSITIONS_MAX
