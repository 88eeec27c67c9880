"""Tests lifetimes: named tasks, ends by message, cancellation never swallowed."""

from __future__ import annotations

import asyncio

import pytest

from actors.runtime import TaskScope
from dlog.errors import UnavailableError


async def test_leaving_a_lifetime_stops_by_message_and_cancels_what_has_none() -> None:
    before = asyncio.all_tasks()
    ends: list[str] = []
    stop = asyncio.Event()

    async def polite() -> None:
        await stop.wait()
        ends.append("polite finished")

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("endless released")

    async with TaskScope() as lifetime:
        lifetime.start(polite(), name="polite", stop=stop.set)
        task = lifetime.start(endless(), name="endless")
        await asyncio.sleep(0)
        assert task.get_name() == "endless"
    assert sorted(ends) == ["endless released", "polite finished"]
    assert asyncio.all_tasks() == before


async def test_who_does_not_end_when_asked_is_cancelled_after_the_drain_time() -> None:
    released = False

    async def deaf() -> None:
        nonlocal released
        try:
            await asyncio.Event().wait()
        finally:
            released = True

    async with asyncio.timeout(90):
        async with TaskScope(drain_s=0.0) as lifetime:
            lifetime.start(deaf(), name="deaf", stop=lambda: None)
            await asyncio.sleep(0)
    assert released


async def test_an_error_ends_all_and_leaves_through_the_scope() -> None:
    async def break_down() -> None:
        raise RuntimeError("told to break")

    with pytest.raises(ExceptionGroup) as caught:
        async with TaskScope() as lifetime:
            other = lifetime.start(asyncio.Event().wait(), name="sibling")
            lifetime.start(break_down(), name="broken")
            await asyncio.Event().wait()
    assert caught.group_contains(RuntimeError, match="told to break")
    assert other.cancelled()


async def test_a_cancelled_scope_cancels_its_tasks_and_says_so() -> None:
    async def owner() -> None:
        async with TaskScope() as lifetime:
            lifetime.start(asyncio.Event().wait(), name="child")
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(owner(), name="owner")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert asyncio.all_tasks() == before


async def test_work_that_comes_after_the_end_is_refused_and_not_left_lying() -> None:
    async def work() -> None:
        """Never runs."""

    async with TaskScope() as lifetime:
        pass
    with pytest.raises(UnavailableError) as refused:
        lifetime.start(work(), name="late")
    assert not refused.value.outcome_unknown


async def test_what_was_started_alone_fails_alone_and_is_told_of() -> None:
    told: list[tuple[str, str]] = []

    async def break_down() -> None:
        raise UnicodeError("label empty")

    async with TaskScope(on_failure=lambda work, error: told.append((work, repr(error)))) as lifetime:
        sibling = lifetime.start(asyncio.Event().wait(), name="sibling")
        await lifetime.start_alone(break_down(), name="reader 1")
        assert not sibling.done()
    assert told == [("reader 1", "UnicodeError('label empty')")]
