"""When a bookie collects garbage: at intervals, and at once when a collection is due. Both intervals are an hour here,
so the only time that passes is turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest

from actors.bookie.collection import GarbageCollection
from dlog.bookie.bookie import Bookie
from dlog.bookie.garbage_collection import GarbageCollector, MarkRecord
from dlog.bookie.index import LedgerRow
from dlog.bookie.messages import CollectionResult, LedgersMarkedDeleted, LedgersNew, MarkLedgersDeleted
from dlog.bookie.options import BookieOptions
from dlog.io.metadata import SessionState, Unsubscribe
from dlog.machine import Key, Outcome, OutcomeUnknown, Persisted, Received
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code, CollectionReport, CollectionState
from tests.crashpoints.station import KEY, add
from tests.memory_metadata import MemoryMetadata

HOURLY = BookieOptions(gc_s=3600.0, gc_look_s=3600.0)
INSTANCE = "ours"
US = BookieId("bookie:1")
LEDGER = LedgerMetadata(quorum=Quorum(ensemble=1, write=1, ack=1), fragments=(Fragment(EntryId(0), (US,)),))


class Listed(MemoryMetadata):
    """Metadata that counts its listings; each waits until `gate` is set."""

    def __init__(self) -> None:
        super().__init__(INSTANCE)
        self.listings = 0
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_away = False
        self.is_mute = False  # whether queries for ledgers stay unanswered
        self.reads = 0
        self.callbacks: list[Callable[[SessionState], None]] = []

    def on_state(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    async def read(self, key: Key) -> Outcome:
        self.reads += 1
        return OutcomeUnknown("no contact") if self.is_mute else await super().read(key)

    async def read_gc_mark(self, bookie: BookieId) -> Any:
        return OutcomeUnknown("no contact") if self.is_away else await super().read_gc_mark(bookie)

    async def ledgers(self) -> AsyncIterator[LedgerId]:
        self.listings += 1
        self.begun.set()
        await self.gate.wait()
        async for ledger in super().ledgers():
            yield ledger


class Scene:
    """A collection over one ledger, with a disk that answers at once."""

    def __init__(self) -> None:
        self.metadata = Listed()
        self.machine = Bookie(HOURLY, [LedgerRow(1, KEY, False, -1, 3)])
        self.due = asyncio.Event()
        self.new = asyncio.Event()
        self.freed = CollectionResult(0, 0)
        numbers = count(1)
        self.collection = GarbageCollection(
            HOURLY,
            self.metadata,
            US,
            self.machine,
            GarbageCollector(INSTANCE, MarkRecord(), lambda: f"mark{next(numbers)}"),
            self.due,
            self.new,
            perform=self.perform,
            keep=self.keep,
            free=self.free,
            compact=self.compact,
        )

    def perform(self, fact: Any) -> None:
        """Bury ledgers at once."""
        for effect in self.machine.handle(fact):
            if isinstance(effect, MarkLedgersDeleted):
                self.machine.handle(LedgersMarkedDeleted(effect.ledgers))

    async def keep(self, record: MarkRecord) -> str:
        return ""

    async def free(self) -> CollectionResult:
        return self.freed

    async def compact(self, below: float, bytes_max: int) -> int | None:
        return None

    async def listed(self) -> None:
        """Wait until a listing begins."""
        await self.metadata.begun.wait()
        self.metadata.begun.clear()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.collection.run(), name="collection")
        await asyncio.sleep(0)
        yield made
        running.cancel()


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_waits_for_its_time(scene: Scene) -> None:
    await settled()
    assert scene.metadata.listings == 0


async def test_collects_at_once_when_that_is_due_and_then_waits_again(scene: Scene) -> None:
    scene.due.set()
    await scene.listed()
    await settled()
    assert scene.metadata.listings == 1 and not scene.due.is_set()
    scene.due.set()
    await scene.listed()
    await settled()
    assert scene.metadata.listings == 2


async def test_collects_again_when_it_became_due_during_a_collection(scene: Scene) -> None:
    """The running collection may have listed metadata before the ledger in question was deleted."""
    scene.metadata.gate.clear()
    scene.due.set()
    await scene.listed()
    scene.due.set()
    await settled()
    assert scene.metadata.listings == 1, "one at a time"
    scene.metadata.gate.set()
    await scene.listed()
    await settled()
    assert scene.metadata.listings == 2


async def test_who_asks_starts_a_collection_and_hears_what_came_of_it(scene: Scene) -> None:
    scene.freed = CollectionResult(3, 4096)
    scene.metadata.gate.clear()
    assert scene.collection.asked(0) == CollectionReport(1, CollectionState.STARTED)
    assert scene.collection.asked(1).state is CollectionState.RUNNING, "it is due"
    await scene.listed()
    assert scene.collection.asked(1) == CollectionReport(1, CollectionState.RUNNING)
    scene.metadata.gate.set()
    await settled()
    assert scene.collection.asked(1) == CollectionReport(1, CollectionState.DONE, 3, 4096, ledgers=1, unseen=1)


async def test_who_asks_while_one_is_due_or_runs_joins_it(scene: Scene) -> None:
    scene.metadata.gate.clear()
    scene.collection.asked(0)
    assert scene.collection.asked(0) == CollectionReport(1, CollectionState.RUNNING)
    await scene.listed()
    assert scene.collection.asked(0) == CollectionReport(1, CollectionState.RUNNING)
    scene.metadata.gate.set()
    await settled()
    assert scene.metadata.listings == 1
    assert scene.collection.asked(0) == CollectionReport(2, CollectionState.STARTED), "it has ended"


async def test_a_collection_that_failed_says_why(scene: Scene) -> None:
    scene.freed = CollectionResult(0, 0, "no space to record which ledgers are deleted")
    scene.collection.asked(0)
    await settled()
    report = scene.collection.asked(1)
    assert report.state is CollectionState.FAILED and "no space" in report.reason
    scene.freed = CollectionResult(0, 0)
    scene.metadata.is_away = True
    scene.collection.asked(0)
    await settled()
    report = scene.collection.asked(2)
    assert report.state is CollectionState.FAILED and report.reason == "metadata is unreachable: no contact"


async def test_only_the_newest_collections_are_remembered(scene: Scene) -> None:
    unknown = {number: CollectionReport(number, CollectionState.UNKNOWN, code=Code.BAD_REQUEST) for number in range(99)}
    assert scene.collection.asked(1) == unknown[1], "nobody asked for one"
    for _ in range(20):
        scene.collection.asked(0)
        await settled()
    assert scene.metadata.listings == 20
    told = {number: scene.collection.asked(number) for number in range(1, 24)}
    assert [number for number, report in told.items() if report != unknown[number]] == list(range(5, 21))
    assert scene.collection.asked(-1).code is Code.BAD_REQUEST


async def heard(scene: Scene, ledger: int) -> None:
    """Tell the bookie of a ledger whose metadata exists; return when that metadata was read."""
    key = LedgerKey(LedgerId(ledger))
    await scene.metadata.compare_and_set(key, LEDGER, None)
    if LedgersNew() in scene.machine.handle(Received("client", add(ledger, 0))):
        scene.new.set()
    await settled()


async def test_a_ledger_that_is_deleted_before_any_round_is_collected(scene: Scene) -> None:
    await settled()
    await heard(scene, 5)
    scene.machine.handle(Persisted(1))
    await scene.metadata.delete(LedgerKey(LedgerId(5)))
    scene.collection.asked(0)
    await settled()
    assert scene.machine.known() == {1: 0}, "1 was never in metadata"


async def test_each_new_ledger_is_read_once(scene: Scene) -> None:
    await settled()
    scene.metadata.reads = 0
    for ledger in range(100, 150):
        await heard(scene, ledger)
    assert scene.metadata.reads == 50
    await scene.collection.look()
    assert scene.metadata.reads == 50 + 1, "the ledger 1 is not in metadata: it is looked for once more"
    await scene.collection.look()
    assert scene.metadata.reads == 50 + 1
    assert {ledger for ledger, chain in scene.machine.known().items() if chain} == set(range(100, 150))


async def test_a_ledger_that_is_heard_of_during_a_round_is_left_to_the_next_look(scene: Scene) -> None:
    scene.metadata.gate.clear()
    scene.collection.asked(0)
    await scene.listed()
    scene.metadata.is_mute = True
    await heard(scene, 5)
    scene.metadata.is_mute = False
    scene.metadata.gate.set()
    await settled()
    assert scene.machine.known()[5] == 0
    await scene.collection.look()
    assert scene.machine.known()[5] == 1


@pytest.mark.parametrize("state", [SessionState.SUSPENDED, SessionState.LOST])
async def test_what_was_read_before_contact_was_lost_is_read_again(scene: Scene, state: SessionState) -> None:
    await settled()
    await heard(scene, 5)
    for callback in scene.metadata.callbacks:
        callback(state)
    await scene.metadata.delete(LedgerKey(LedgerId(5)))
    await scene.collection.look()
    await scene.collection.collect()
    assert scene.machine.known() == {1: 0, 5: 0}, "nothing says that it was not forgotten by a restored backup"
