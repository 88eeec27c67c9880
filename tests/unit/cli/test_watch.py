"""Tests repeated output: one block or document for each state, and an outage of ZooKeeper is said once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from dlog.cli.watch import ended_by_interrupt, watch
from dlog.errors import MetadataUnavailableError

AWAY = MetadataUnavailableError("the ensemble is away")


async def watched(states: Sequence[int | MetadataUnavailableError], *, as_json: bool) -> None:
    """Watch these states, then end as Ctrl-C does."""
    left = list(states)

    async def read() -> dict[str, Any]:
        if not left:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        state = left.pop(0)
        if isinstance(state, MetadataUnavailableError):
            raise state
        return {"count": state}

    with ended_by_interrupt():
        await watch(read, lambda told: [f"count {told['count']}", "end"], every_s=0.0, as_json=as_json)


async def test_blocks_are_a_line_apart(capsys: pytest.CaptureFixture[str]) -> None:
    await watched([3, 0], as_json=False)
    assert capsys.readouterr() == ("count 3\nend\n\ncount 0\nend\n", "")


async def test_documents_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    await watched([3, 0, 0], as_json=True)
    assert capsys.readouterr() == ('{"count":3}\n{"count":0}\n{"count":0}\n', "")


async def test_an_outage_is_said_once_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    await watched([1, AWAY, AWAY, 2, AWAY, 3], as_json=True)
    out, err = capsys.readouterr()
    assert out == '{"count":1}\n{"count":2}\n{"count":3}\n'
    assert err == "ZooKeeper does not answer, trying again: the ensemble is away\n" * 2


async def test_what_cannot_be_read_at_first_is_an_error() -> None:
    with pytest.raises(MetadataUnavailableError):
        await watched([AWAY], as_json=False)


async def test_a_cancellation_without_a_signal_goes_on() -> None:
    async def body() -> None:
        with ended_by_interrupt():
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(body(), name="body")
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
