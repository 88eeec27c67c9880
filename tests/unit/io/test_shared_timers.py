"""Tests shared timers: each fires once, in order, cancelled ones never, and at a limited rate."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from dlog.io.shared_timers import CANCELLED_MIN, PORTION_S, SharedTimers


async def heard(timers: SharedTimers, told: list[int], count: int) -> None:
    async with asyncio.timeout(30):
        while len(told) < count or len(timers):  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.001)


async def test_each_is_heard_in_the_order_of_its_time() -> None:
    """The order is that of the times at which the timers are due, however long this loop is held up between two."""
    timers, told, due_s = SharedTimers(), list[int](), dict[int, float]()
    order = list(range(40))
    random.Random(3).shuffle(order)
    for number in order:
        due_s[number] = timers.call_later(number / 1000, told.append, number).when_s
    assert len(timers) == 40
    await heard(timers, told, 40)
    assert told == sorted(order, key=due_s.__getitem__)


async def test_none_is_heard_before_its_time() -> None:
    timers, told = SharedTimers(), list[float]()
    loop = asyncio.get_running_loop()
    due_s = [loop.time() + after_s for after_s in (0.02, 0.0004, 0.0051)]
    for when_s in due_s:
        timers.call_later(when_s - loop.time(), lambda when_s: told.append(loop.time() - when_s), when_s)
    async with asyncio.timeout(30):
        while len(told) < 3:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.001)
    assert min(told) >= -1e-6


async def test_what_is_cancelled_is_not_heard_and_not_kept() -> None:
    timers, told = SharedTimers(), list[int]()
    kept = [timers.call_later(0.02 + number / 10_000, told.append, number) for number in range(3)]
    for _ in range(10 * CANCELLED_MIN):
        timers.call_later(3600.0, told.append, -1).cancel()
    assert len(timers) == 3
    assert len(timers._heap) <= 2 * CANCELLED_MIN + 3
    kept[1].cancel()
    kept[1].cancel()
    await heard(timers, told, 2)
    assert told == [0, 2]
    kept[0].cancel()  # it has fired
    assert len(timers) == 0


async def test_one_may_ask_for_another_and_cancel_others() -> None:
    timers, told = SharedTimers(), list[str]()
    later = timers.call_later(0.002, told.append, "never")

    def first(name: str) -> None:
        told.append(name)
        later.cancel()
        timers.call_later(0.0, told.append, "second")

    timers.call_later(0.001, first, "first")
    async with asyncio.timeout(30):
        while len(told) < 2:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.001)
    assert told == ["first", "second"]
    assert len(timers) == 0


async def test_nobody_waits_and_no_timer_of_the_loop_is_left() -> None:
    timers = SharedTimers()
    asked = [timers.call_later(3600.0 + number, print, number) for number in range(3)]
    for timer in asked:
        timer.cancel()
    assert timers._armed is None and not timers._heap


async def test_no_more_fire_a_second_than_are_allowed() -> None:
    timers, fired_s = SharedTimers(per_s=3 / PORTION_S), list[float]()
    loop = asyncio.get_running_loop()
    for _ in range(20):
        timers.call_later(0.0, lambda _: fired_s.append(loop.time()), None)
    async with asyncio.timeout(30):
        while len(fired_s) < 20:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.001)
    for third_before, now_s in zip(fired_s, fired_s[3:], strict=False):
        assert now_s - third_before >= PORTION_S - 1e-6, "three in a portion, never a fourth"


@pytest.mark.real_time
async def test_one_that_comes_while_a_portion_is_used_up_waits_for_the_next() -> None:
    timers, fired_s = SharedTimers(per_s=1 / PORTION_S), list[float]()
    loop = asyncio.get_running_loop()

    def again(left: int) -> None:
        fired_s.append(loop.time())
        if left:
            timers.call_later(0.0, again, left - 1)

    timers.call_later(0.0, again, 3)
    async with asyncio.timeout(30):
        while len(fired_s) < 4:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.001)
    assert all(b - a >= PORTION_S - 1e-6 for a, b in itertools.pairwise(fired_s))
