"""A replay of the metadata stream that goes on from where another one is, and does not believe it blindly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.io.metadata_stream import METADATA_KEY, MetadataReplay, MetadataStreamReader, ReplayPoint
from dlog.machine import Versioned
from dlog.model.dlsn import DLSN
from dlog.model.object_streams import KeyPut, SnapshotWritten
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of
from dlog.wire.digest import crc32c
from dlog.wire.object_records import encode_entry
from dlog.wire.object_snapshot import encode_snapshot
from tests.unit.io.test_metadata_stream import ROOT, Stream, find_root, stream


class Reader(MetadataStreamReader):
    """seen: positions of the records that were read."""

    def __init__(self, on: Stream) -> None:
        super().__init__(on.metadata, {"memory": on.store})
        self.seen: list[DLSN] = []

    async def read(self, wait_s: float) -> list[tuple[DLSN, bytes]]:
        found = await super().read(wait_s)
        self.seen += [position for position, _ in found]
        return found


class Log:
    """The metadata stream, and what it says."""

    def __init__(self, on: Stream) -> None:
        self.on = on
        self.truth = Image()
        self.segments = 0

    async def segment(self, *keys: str, is_open: bool = False) -> None:
        self.segments += 1
        made = await self.on.begin(self.segments)
        for key in keys:
            await self.put(key)
        if not is_open:
            await self.on.complete(made)

    async def put(self, key: str) -> None:
        data = encode_entry(self.truth.version, [KeyPut(key, b"v")])
        self.truth.apply(KeyPut(key, b"v"))
        await self.on.write(data)

    async def point(self) -> ReplayPoint:
        """Of a process that follows, and has read everything."""
        while self.on.replay.image is None or self.on.replay.image.version < self.truth.version:
            await self.on.replay.step(0.0)
        point = self.on.replay.point()
        assert point is not None
        return point

    async def replayed(self, point: ReplayPoint) -> tuple[MetadataReplay, Reader]:
        reader = Reader(self.on)
        replay = MetadataReplay(reader, self.on.objects, find_root)
        await replay.go_on_from(point)
        image = await replay.read_to_end(0.01, lambda: False)
        assert encode_snapshot(contents_of(image)) == encode_snapshot(contents_of(self.truth))
        return replay, reader


@pytest.fixture
async def log() -> Log:
    return Log(await stream())


async def test_it_reads_one_record_again_and_those_that_came_since(log: Log) -> None:
    await log.segment(*(f"k{n}" for n in range(50)))
    await log.segment("a", "b", is_open=True)
    point = await log.point()
    await log.put("c")  # by the owner that was
    value, _ = await log.on.value()
    await log.on.complete(value.in_progress[0])
    await log.segment(is_open=True)
    replay, reader = await log.replayed(point)
    assert [position.entry for position in reader.seen] == [1, 2]
    assert replay.positions.floor(0) == log.on.replay.positions.floor(0)
    assert replay.incarnation == log.on.replay.incarnation


async def test_both_go_on_without_each_other(log: Log) -> None:
    await log.segment("a", "b")
    await log.segment(is_open=True)
    replay, _ = await log.replayed(await log.point())
    await log.put("c")
    assert log.on.replay.image is not None and replay.image is not None
    while "c" not in log.on.replay.image.keys:
        await log.on.replay.step(0.0)
    assert "c" not in replay.image.keys


async def test_a_stream_that_lost_its_last_segment_is_read_as_it_is(log: Log) -> None:
    await log.segment("a", "b")
    before, _ = await log.on.value()
    await log.segment("c")
    point = await log.point()
    log.on.metadata._values[METADATA_KEY] = Versioned(before, 99)  # as if ZooKeeper was restored
    log.truth = Image()
    log.truth.apply_all([KeyPut("a", b"v"), KeyPut("b", b"v")])
    replay, _ = await log.replayed(point)
    assert replay.image is not None and set(replay.image.keys) == {"a", "b"}


async def test_a_stream_with_another_record_there_is_read_as_it_is(log: Log) -> None:
    await log.segment("a", "b")
    before, _ = await log.on.value()
    await log.segment("c")
    point = await log.point()
    log.on.metadata._values[METADATA_KEY] = Versioned(before, 99)
    log.truth = Image()
    log.truth.apply_all([KeyPut("a", b"v"), KeyPut("b", b"v")])
    log.segments = 1
    await log.segment("other", "more")
    await log.segment(is_open=True)
    _, reader = await log.replayed(point)
    assert len(reader.seen) > 2


async def test_an_equal_record_there_in_another_segment_is_not_taken_for_it(log: Log) -> None:
    await log.segment("a", "b")
    before, _ = await log.on.value()
    await log.segment("c", "d")
    point = await log.point()
    log.on.metadata._values[METADATA_KEY] = Versioned(before, 99)
    log.truth = Image()
    log.truth.apply_all([KeyPut("a", b"v"), KeyPut("b", b"v")])
    log.segments = 1
    await log.segment("other", "d")
    await log.segment(is_open=True)
    replay, _ = await log.replayed(point)
    assert replay.image is not None and set(replay.image.keys) == {"a", "b", "other", "d"}


async def test_a_stream_that_was_truncated_beyond_it_is_read_from_a_snapshot(log: Log) -> None:
    await log.segment("a")
    point = await log.point()
    snapshot = encode_snapshot(contents_of(log.truth))
    log.on.objects.objects[str(ROOT.below("x/snapshots/1"))] = snapshot
    record = SnapshotWritten("x/snapshots/1", 1, len(snapshot), crc32c(snapshot))
    log.segments += 1
    made = await log.on.begin(log.segments)
    await log.on.write(encode_entry(1, [record]))
    log.truth.apply(record)
    await log.on.complete(made)
    await log.segment(is_open=True)
    await log.on.truncate(2)
    await log.replayed(point)


async def test_another_incarnation_of_the_stream_is_read_as_it_is(log: Log) -> None:
    await log.segment("a")
    await log.segment(is_open=True)
    point = await log.point()
    replay, reader = await log.replayed(replace(point, incarnation="former"))
    assert replay.incarnation == point.incarnation
    assert len(reader.seen) >= 1


async def test_a_replay_that_knows_nothing_tells_no_point(log: Log) -> None:
    assert log.on.replay.point() is None
    await log.on.replay.step(0.0)
    assert log.on.replay.point() is None, "no record is known"
