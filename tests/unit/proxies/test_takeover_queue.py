"""Take-overs wait in a queue: a few run at once, in the order of requests; a slow one delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from actors.runtime import TaskScope
from dlog.errors import OverCapacityError
from dlog.model.ids import METADATA_STREAM
from proxies.write.takeover_queue import TakeoverQueue


class Stage:
    """Take-overs that last until the test ends them."""

    def __init__(self, tasks: TaskScope, **bounds: Any) -> None:
        self.takes = TakeoverQueue(tasks, **{"at_once": 2, "waiting_max": 10, "slow_s": 60.0, **bounds})
        self.begun: list[str] = []
        self.second = asyncio.Event()
        self.ends: dict[str, asyncio.Event] = {}

    def add(self, *streams: str) -> None:
        for stream in streams:
            self.ends[stream] = asyncio.Event()
            self.takes.add(stream, self._work(stream))

    async def end(self, stream: str) -> None:
        self.ends[stream].set()
        await settle()

    def _work(self, stream: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def work() -> None:
            self.begun.append(stream)
            if len(self.begun) == 2:
                self.second.set()
            await self.ends[stream].wait()

        return work


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def tasks() -> AsyncIterator[TaskScope]:
    async with TaskScope(drain_s=0.0) as lifetime:
        yield lifetime


async def test_the_metadata_stream_waits_behind_nobody(tasks: TaskScope) -> None:
    stage = Stage(tasks, waiting_max=1)
    stage.add("a", "b", "c", METADATA_STREAM)
    await settle()
    assert stage.begun == ["a", "b", METADATA_STREAM] and stage.takes.running == 2
    await stage.end(METADATA_STREAM)
    assert stage.begun == ["a", "b", METADATA_STREAM], "it gives no place away that it did not have"
    await stage.end("a")
    assert stage.begun == ["a", "b", METADATA_STREAM, "c"]


async def test_no_more_than_so_many_are_under_way(tasks: TaskScope) -> None:
    stage = Stage(tasks)
    stage.add("a", "b", "c", "d")
    await settle()
    assert stage.begun == ["a", "b"]
    await stage.end("b")
    assert stage.begun == ["a", "b", "c"]
    assert (stage.takes.running, stage.takes.waiting, stage.takes.peak, stage.takes.begun) == (2, 1, 2, 3)


async def test_one_that_is_slow_or_stalled_keeps_nobody_from_his(tasks: TaskScope) -> None:
    stage = Stage(tasks, at_once=1, slow_s=0.0)
    stage.add("slow", "b")
    async with asyncio.timeout(90.0):
        await stage.second.wait()
    assert stage.begun == ["slow", "b"]
    stage = Stage(tasks, at_once=1)
    stage.add("stalled", "b")
    await settle()
    stage.takes.let_go("stalled")
    await settle()
    assert stage.begun == ["stalled", "b"]
    await stage.end("stalled")
    assert stage.takes.running == 1, "its place was given away already"


async def test_too_many_are_refused_and_what_waits_can_be_forgotten(tasks: TaskScope) -> None:
    stage = Stage(tasks, at_once=1, waiting_max=2)
    stage.add("a", "b", "c")
    with pytest.raises(OverCapacityError):
        stage.add("d")
    stage.takes.forget("b")
    assert stage.takes.forget_waiting() == ["c"]
    await settle()
    await stage.end("a")
    assert stage.begun == ["a"]
