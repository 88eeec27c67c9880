"""Tests one run of a compaction plan: the output is the input, entry for entry, and what stops it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import ConnectionLostError, DamagedError
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    NO_OBJECT,
    CompactionCommitted,
    NodeOpened,
    ObjectId,
    ObjectsPrepared,
    ObjectStreamId,
    Slice,
    StreamCreated,
    StreamObject,
    StreamOpened,
    StreamSetObject,
    StreamTrimmed,
    UploadCommitted,
    WalPosition,
)
from dlog.objects import compaction_run
from dlog.objects.compaction import CompactionOptions, CompactionPlan, plan_set_objects, plan_stream_objects
from dlog.objects.compaction_run import (
    BytesRead,
    CommitRefused,
    CommitUnclear,
    CompactionAbandoned,
    CompactionDone,
    CompactionEffect,
    CompactionRun,
    CopyOptions,
    PartWritten,
    Phase,
    ReadBytes,
    StorageFailed,
    WritePart,
)
from dlog.objects.image import Image
from dlog.objects.operations import CommitCompaction, Done, ObjectsArePrepared, PrepareObjects
from dlog.wire.stream_object import (
    ObjectEncoder,
    ObjectEntry,
    ObjectIndex,
    Span,
    decode_block,
    decode_footer,
    decode_index,
    index_in,
)
from tests.unit.objects.search_model import EPOCH, NODES

A = NODES[0]
HOUR_MS = 3600 * 1000
Content = dict[tuple[int, int], tuple[bytes, Span | None]]  # by stream and offset


def opened(data: bytes) -> ObjectIndex:
    footer = decode_footer(data, len(data))
    index = index_in(footer, data)
    assert index is not None
    return decode_index(footer, index)


def content(data: bytes) -> Content:
    found: Content = {}
    for row in opened(data).blocks:
        for at, entry in enumerate(decode_block(row, data[row.position : row.position + row.bytes])):
            found[row.stream, row.start + at] = bytes(entry.payload), entry.span
    return found


class World:
    """An image, the objects that it names, and a driver that performs a run's effects in any order."""

    def __init__(self, *, streams: int = 2, starts: tuple[int, ...] = ()) -> None:
        self.image = Image()
        self.objects: dict[ObjectId, bytes] = {}
        self.ends = [*starts, *[0] * streams][:streams]
        self.largest_held = 0
        self.parts: dict[ObjectId, list[bytes]] = {}
        self.image.apply(NodeOpened(A, EPOCH, False))
        for stream in map(ObjectStreamId, range(1, streams + 1)):
            self.image.apply_all((StreamCreated(stream), StreamOpened(stream, Epoch(1), A, EPOCH)))
            if self.ends[stream - 1]:
                its = self.image.streams[stream]
                its.start = its.ranges[0].start = its.ranges[0].committed = self.ends[stream - 1]

    def prepare(self, count: int = 1) -> ObjectId:
        first = self.image.next_object
        self.image.apply(ObjectsPrepared(first, count, A, EPOCH, 10**9))
        return first

    def upload(self, *bodies: list[bytes], own: bool = False, span: Span | None = None) -> None:
        """One upload with these entries of each stream: as stream objects, or all as one stream-set object."""
        slices, stream_objects, set_object = [], [], None
        encoder = ObjectEncoder(self.prepare(), A, EPOCH, block_bytes=100)
        parts: list[Any] = []
        for number, some in enumerate(bodies):
            if not some:
                continue
            stream, start = ObjectStreamId(number + 1), self.ends[number]
            for at, body in enumerate(some):
                parts += encoder.add(stream, start + at, ObjectEntry(body, span))
            self.ends[number] += len(some)
            slices.append(Slice(stream, start, self.ends[number]))
        object = ObjectId(self.image.next_object - 1)
        self.objects[object] = b"".join([*parts, *encoder.finish()])
        size = len(self.objects[object])
        if own:
            (one,) = slices
            stream_objects.append(StreamObject(object, one.stream, one.start, one.end, size))
        else:
            set_object = StreamSetObject(object, object, 0, size, tuple(slices))
        self.image.apply(UploadCommitted(A, EPOCH, set_object, tuple(stream_objects), WalPosition(0, 0), 0))

    def plans(self, options: CompactionOptions | None = None, *, now_ms: int = 9 * HOUR_MS) -> list[CompactionPlan]:
        chosen = options or CompactionOptions()
        indexes = {object: opened(data) for object, data in self.objects.items()}
        plans = plan_set_objects(self.image, A, now_ms, indexes, chosen)
        for stream in self.image.streams:
            plans += plan_stream_objects(self.image, A, stream, chosen, is_major=False)
        return plans

    def live(self) -> Content:
        """The entries that a search would find, read from the objects."""
        found: Content = {}
        tables = [(stream, its.objects) for stream, its in self.image.streams.items()]
        tables += list(self.image.nodes[A].slices.items())
        for stream, table in tables:
            for start, end, object in zip(table.starts, table.ends, table.objects, strict=True):
                its = content(self.objects[ObjectId(object)])
                for offset, entry in ((offset, entry) for (one, offset), entry in its.items() if one == stream):
                    if start <= offset < end and offset >= self.image.streams[stream].start:
                        assert (stream, offset) not in found
                        found[stream, offset] = entry
        return found

    def perform(self, effect: CompactionEffect) -> Any:
        """The fact that answers an effect."""
        match effect:
            case ReadBytes(object, position, size):
                return BytesRead(object, position, self.objects[object][position : position + size])
            case PrepareObjects(_, _, count, _):
                return ObjectsArePrepared(self.prepare(count), count)
            case WritePart(object, number, data, is_last):
                parts = self.parts.setdefault(object, [])
                assert len(parts) == number, "parts are written in order"
                parts.append(b"".join(map(bytes, data)))
                if is_last:
                    self.objects[object] = b"".join(parts)
                return PartWritten(object, number)
            case CommitCompaction(_, _, sources, set_objects, stream_objects):
                assert all(new.bytes == len(self.objects[new.object]) for new in set_objects)
                assert all(new.bytes == len(self.objects[new.object]) for new in stream_objects)
                self.image.apply(CompactionCommitted(A, EPOCH, sources, set_objects, stream_objects, 0))
                return Done()
            case _:
                raise AssertionError(effect)

    def drive(
        self, run: CompactionRun, rng: random.Random, *, meddle: Callable[[CompactionEffect], Any] = lambda effect: None
    ) -> CompactionEffect:
        """Run to the end: the last effect. meddle: answers an effect in place of the world, if it likes."""
        waiting = run.begin()
        while True:
            self.largest_held = max(self.largest_held, run.held_bytes)
            for effect in waiting:
                if isinstance(effect, CompactionDone | CompactionAbandoned):
                    return effect
            writes = [effect for effect in waiting if isinstance(effect, WritePart)]
            others = [effect for effect in waiting if not isinstance(effect, WritePart)]
            effect = rng.choice([*others, *writes[:1]])
            waiting.remove(effect)
            fact = meddle(effect)
            waiting += run.handle(self.perform(effect) if fact is None else fact)


