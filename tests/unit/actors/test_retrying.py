"""Tests waits of a process that may be frozen, on a loop whose clock the test moves."""

from __future__ import annotations

import asyncio
import random

import pytest

from actors.retrying import ChangeSignal, FreezeTolerantTimeout, RefreshSignal, RetryBackoff


def waited_s(frozen_s: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a wait lasts whose steps last as long as `frozen_s` says."""
    loop = asyncio.new_event_loop()
    patience = FreezeTolerantTimeout(1.0)
    now = [0.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])

    async def wait(awaited: object, timeout: float) -> None:
        step = steps[0] = steps[0] + 1
        now[0] += frozen_s.get(step, timeout)

    steps = [0]
    monkeypatch.setattr(asyncio, "wait", wait)

    async def story() -> float:
        future = asyncio.get_running_loop().create_future()
        while not patience.is_over and steps[0] < 100:
            await patience.wait(future)
        return now[0]

    try:
        return loop.run_until_complete(story())
    finally:
        loop.close()


def test_who_is_not_frozen_waits_for_as_long_as_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited_s({}, monkeypatch) == 1.0


@pytest.mark.parametrize("step", [1, 5, 8])
def test_who_was_frozen_waits_anew(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    assert waited_s({step: 3.0}, monkeypatch) == 3.0 + (step - 1) / 8 + 1.0


def test_a_step_that_is_late_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited_s(dict.fromkeys(range(100), 0.25), monkeypatch) == 1.0


async def test_who_rests_after_a_failure_reads_at_a_hint_and_not_because_somebody_asks() -> None:
    stale = RefreshSignal()
    stale.set()
    await stale.taken()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        resting = tasks.create_task(stale.rest(3600.0), name="rests")
        stale.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not resting.done()
        stale.hint()
        await resting
        await stale.taken()
        resting = tasks.create_task(stale.rest(3600.0), name="rests again")
        await asyncio.sleep(0)
        assert not resting.done(), "the hint was heard before"
        resting.cancel()


async def test_contact_ends_the_rest_and_asks_for_no_reading_of_who_does_not_rest() -> None:
    stale = RefreshSignal()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        stale.wake()
        taking = tasks.create_task(stale.taken(), name="takes")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not taking.done(), "nothing is due"
        stale.set()
        await taking
        resting = tasks.create_task(stale.rest(3600.0), name="rests")
        await asyncio.sleep(0)
        assert not resting.done(), "that contact was heard before the reading"
        stale.wake()
        await resting
        await stale.taken()


async def test_who_rested_long_enough_reads_again() -> None:
    stale = RefreshSignal()
    async with asyncio.timeout(30):
        await stale.rest(0.0)
        await stale.taken()


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_try_that_went_well() -> None:
    pauses = RetryBackoff(0.1, 0.5, random.Random(1))
    for whole_s in (0.1, 0.2, 0.4, 0.5, 0.5):
        assert whole_s / 2 <= pauses.next_s() <= whole_s
    assert 0.25 <= pauses.longest_s() <= 0.5
    pauses.reset()
    assert 0.05 <= pauses.next_s() <= 0.1
    assert len({pauses.longest_s() for _ in range(10)}) > 5, "who failed together does not come back together"


async def test_a_wait_ends_at_a_change_after_the_call_even_if_its_task_starts_later() -> None:
    signal = ChangeSignal()
    signal.notify()
    async with asyncio.TaskGroup() as tasks:
        early = tasks.create_task(signal.wait())
        signal.notify()
        late = tasks.create_task(signal.wait())
        await early
        await asyncio.sleep(0)
        assert not late.done()
        signal.notify()
