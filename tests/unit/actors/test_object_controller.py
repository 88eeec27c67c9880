"""The controller's actor with an owner that the test plays: order, gathering, failures, deletion, snapshots."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors.object_controller import ObjectControllerActor, ObjectControllerOptions
from dlog.errors import ClaimLostError, ClosedError, ConfigError, DLogError, OverCapacityError
from dlog.events import Event, MetadataSnapshotFailed, MetadataSnapshotWritten
from dlog.io.driver import Sink
from dlog.io.metadata_stream import METADATA_KEY, MetadataReplay, MetadataStreamReader, choose_metadata_store
from dlog.log.messages import BatchWritten, TruncateBefore, WriteBatch
from dlog.model.dlsn import of
from dlog.model.ids import METADATA_STREAM, Epoch, Txid
from dlog.model.object_streams import NodeEpoch, NodeId
from dlog.model.segment import Owner, StreamMetadata
from dlog.objects.errors import ControllerLostError, NodeEpochExpiredError
from dlog.objects.keys import object_key
from dlog.objects.operations import GetKey, KeyValue, ObjectsArePrepared, OpenNode, PrepareObjects, PutKey
from dlog.objects.options import ControllerOptions
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.wire.entry import parse_record_set
from dlog.wire.object_records import decode_entry
from tests.memory_metadata import MemoryMetadata
from tests.memory_objects import MemoryObjects, PutFault
from tests.memory_store import MemoryStore

ROOT = parse_root("file:///objects")
PATIENCE_S = 90.0


class PlayedOwner:
    """Keeps requests until the test answers them."""

    incarnation: str | None = "a1"

    def __init__(self) -> None:
        self.batches: deque[tuple[WriteBatch, Sink]] = deque()
        self.seen: list[WriteBatch] = []
        self.truncated: list[TruncateBefore] = []
        self.is_closed = False
        self.confirms = True

    def submit(self, request: Any, sink: Sink) -> None:
        if self.is_closed:
            raise ClosedError("ended")
        if isinstance(request, TruncateBefore):
            self.truncated.append(request)
            return
        self.seen.append(request)
        self.batches.append((request, sink))
        if self.confirms:
            asyncio.get_running_loop().call_soon(self.confirm)

    def confirm(self) -> None:
        self.batches.popleft()[1](BatchWritten(of(1, len(self.seen), 0), 1, Txid(1)))

    def fail(self, error: DLogError) -> None:
        self.batches.popleft()[1](error)


class Stage:
    def __init__(self, epoch: int = 1, **options: Any) -> None:
        self.owner = PlayedOwner()
        self.objects = MemoryObjects()
        self.metadata = MemoryMetadata()
        self.events: list[Event] = []
        self.ended: list[bool] = []
        self.news = asyncio.Event()
        requests_max = options.pop("requests_max", 1000)
        given = ControllerOptions(**{"retention_ms": 0, **options})
        self.actor = ObjectControllerActor(
            self.owner,
            Epoch(epoch),
            replay=MetadataReplay(
                MetadataStreamReader(self.metadata, {"memory": MemoryStore()}), self.objects, self.find_root
            ),
            objects=self.objects,
            find_root=self.find_root,
            options=ObjectControllerOptions(
                requests_max=requests_max, tick_s=0.01, replay_wait_s=0.01, controller=given
            ),
            on_event=self.tell,
            on_end=lambda _, is_deposed: self.ended.append(is_deposed),
        )

    async def find_root(self) -> Location:
        return ROOT

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self.news.set()

    async def create_stream(self) -> None:
        made = StreamMetadata(name=METADATA_STREAM, incarnation="a1", owner=Owner(epoch=Epoch(1)))
        await self.metadata.compare_and_set(METADATA_KEY, made, None)

    async def hear(self, kind: type[Event]) -> Event:
        async with asyncio.timeout(PATIENCE_S):
            while not (found := [event for event in self.events if isinstance(event, kind)]):
                self.news.clear()
                await self.news.wait()
        return found[0]


@asynccontextmanager
async def stage(**options: Any) -> AsyncIterator[Stage]:
    built = Stage(**options)
    await built.create_stream()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(built.actor.run())
        yield built
        built.owner.confirms = True
        built.actor.abort()
        await asyncio.wait((running,))


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_entries_are_batches_of_one_producer_in_order_and_gather_while_some_are_on_their_way() -> None:
    async with stage(appends_in_flight=3) as on:
        on.owner.confirms = False
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(on.actor.ask(PutKey(f"k{n}", b"v"))) for n in range(12)]
            await turns()
            assert len(on.owner.batches) == 3
            on.owner.confirm()
            await turns()
            assert len(on.owner.batches) == 3
            assert [task.done() for task in asked] == [True] + [False] * 11
            on.owner.confirms = True
            while on.owner.batches:
                on.owner.confirm()
                await turns(5)
        assert [task.result() for task in asked] == [KeyValue(b"v", is_new=True)] * 12
        assert {batch.producer for batch in on.owner.seen} == {on.owner.seen[0].producer}
        assert [batch.sequence for batch in on.owner.seen] == list(range(4))
        assert [batch.since for batch in on.owner.seen] == [(1, 0)] * 4
        entries = [decode_entry(parse_record_set(batch.body)[0]) for batch in on.owner.seen]
        assert [(before, len(records)) for before, records in entries] == [(0, 1), (1, 1), (2, 1), (3, 9)]


async def test_a_failed_append_ends_it_and_nothing_unconfirmed_is_done() -> None:
    async with stage() as on:
        assert await on.actor.ask(PutKey("a", b"v1")) == KeyValue(b"v1", is_new=True)
        on.owner.confirms = False
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(settled(on, PutKey(f"k{n}", b"v"))) for n in range(3)]
            rests = tasks.create_task(settled(on, GetKey("k0")))  # what it would tell is not confirmed
            await turns()
            on.owner.fail(ClaimLostError("another owner"))
        for task in (*asked, rests):
            error = task.result()
            assert isinstance(error, ControllerLostError)
            assert error.outcome_unknown
        await turns()
        assert on.ended == [True]
        late = await settled(on, GetKey("a"))
        assert isinstance(late, ControllerLostError)
        assert not late.outcome_unknown


async def settled(on: Stage, operation: Any) -> Any:
    try:
        return await on.actor.ask(operation)
    except DLogError as error:
        return error


async def test_refusals_record_nothing_and_end_nothing() -> None:
    async with stage() as on:
        with pytest.raises(NodeEpochExpiredError):
            await on.actor.ask(PrepareObjects(NodeId("n"), NodeEpoch(1), 1, 10**6))
        assert not on.owner.seen
        assert await on.actor.ask(GetKey("a")) is None


async def test_a_closed_owner_ends_it() -> None:
    async with stage() as on:
        on.owner.is_closed = True
        assert isinstance(await settled(on, PutKey("a", b"v1")), ControllerLostError)
        await turns()
        assert on.ended == [True]


async def test_stopped_it_waits_for_what_is_on_its_way() -> None:
    async with stage() as on:
        on.owner.confirms = False
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(on.actor.ask(PutKey("a", b"v1")))
            await turns()
            on.actor.stop()
            await turns()
            assert not on.ended
            assert isinstance(await settled(on, GetKey("a")), ControllerLostError)
            on.owner.confirm()
        assert asked.result() == KeyValue(b"v1", is_new=True)
        await turns()
        assert on.ended == [False]


async def test_another_claim_in_metadata_is_seen_before_it_begins() -> None:
    on = Stage(epoch=2)
    await on.create_stream()
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(settled(on, PutKey("a", b"v1")))
        await turns(1)
        tasks.create_task(on.actor.run())
    error = asked.result()
    assert isinstance(error, ControllerLostError)
    assert not error.outcome_unknown
    assert on.ended == [False]
    assert not on.owner.seen


async def test_an_owner_that_ends_while_the_stream_is_read() -> None:
    on = Stage()  # the stream does not appear
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(settled(on, PutKey("a", b"v1")))
        tasks.create_task(on.actor.run())
        await turns()
        on.actor.abort()
    assert isinstance(asked.result(), ControllerLostError)
    assert on.ended == [False]


async def test_requests_are_bounded() -> None:
    async with stage(requests_max=2) as on:
        on.owner.confirms = False
        async with asyncio.TaskGroup() as tasks:
            for n in range(2):
                tasks.create_task(settled(on, PutKey(f"k{n}", b"v")))
            await turns()
            with pytest.raises(OverCapacityError):
                await on.actor.ask(GetKey("a"))
            on.owner.confirm()
            on.owner.confirm()
        on.owner.confirms = True
        assert await on.actor.ask(GetKey("k0")) == KeyValue(b"v")


async def test_an_expired_object_is_deleted() -> None:
    node = NodeId("n"), NodeEpoch(1)
    async with stage() as on:
        await on.actor.ask(OpenNode(*node, is_failover=False, nonce=b"1"))
        prepared = await on.actor.ask(PrepareObjects(*node, 1, 10**6))
        assert isinstance(prepared, ObjectsArePrepared)
        location = str(ROOT.below(object_key("a1", prepared.first, *node)))
        on.objects.objects[location] = b"late"
        on.objects.time_ms += 2 * 10**6
        async with asyncio.timeout(PATIENCE_S):
            while location in on.objects.objects:  # noqa: ASYNC110 - the storage tells nobody
                await asyncio.sleep(0.01)


async def test_a_snapshot_that_fails_is_written_at_a_later_tick() -> None:
    async with stage(snapshot_records=3) as on:
        on.objects.faults.extend([PutFault.LOST_REQUEST] * 100)
        for n in range(5):
            await on.actor.ask(PutKey(f"k{n}", b"v"))
        await on.hear(MetadataSnapshotFailed)
        on.objects.faults.clear()
        await on.hear(MetadataSnapshotWritten)
        assert len(on.objects.objects) == 1


def test_the_store_of_the_metadata_stream() -> None:
    assert choose_metadata_store(["file", "kafka", "ledger"]) == "ledger"
    assert choose_metadata_store(["file", "s3-direct"]) == "s3-direct"
    assert choose_metadata_store(["ledger", "file"], "file") == "file"
    for stores, chosen in ((["kafka"], ""), (["ledger"], "file"), (["ledger", "kafka"], "kafka"), ([], "")):
        with pytest.raises(ConfigError):
            choose_metadata_store(stores, chosen)