def bodies(count: int, name: str = "x") -> list[bytes]:
    return [f"{name}{at}".encode() * 3 for at in range(count)]


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from((0, 2**31 - 3, 2**32 - 2, 2**63 - 100)))
def test_the_output_is_the_input_entry_for_entry(rng: random.Random, first: int) -> None:
    """Set objects and stream objects, offsets that are small, beyond 2^31, 2^32 and far apart."""
    world = World(streams=3, starts=(0, first, first // 3))
    for at in range(rng.randrange(1, 6)):
        span = rng.choice((None, Span(at, at + 1, -at, 2**40)))
        own = rng.random() < 0.3
        some = [bodies(rng.randrange(9), f"{at}.") for _ in range(3)]
        if own:
            some = [part if number == at % 3 else [] for number, part in enumerate(some)]
        if any(some):
            world.upload(*some, own=own, span=span)
    if rng.random() < 0.5 and world.ends[0]:
        world.image.apply(StreamTrimmed(ObjectStreamId(1), rng.randrange(world.ends[0])))
    before = world.live()
    copying = CopyOptions(
        held_bytes_max=rng.choice((1, 500, 10**6)),
        piece_bytes=rng.choice((1, 300, 10**6)),
        part_bytes=rng.choice((1, 300, 10**6)),
        block_bytes=rng.choice((1, 200, 10**6)),
        prepare_max=rng.choice((1, 2, 1000)),
    )
    options = CompactionOptions(split_bytes=rng.choice((0, 300, 10**6)))
    for _ in range(2):
        for plan in world.plans(options, now_ms=rng.choice((0, 9 * HOUR_MS))):
            run = CompactionRun(plan, EPOCH, world.image, options=copying)
            assert isinstance(world.drive(run, rng), CompactionDone)
            assert run.phase is Phase.DONE and run.held_bytes == 0
            assert world.live() == before
    for object, data in world.objects.items():
        footer = opened(data).footer
        assert (footer.object, footer.node, footer.node_epoch) == (object, A, EPOCH)


def large_world() -> tuple[World, CompactionPlan]:
    world = World(streams=1)
    for _ in range(8):
        world.upload([b"y" * 50] * 100, own=True)
    (plan,) = world.plans()
    return world, plan


def test_the_bytes_held_are_bounded() -> None:
    world, plan = large_world()
    options = CopyOptions(held_bytes_max=6000, piece_bytes=1000, part_bytes=1500, block_bytes=1500)
    run = CompactionRun(plan, EPOCH, world.image, options=options)
    done = world.drive(run, random.Random(1))
    assert isinstance(done, CompactionDone)
    assert done.bytes_read > 40_000 and done.bytes_written > 40_000
    assert 3000 < world.largest_held <= 6000 + 1500 + 2400


def test_neighbouring_blocks_are_read_at_once_and_indexes_that_are_known_are_not_read() -> None:
    world, plan = large_world()
    indexes = {object: opened(data) for object, data in world.objects.items()}
    reads: list[ReadBytes] = []

    def see(effect: CompactionEffect) -> None:
        if isinstance(effect, ReadBytes):
            reads.append(effect)

    run = CompactionRun(plan, EPOCH, world.image, indexes=indexes)
    assert isinstance(world.drive(run, random.Random(1), meddle=see), CompactionDone)
    assert sorted((read.object, read.position) for read in reads) == [(object, 0) for object in range(1, 9)]


def test_an_index_that_the_first_read_does_not_have_is_read() -> None:
    world = World(streams=200)
    world.upload(*[[b"x"]] * 200)
    (plan,) = world.plans()
    run = CompactionRun(plan, EPOCH, world.image)
    before = world.live()
    assert isinstance(world.drive(run, random.Random(1)), CompactionDone)
    assert world.live() == before


def test_a_clean_up_reads_and_writes_nothing() -> None:
    world, _ = large_world()
    world.image.apply(StreamTrimmed(ObjectStreamId(1), 800))
    (plan,) = world.plans()
    assert CompactionRun(plan, EPOCH, world.image).begin() == [CommitCompaction(A, EPOCH, plan.sources, (), ())]


@pytest.mark.parametrize("when", [ReadBytes, PrepareObjects, WritePart, CommitCompaction])
def test_a_source_that_is_gone_ends_the_run_without_a_fault(when: type) -> None:
    world, plan = large_world()
    other = CompactionRun(plan, EPOCH, world.image)
    is_done = False

    def meddle(effect: CompactionEffect) -> Any:
        nonlocal is_done
        if isinstance(effect, when) and not is_done:
            is_done = True
            world.drive(other, random.Random(2))
            return CommitRefused("a source is gone") if isinstance(effect, CommitCompaction) else None
        return None

    ended = world.drive(CompactionRun(plan, EPOCH, world.image), random.Random(1), meddle=meddle)
    assert isinstance(ended, CompactionAbandoned) and "gone" in ended.reason and ended.error is None
    assert other.phase is Phase.DONE


def test_a_source_that_was_gone_before_is_found_at_once() -> None:
    world, plan = large_world()
    world.drive(CompactionRun(plan, EPOCH, world.image), random.Random(1))
    (ended,) = CompactionRun(plan, EPOCH, world.image).begin()
    assert isinstance(ended, CompactionAbandoned) and "gone" in ended.reason


def test_a_write_that_is_given_up_ends_the_run_and_names_what_is_unfinished() -> None:
    world, plan = large_world()
    options = CopyOptions(part_bytes=3000, piece_bytes=3000, block_bytes=1000)
    seen = []

    def meddle(effect: CompactionEffect) -> Any:
        if isinstance(effect, WritePart):
            seen.append(effect)
            if len(seen) == 3:
                return StorageFailed(effect.object, ConnectionLostError("no answer"))
        return None

    run = CompactionRun(plan, EPOCH, world.image, options=options)
    ended = world.drive(run, random.Random(1), meddle=meddle)
    assert isinstance(ended, CompactionAbandoned) and isinstance(ended.error, ConnectionLostError)
    assert ended.unfinished == (seen[0].object,)
    assert run.handle(PartWritten(seen[0].object, 0)) == []
    assert world.image.objects.state(plan.sources[0]).name == "COMMITTED"


def test_no_ids_end_the_run() -> None:
    world, plan = large_world()

    def meddle(effect: CompactionEffect) -> Any:
        return StorageFailed(NO_OBJECT, ConnectionLostError("x")) if isinstance(effect, PrepareObjects) else None

    ended = world.drive(CompactionRun(plan, EPOCH, world.image), random.Random(1), meddle=meddle)
    assert isinstance(ended, CompactionAbandoned) and ended.unfinished == ()


def test_a_commit_with_an_unclear_answer_is_repeated_as_it_was() -> None:
    world, plan = large_world()
    seen = []

    def meddle(effect: CompactionEffect) -> Any:
        if isinstance(effect, CommitCompaction):
            seen.append(effect)
            return CommitUnclear() if len(seen) < 3 else None
        return None

    assert isinstance(
        world.drive(CompactionRun(plan, EPOCH, world.image), random.Random(1), meddle=meddle), CompactionDone
    )
    assert len(seen) == 3 and seen[0] == seen[1] == seen[2]


def test_every_damaged_byte_of_a_source_ends_the_run() -> None:
    for at in (*range(0, 600, 7), -9, -1):  # -9: the version in the footer
        world = World(streams=2)
        world.upload(bodies(3), bodies(4))
        world.upload(bodies(3), bodies(4))
        (plan,) = world.plans()
        data = bytearray(world.objects[ObjectId(1)])
        data[at % len(data)] ^= 1
        world.objects[ObjectId(1)] = bytes(data)
        ended = world.drive(CompactionRun(plan, EPOCH, world.image), random.Random(1))
        assert isinstance(ended, CompactionAbandoned) and ended.error is not None, at


def test_an_object_in_the_place_of_another_ends_the_run() -> None:
    world = World(streams=1)
    world.upload(bodies(3))
    world.upload(bodies(3))
    (plan,) = world.plans()
    world.objects[ObjectId(2)] = world.objects[ObjectId(1)]
    ended = world.drive(CompactionRun(plan, EPOCH, world.image), random.Random(1))
    assert isinstance(ended, CompactionAbandoned) and isinstance(ended.error, DamagedError)


def test_an_object_that_lacks_entries_of_its_slice_ends_the_run() -> None:
    world = World(streams=1)
    world.upload(bodies(3))
    (plan,) = world.plans()
    encoder = ObjectEncoder(ObjectId(1), A, EPOCH)
    parts = encoder.add(ObjectStreamId(1), 0, ObjectEntry(b"x" * len(world.objects[ObjectId(1)])))
    world.objects[ObjectId(1)] = b"".join([*parts, *encoder.finish()])
    world.image.objects._row(1)[0].bytes[0] = len(world.objects[ObjectId(1)])
    ended = world.drive(CompactionRun(plan, EPOCH, world.image), random.Random(1))
    assert isinstance(ended, CompactionAbandoned) and "lacks entries" in ended.reason


def test_a_failed_proof_abandons_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    world, plan = large_world()
    monkeypatch.setattr(compaction_run, "find_uncovered", lambda *_: "a live entry would be lost")
    ended = world.drive(CompactionRun(plan, EPOCH, world.image), random.Random(1))
    assert isinstance(ended, CompactionAbandoned) and "lost" in ended.reason
    assert world.image.objects.state(plan.sources[0]).name == "COMMITTED"
