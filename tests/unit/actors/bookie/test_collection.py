"""When a bookie collects: by time, and at once when that is due. No time passes in these tests but that of the loop's
turns: both intervals are an hour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from actors.bookie.collection import Collection
from dlog.bookie.bookie import Bookie
from dlog.bookie.collecting import Collector, MarkRecord
from dlog.bookie.index import LedgerRow
from dlog.bookie.messages import Freed
from dlog.bookie.options import BookieOptions
from dlog.io.memory_metadata import MemoryMetadata
from dlog.machine import OutcomeUnknown
from dlog.model.ids import BookieId, LedgerId
from dlog.wire.bookie import Code, CollectionReport, CollectionState

KEY = b"k" * 20
HOURLY = BookieOptions(gc_s=3600.0, gc_look_s=3600.0)
INSTANCE = "ours"


class Listed(MemoryMetadata):
    """Metadata that counts its listings; each waits until `gate` is set."""

    def __init__(self) -> None:
        super().__init__(INSTANCE)
        self.listings = 0
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_away = False

    async def read_mark(self, bookie: BookieId) -> Any:
        return OutcomeUnknown("no contact") if self.is_away else await super().read_mark(bookie)

    async def ledgers(self) -> AsyncIterator[LedgerId]:
        self.listings += 1
        self.begun.set()
        await self.gate.wait()
        async for ledger in super().ledgers():
            yield ledger


class Scene:
    """A collection over one ledger, its disk's answers given at once."""

    def __init__(self) -> None:
        self.metadata = Listed()
        self.machine = Bookie(HOURLY, [LedgerRow(1, KEY, False, -1, 3)])
        self.due = asyncio.Event()
        self.freed = Freed(0, 0)
        numbers = count(1)
        self.collection = Collection(
            HOURLY,
            self.metadata,
            BookieId("bookie:1"),
            self.machine,
            Collector(INSTANCE, MarkRecord(), lambda: f"mark{next(numbers)}"),
            self.due,
            perform=self.perform,
            keep=self.keep,
            free=self.free,
            compact=self.compact,
        )

    def perform(self, fact: Any) -> None:
        self.machine.handle(fact)

    async def keep(self, record: MarkRecord) -> str:
        return ""

    async def free(self) -> Freed:
        return self.freed

    async def compact(self, below: float, bytes_max: int) -> int | None:
        return None

    async def listed(self) -> None:
        """Until a listing begins."""
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
    """The one that runs may have listed metadata before what is to go was deleted."""
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
    scene.freed = Freed(3, 4096)
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
    scene.freed = Freed(0, 0, "no room to write down which ledgers are gone")
    scene.collection.asked(0)
    await settled()
    report = scene.collection.asked(1)
    assert report.state is CollectionState.FAILED and "no room" in report.reason
    scene.freed = Freed(0, 0)
    scene.metadata.is_away = True
    scene.collection.asked(0)
    await settled()
    report = scene.collection.asked(2)
    assert report.state is CollectionState.FAILED and report.reason == "metadata is away: no contact"


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
