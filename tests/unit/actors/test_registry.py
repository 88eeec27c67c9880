"""Tests the registry: one actor per name, never two at once; idle ones are stopped."""

from __future__ import annotations

import asyncio
import random

import pytest

from actors.registry import Registry
from actors.supervisor import Supervisor
from dlog.errors import OverCapacityError
from tests.unit.actors.test_supervisor import HandClock


class Guest:
    """Counts how many actors of its name run, and ends only when it may."""

    living: dict[str, int]

    def __init__(self, name: str, living: dict[str, int]) -> None:
        self.name = f"guest {name}"  # its name at the supervisor is not the registry's
        self._living = living
        self._stop = asyncio.Event()
        self.may_leave = asyncio.Event()
        self.may_leave.set()

    async def run(self) -> None:
        self._living[self.name] = self._living.get(self.name, 0) + 1
        assert self._living[self.name] == 1, "two of one name live"
        await self._stop.wait()
        await self.may_leave.wait()
        self._living[self.name] -= 1

    def stop(self) -> None:
        self._stop.set()


async def test_holders_share_one_resident_and_the_idle_retire() -> None:
    clock, living = HandClock(), dict[str, int]()
    async with asyncio.timeout(90), Supervisor("s", rng=random.Random(1)) as supervisor:
        registry = Registry(supervisor, lambda name: Guest(name, living), idle_s=10.0, clock=clock)
        async with registry.hold("a") as one, registry.hold("a") as two:
            assert one is two
            clock.now_s = 100.0
            assert registry.retire_idle() == []  # held
        clock.now_s = 109.0
        assert registry.retire_idle() == []  # used a moment ago
        clock.now_s = 110.0
        assert registry.retire_idle() == ["a"]
        assert registry.living("a") is None
        async with registry.hold("a") as three:
            assert three is not one


async def test_a_successor_waits_until_its_predecessor_has_ended() -> None:
    living = dict[str, int]()
    async with asyncio.timeout(90), Supervisor("s", rng=random.Random(1)) as supervisor:
        registry = Registry(supervisor, lambda name: Guest(name, living), idle_s=10.0)
        async with registry.hold("a") as first:
            await asyncio.sleep(0)
            first.may_leave.clear()
        registry.retire("a")
        entered = asyncio.Event()

        async def next_holder() -> None:
            async with registry.hold("a") as second:
                assert second is not first
                await asyncio.sleep(0)
                entered.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(next_holder(), name="next one")
            group.create_task(next_holder(), name="next two")
            for _ in range(20):
                await asyncio.sleep(0)
            assert not entered.is_set()
            first.may_leave.set()
        assert living["guest a"] == 1
        assert len(registry) == 1


async def test_the_number_of_residents_is_bounded() -> None:
    living = dict[str, int]()
    async with asyncio.timeout(90), Supervisor("s", rng=random.Random(1)) as supervisor:
        registry = Registry(supervisor, lambda name: Guest(name, living), idle_s=0.0, count_max=2)
        async with registry.hold("a"), registry.hold("b"):
            with pytest.raises(OverCapacityError):
                async with registry.hold("c"):
                    raise AssertionError("not reached")
        registry.retire_idle()
        for _ in range(10):
            await asyncio.sleep(0)
        async with registry.hold("c"):
            assert registry.living("c") is not None
