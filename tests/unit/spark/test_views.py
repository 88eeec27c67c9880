"""Tests what is shown of a stream while its owner changes segments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from dlog.errors import UnavailableError
from dlog.machine import Versioned
from dlog.model.ids import EntryId, Epoch, SegmentNumber, StreamName, Txid
from dlog.model.segment import Segment, StreamMetadata
from dlog.spark import views
from dlog.spark.cluster_connection import Cluster
from dlog.spark.offsets import StreamPosition
from dlog.spark.options import Bound, Kind, SourceOptions
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentStat,
    SegmentStore,
    StoreUnavailableError,
)
from tests.integration.stores.seeking import entry_payload
from tests.memory_store import MemoryStore
from tests.unit.spark.test_columns import entry_of

NAME = StreamName("s")
OPTIONS = SourceOptions(zookeeper="h:1", streams=(NAME,))


def segment(number: int, **given: Any) -> Segment:
    return Segment(number=SegmentNumber(number), name=str(number), first_txid=Txid(0), **given)


class _Entries:
    def __init__(self, idle: set[int]) -> None:
        self._idle = idle

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        return [entry_of([] if first in self._idle else [(1, [b"x"])])]

    def learn_lac(self, lac: EntryId) -> None: ...

    async def close(self) -> None: ...


@dataclass
class World:
    """A cluster as far as a view needs one. tails: of ledgers that are open; ends: of closed ones."""

    segments: tuple[Segment, ...]
    tails: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    looks: int = 0
    asked: list[int] = field(default_factory=list)
    on_look: Any = None
    idle: set[int] = field(default_factory=set)
    stores: dict[str, SegmentStore] = field(default_factory=dict)
    reader: _Entries | None = None

    async def read(self, key: Any) -> Versioned:
        self.looks += 1
        if self.on_look is not None:
            self.on_look(self.looks)
        return Versioned(StreamMetadata(name=NAME, segments=self.segments, max_segment=SegmentNumber(9)), 0)

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        number = int(ref.name)
        self.asked.append(number)
        if number in self.ends:
            return SegmentStat(EntryId(self.ends[number]), 1000)
        if number not in self.tails:
            raise SegmentNotFoundError("gone")
        return SegmentStat()

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        return EntryId(self.tails[int(ref.name)])

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> _Entries:
        return self.reader or _Entries(self.idle)

    async def look(self, kept: views.StreamViewer | None = None) -> views.Seen:
        stores = {"ledger": cast(Any, self), **self.stores}
        cluster = Cluster(cast(Any, self), cast(Any, self), stores)
        return (await (kept or views.StreamViewer()).look(cluster, OPTIONS))[NAME]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_LOOK_AGAIN_S", 0.0)


async def test_the_next_segment_is_shown_once_the_one_before_has_ended() -> None:
    """At the first look the owner has written to the second segment while entries of the first were in flight."""
    world = World((segment(1), segment(2)), tails={1: 4, 2: 0})

    def end(look: int) -> None:
        if look == 3:
            del world.tails[1]
            world.ends[1] = 6

    world.on_look = end
    seen = await world.look()
    assert world.looks == 3
    assert [(s.number, s.last) for s in seen.view.segments] == [(1, 6), (2, 0)]
    assert seen.view.latest == StreamPosition(2, 1)


async def test_a_stream_whose_owner_died_between_two_segments_is_given_another(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World((segment(1), segment(2)), tails={1: 4, 2: 0})

    async def ensure_owned(cluster: Cluster, stream: str, timeout_s: float) -> None:
        world.ends |= {1: 5, 2: 3}

    monkeypatch.setattr(views, "ensure_owned", ensure_owned)
    assert (await world.look()).view.latest == StreamPosition(2, 4)


async def test_a_segment_that_nobody_ends_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(cluster: Cluster, stream: str, timeout_s: float) -> None:
        raise UnavailableError("no write proxy is registered")

    monkeypatch.setattr(views, "ensure_owned", nobody)
    world = World((segment(1), segment(2)), tails={1: 4, 2: 0})
    with pytest.raises(StoreUnavailableError, match="a segment is not sealed although the next one has entries"):
        await world.look()


async def test_an_empty_segment_behind_an_open_one_is_not_shown() -> None:
    seen = await World((segment(1), segment(2)), tails={1: 4, 2: -1}).look()
    assert seen.view.latest == StreamPosition(1, 5)


async def test_what_is_truncated_meanwhile_is_looked_at_again() -> None:
    world = World((segment(1, completed=True), segment(2)), tails={2: 3})

    def truncate(look: int) -> None:
        if look == 2:
            world.segments = world.segments[1:]

    world.on_look = truncate
    assert (await world.look()).view.earliest == StreamPosition(2, 0)


async def test_ends_are_asked_for_once_and_known_when_the_segment_has_left() -> None:
    world = World((segment(1, completed=True, last_entry=EntryId(6), record_count=70), segment(2)), {2: -1}, {1: 6})
    kept = views.StreamViewer()
    first = await world.look(kept)
    await world.look(kept)
    assert world.asked.count(1) == 1
    assert first.view.segments[0].records == first.view.segments[
        0
    ].counted == 70 and first.view.latest == StreamPosition(1, 7)
    world.segments = world.segments[1:]
    world.tails[2] = 0
    after = await world.look(kept)
    assert after.view.past == ((1, 6),)
    assert after.view.tallies == ((1, -1, 70),)
    world.tails[2] = -1
    assert (await world.look(kept)).view.latest == StreamPosition(1, 7), "one spelling, though it has left"
    assert (await world.look()).view.latest == StreamPosition(2, 0), "a new view does not know it"


async def test_what_an_idle_owner_wrote_is_told_from_records_also_once_it_has_ended_and_gone() -> None:
    world = World((segment(1),), tails={1: 6}, idle={5, 6})
    kept = views.StreamViewer()
    assert (await world.look(kept)).view.segments[0].idle == 2
    del world.tails[1]
    world.ends[1] = 6
    world.segments = (segment(1, completed=True, last_entry=EntryId(6), record_count=5), segment(2))
    world.tails[2] = 0
    assert (await world.look(kept)).view.segments[0].idle == 2
    world.segments = world.segments[1:]
    assert (await world.look(kept)).view.past == ((1, 4),), "whoever read its records has lost nothing"
    world.tails[2] = -1
    assert (await world.look(kept)).view.latest == StreamPosition(1, 7)


async def test_segments_of_another_store_end_where_it_decided_and_are_measured() -> None:
    """Segments of another store have no ledger metadata. An open one is shown up to its tail, and its writer goes
    on."""
    store = MemoryStore()
    writers = [await store.create(NAME, SegmentNumber(number), Epoch(1), ()) for number in (1, 2)]
    for writer in writers:
        for number in range(8):
            await writer.append(EntryId(number), [entry_of([(1, [b"x" * 100])])])
    await writers[0].seal()
    completed = segment(1, completed=True, last_entry=EntryId(7), record_count=8)
    listed = zip((completed, segment(2)), writers, strict=True)
    world = World(tuple(replace(one, store="file", name=writer.name) for one, writer in listed))
    with pytest.raises(MisconfiguredError, match="DLOG_FILE_DIRECTORY"):
        await world.look()
    world.stores = {"file": store}
    one, two = (await world.look()).view.segments
    size = 8 * len(entry_of([(1, [b"x" * 100])]))
    assert (one.last, one.bytes, one.records, one.is_final) == (7, size, 8, True)
    assert (two.last, two.bytes, two.is_final) == (7, size, False)
    await writers[1].append(EntryId(8), [b"and on"])


async def test_a_place_in_the_stream_is_counted_before_the_list_does() -> None:
    before = segment(1, completed=True, last_entry=EntryId(6), record_count=70, start_sequence_id=30)
    seen = await World((before, segment(2)), {2: 0}, {1: 6}).look()
    assert [s.start_sequence_id for s in seen.view.segments] == [30, 100]
    alone = await World((segment(2),), {2: 0}).look()
    assert alone.view.segments[0].start_sequence_id == -1


async def test_a_bound_by_txid_is_sought_among_the_entries_that_the_store_has_left() -> None:
    asked: list[tuple[Any, ...]] = []
    read: list[int] = []

    class Indexed(_Entries):
        async def locate(self, *which: int, by_time: bool) -> tuple[EntryId, EntryId]:
            asked.append((*which, by_time))
            return EntryId(70), EntryId(72)

        async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
            read.append(first)
            return [entry_payload([first], 5000)]

    world = World((segment(1, completed_unix_ms=9, last_txid=Txid(99), completed=True, last_entry=EntryId(99)),))
    world.ends[1] = 99
    seen = await world.look()
    world.reader = Indexed(set())
    cluster = Cluster(cast(Any, world), cast(Any, world), {"ledger": cast(Any, world)})
    assert await views.resolve(cluster, seen, Bound(Kind.TXID, 71)) == StreamPosition(1, 71, 0)
    assert asked == [(0, 99, 71, False)]
    assert set(read) <= {70, 71, 72}
