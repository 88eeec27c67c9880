"""The client library: wrong uses by an application. Rows `client.*`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

import dlog
from dlog.client.client import Client
from dlog.client.options import RECORD_BYTES_MAX
from dlog.errors import DLogError
from tests.integration.hostile.conftest import Bystander
from tests.integration.hostile.table import each

pytestmark = pytest.mark.zookeeper
Call = Callable[[Client], Awaitable[Any]]


async def first(client: Client, start: Any) -> object:
    async for record in client.read("bystander", start=start):
        return record
    return None


CASES: dict[str, Call] = {
    "payload-text": lambda c: c.append("bystander", "text"),  # type: ignore[arg-type]
    "payload-none": lambda c: c.append("bystander", None),  # type: ignore[arg-type]
    "payload-too-large": lambda c: c.append("bystander", bytes(RECORD_BYTES_MAX + 1)),
    "batch-empty": lambda c: c.append_batch("bystander", []),
    "batch-too-large": lambda c: c.append_batch("bystander", [bytes(600_000)] * 2),
    "batch-of-numbers": lambda c: c.append_batch("bystander", [1, 2]),  # type: ignore[list-item]
    "txid-negative": lambda c: c.append("bystander", b"x", txid=-1),
    "txid-beyond": lambda c: c.append("bystander", b"x", txid=2**63 - 1),
    "name-illegal": lambda c: c.append("../x", b"x"),
    "stream-unknown": lambda c: c.append("no-such-stream", b"x"),
    "start-number": lambda c: first(c, 17),
    "start-nonsense": lambda c: first(c, "yesterday"),
    "start-time-without-a-zone": lambda c: first(c, datetime(2026, 11, 20, 8, 0)),
    "setting-unknown": lambda c: c.create("s", colour="red"),  # type: ignore[call-arg]  # the bad input
    "setting-half-a-pair": lambda c: c.create("s", store="\ud800"),
    "setting-beyond-64-bits": lambda c: c.create("s", segment_bytes=2**80),
    "setting-object": lambda c: c.create("s", store=object()),  # type: ignore[arg-type]  # the bad input
}


def heard(error: BaseException) -> str:
    return f"error {error.code}" if isinstance(error, DLogError) else type(error).__name__


@each("client", CASES)
def test_a_wrong_call_is_told_and_the_client_goes_on(bystander: Bystander, case: str, answer: str) -> None:
    async def call() -> str:
        async with asyncio.timeout(60), bystander.client() as client:
            try:
                await CASES[case](client)
                told = "taken"
            except (DLogError, TypeError) as error:
                told = heard(error)
            assert (await client.stat("bystander")).name == "bystander"
            return told

    assert asyncio.run(call()) == answer
    asyncio.run(bystander.work(1))


CLOSED: dict[str, Call] = {
    "closed-append": lambda c: c.append("bystander", b"x"),
    "closed-stat": lambda c: c.stat("bystander"),
    "closed-read": lambda c: first(c, None),
}


@each("client", CLOSED)
def test_a_closed_client_says_so(bystander: Bystander, case: str, answer: str) -> None:
    async def call() -> str:
        async with bystander.client() as client:
            pass
        with pytest.raises(DLogError) as told:
            await CLOSED[case](client)
        return heard(told.value)

    assert asyncio.run(call()) == answer


OPTIONS: dict[str, dict[str, Any]] = {
    "option-unknown": {"colour": "red"},
    "option-zero": {"inflight_batches_max": 0},
    "option-type": {"buffer_bytes_max": "many"},
    "option-batch-beyond-the-record": {"batch_bytes_max": 1048576},
}


@each("client", OPTIONS)
def test_a_wrong_option_is_told_at_once(case: str, answer: str) -> None:
    try:
        dlog.connect("dlog://127.0.0.1:1", **OPTIONS[case])
    except (DLogError, TypeError) as error:
        assert heard(error) == answer
        return
    raise AssertionError("taken")
