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
from dlog.bookie.options import BookieOptions
from dlog.io.memory_metadata import MemoryMetadata
from dlog.model.ids import BookieId, LedgerId

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
            compact=self.compact,
        )

    def perform(self, fact: Any) -> None:
        self.machine.handle(fact)

    async def keep(self, record: MarkRecord) -> str:
        return ""

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
