"""Kills a node of the store `s3` at each of its steps: what it acknowledged is read by another process, and nothing is
left behind."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from dlog.errors import DLogError
from dlog.io.s3_store import open_s3_store
from dlog.objects.image import ObjectState
from dlog.objects.operations import Operation, Result
from dlog.stores.contract import SegmentRef
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Buffer, Creation
from dlog.stores.s3_direct.options import ObjectsOptions
from tests.memory_objects import MemoryObjects
from tests.object_metadata import MemoryMetadata
from tests.unit.stores.test_s3 import FOLDER, OPTIONS, W1, W2, Cluster, Wal, append, entry, read, upload

STEPS = 24  # questions of the node to the controller and the storage, in the story below


class Life:
    """The steps that a process has left. dead: set when it took the last one."""

    def __init__(self, steps: int, *, is_done: bool) -> None:
        self.steps = steps
        self.is_done = is_done  # the last step is carried out, and its answer is lost
        self.dead = asyncio.Event()

    async def step(self, work: Any) -> Any:
        """Take a step, or die."""
        self.steps -= 1
        if self.steps > 0:
            return await work
        if self.steps == 0 and self.is_done:
            with suppress(DLogError):
                await work
        else:
            work.close()
        self.dead.set()
        await asyncio.Event().wait()
        raise AssertionError("a dead process goes on")


class MortalMetadata(MemoryMetadata):
    def __init__(self, cluster: Cluster, life: Life) -> None:
        super().__init__(cluster.controller)
        self._life = life

    async def ask(self, operation: Operation) -> Result:
        answer: Result = await self._life.step(super().ask(operation))
        return answer


class MortalObjects(MemoryObjects):
    """What one process sees of the storage."""

    def __init__(self, cluster: Cluster, life: Life) -> None:
        super().__init__()
        self.objects = cluster.objects.objects
        self._life = life

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        made: Creation = await self._life.step(
            super().create_if_absent(location, data, head_bytes=head_bytes, marker=marker)
        )
        return made


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


async def live(cluster: Cluster, life: Life, refs: list[SegmentRef], acked: dict[str, int]) -> None:
    """What the process does that is killed. acked: entries of each segment."""

    async def find_folder() -> Location:
        return FOLDER

    async with open_s3_store(
        MortalMetadata(cluster, life),
        MortalObjects(cluster, life),
        find_folder,
        {"ledger": Wal(cluster.wal, entry_bytes_max=100_000)},
        ObjectsOptions(**{**OPTIONS, "wal_segment_bytes": 500, "split_after_s": 0.001}),
        random.Random(os.urandom(8)),
        node=W1,
    ) as store:
        for _ in range(2):
            writer, ref = await cluster.segment(store)
            refs.append(ref)
            for first in (0, 4):
                for number in range(first, first + 4):
                    await append(writer, number, number + 1)
                    acked[ref.name] = number + 1
                await upload(store)
            assert store.compactions is not None
            await store.compactions.round(is_major=True)
            await append(writer, 8, 10)
            acked[ref.name] = 10
            await writer.seal()


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("steps", range(1, STEPS + 1))
async def test_what_a_killed_node_acknowledged_is_read_elsewhere(cluster: Cluster, steps: int, is_done: bool) -> None:
    life = Life(steps, is_done=is_done)
    refs: list[SegmentRef] = []
    acked: dict[str, int] = {}
    async with asyncio.TaskGroup() as group:
        living = group.create_task(live(cluster, life, refs, acked), name="the process that is killed")
        dying = group.create_task(life.dead.wait(), name="its end")
        await asyncio.wait((living, dying), return_when=asyncio.FIRST_COMPLETED)
        living.cancel()
        dying.cancel()
    other = await cluster.store(W2)
    for ref in refs:
        end = (await other.recover(ref)).end + 1
        assert end >= acked.get(ref.name, 0)
        assert await read(other, ref, end) == [entry(number) for number in range(end)]
        assert (await other.verify(ref)).damaged == ()
    again = await cluster.store(W1, split_after_s=0.001)
    writer, ref = await cluster.segment(again)
    await append(writer, 0, 1)
    await upload(again)
    for one in (*refs, ref):
        await other.delete(one)
    assert again.node is not None and again.compactions is not None
    await again.node.serving(30.0)
    await again.compactions.round(is_major=True)
    for _ in range(3):
        await cluster.controller.tick(26 * 3_600_000)
    assert cluster.states(ObjectState.COMMITTED) == 0
    assert not cluster.objects.objects, "nothing is left behind"


async def test_the_story_has_as_many_steps(cluster: Cluster) -> None:
    life = Life(1000, is_done=True)
    refs: list[SegmentRef] = []
    await live(cluster, life, refs, {})
    assert len(refs) == 2 and 1000 - life.steps >= STEPS
