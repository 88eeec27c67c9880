"""Closing a client that is interrupted."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.errors import ClosedError
from tests.unit.client.proxy_double import Double
from tests.unit.client.scripts import Holding, error_of


async def test_a_cancelled_close_closes_the_client_at_once() -> None:
    """As by a timeout around the client's block: nobody could close it afterwards."""
    async with Double(script=Holding()) as double, asyncio.TaskGroup() as tasks:
        client = dlog.connect(double.target, close_deadline_s=3600.0)
        await client.__aenter__()
        before = asyncio.all_tasks()
        pending = tasks.create_task(error_of(client.append("s", b"x")))
        await double.wait(lambda: len(double.writes) == 1)
        closing = tasks.create_task(error_of(client.close()))
        await asyncio.sleep(0)
        closing.cancel()
        assert isinstance(await closing, asyncio.CancelledError)
        failed = await pending
        assert isinstance(failed, ClosedError), failed
        assert failed.outcome_unknown
        with pytest.raises(ClosedError):
            await client.stat("s")
        assert not [task for task in before if task.get_name() == "dlog client" and not task.done()]
