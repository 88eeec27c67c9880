"""Tests supervision: restart with back-off after each failure, and end by message."""

from __future__ import annotations

import asyncio
import random

import pytest

from actors.supervisor import RestartOptions, Supervisor
from dlog.errors import ClosedError
from dlog.events import ActorFailed, Event

AT_ONCE = RestartOptions(backoff_min_s=0.0, backoff_max_s=0.0, window_s=60.0)


class Mortal:
    """Fails the first `deaths` times it is started, then runs until stopped."""

    def __init__(self, name: str, deaths: int) -> None:
        self.name = name
        self.deaths = deaths
        self.starts = 0
        self.alive = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        self.starts += 1
        if self.starts <= self.deaths:
            raise RuntimeError(f"death {self.starts}")
        self.alive.set()
        await self._stop.wait()

    def stop(self) -> None:
        self._stop.set()


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return 0


def supervisor(told: list[Event] | None = None, **options: object) -> Supervisor:
    options.setdefault("options", AT_ONCE)
    on_event = told.append if told is not None else lambda _: None
    return Supervisor("test", rng=random.Random(1), on_event=on_event, **options)  # type: ignore[arg-type]


async def test_one_dies_and_comes_back_while_its_sibling_lives_on() -> None:
    told: list[Event] = []
    weak, strong = Mortal("weak", deaths=2), Mortal("strong", deaths=0)
    async with asyncio.timeout(90), supervisor(told) as keeper:
        keeper.start(weak)
        keeper.start(strong)
        await weak.alive.wait()
        assert (weak.starts, strong.starts) == (3, 1)
        assert sorted(keeper.children) == ["strong", "weak"]
    assert keeper.children == ()
    assert [(e.actor, e.error) for e in told if isinstance(e, ActorFailed)] == [
        ("weak", "RuntimeError('death 1')"),
        ("weak", "RuntimeError('death 2')"),
    ]


async def test_one_that_dies_again_and_again_is_started_again_and_takes_nobody_along() -> None:
    told: list[Event] = []
    doomed, bystander = Mortal("doomed", deaths=30), Mortal("bystander", deaths=0)
    async with asyncio.timeout(90), supervisor(told) as keeper:
        ended = keeper.start(bystander)
        keeper.start(doomed)
        await doomed.alive.wait()
        assert (doomed.starts, bystander.starts, ended.is_set()) == (31, 1, False)
    assert [event.error for event in told if isinstance(event, ActorFailed)][-1] == "RuntimeError('death 30')"


async def test_deaths_outside_the_window_are_forgotten() -> None:
    clock = HandClock()

    class Ageing(Mortal):
        async def run(self) -> None:
            clock.now_s += 61.0
            await super().run()

    told: list[Event] = []
    old = Ageing("old", deaths=20)
    slower = RestartOptions(backoff_min_s=0.001, backoff_max_s=3600.0, window_s=60.0)
    async with asyncio.timeout(90), supervisor(told, clock=clock, options=slower) as keeper:
        keeper.start(old)
        await old.alive.wait()
    assert old.starts == 21
    assert {event.restart_s for event in told if isinstance(event, ActorFailed)} <= {0.0, 0.001}


async def test_a_child_told_to_end_while_it_waits_for_its_restart_is_not_started() -> None:
    told: list[Event] = []
    slow = RestartOptions(backoff_min_s=3600.0, backoff_max_s=3600.0)
    dead = Mortal("dead", deaths=99)
    async with asyncio.timeout(90), supervisor(told, options=slow) as keeper:
        ended = keeper.start(dead)
        while not told:  # noqa: ASYNC110  the event list is the fact
            await asyncio.sleep(0)
        keeper.stop("dead")
        await ended.wait()
    assert dead.starts == 1


async def test_a_name_lives_once() -> None:
    async with asyncio.timeout(90), supervisor() as keeper:
        keeper.start(Mortal("twin", deaths=0))
        with pytest.raises(ClosedError):
            keeper.start(Mortal("twin", deaths=0))


async def test_a_child_cancelled_before_its_first_step_is_buried_all_the_same() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match="owner fails"):
        try:
            async with supervisor() as keeper:
                ended = keeper.start(Mortal("unborn", deaths=0))
                raise RuntimeError("owner fails")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
    assert ended.is_set()
    assert keeper.children == ()
    assert asyncio.all_tasks() == before


async def test_cancelling_the_owner_cancels_the_children() -> None:
    child = Mortal("child", deaths=0)

    async def owner() -> None:
        async with supervisor() as keeper:
            keeper.start(child)
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        task = group.create_task(owner(), name="owner")
        await child.alive.wait()
        task.cancel()
    assert task.cancelled()
    assert asyncio.all_tasks() == before


def test_backoff_doubles_up_to_its_ceiling_with_jitter_below() -> None:
    options = RestartOptions(backoff_min_s=1.0, backoff_max_s=8.0)
    rng = random.Random(3)
    for failures, ceiling in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (9, 8.0)):
        drawn = [options.backoff_s(failures, rng) for _ in range(200)]
        assert all(ceiling / 2 <= delay <= ceiling for delay in drawn)
        assert max(drawn) - min(drawn) > ceiling / 4
