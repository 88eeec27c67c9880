"""A client that is used in another event loop than its own raises there, and appends nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import dlog
from dlog.errors import DLogError, InvalidRequestError
from tests.unit.client.proxy_double import Double
from tests.unit.client.scripts import Holding, error_of

WITHIN_S = 60.0


@contextmanager
def loop_in_thread() -> Iterator[Callable[[Awaitable[Any]], Any]]:
    """An event loop in a thread of its own; yields what runs a coroutine there and waits for it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(_whole(work), loop).result(WITHIN_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _whole(work: Awaitable[Any]) -> Any:
    return await work


async def _first(client: dlog.Client) -> None:
    async for _ in client.read("s"):
        return


async def _piped(client: dlog.Client, stream: str) -> None:
    client.pipeline(stream)


CALLS: dict[str, Callable[[dlog.Client], Awaitable[Any]]] = {
    "append": lambda client: client.append("s", b"x"),
    "append to another stream": lambda client: client.append("s2", b"x"),
    "append_batch": lambda client: client.append_batch("s", [b"x"]),
    "append_many": lambda client: client.append_many("s", [b"x"]),
    "pipeline": lambda client: _piped(client, "s"),
    "read": _first,
    "stat": lambda client: client.stat("s"),
    "owners": lambda client: client.owners(),
    "close": lambda client: client.close(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_in_another_loop_raises_and_appends_nothing(call: Callable[[dlog.Client], Awaitable[Any]]) -> None:
    """The client's own loop would never learn of it, or the waiter never be woken."""
    async with Double() as double, dlog.connect(double.target) as client:
        await client.append("s", b"own")
        with loop_in_thread() as run:
            error = await asyncio.to_thread(run, error_of(call(client)))
        assert isinstance(error, InvalidRequestError), error
        assert "event loop" in error.message
        assert not error.outcome_unknown
        await client.append("s", b"own")
    assert double.log.payloads == [b"own", b"own"]


async def test_a_pipeline_in_another_loop_takes_nothing_and_calls_its_records_unknown() -> None:
    holding = Holding()
    async with Double(script=holding) as double, dlog.connect(double.target) as client:
        pipeline = client.pipeline("s")
        assert pipeline.append_nowait(b"a")
        await double.wait(lambda: len(double.writes) == 1)
        with loop_in_thread() as run:
            taken = await asyncio.to_thread(run, error_of(pipeline.append(b"b", txid=7)))
            drained = await asyncio.to_thread(run, error_of(pipeline.drain()))
        assert isinstance(taken, InvalidRequestError), taken
        assert isinstance(drained, InvalidRequestError), drained
        assert (taken.outcome_unknown, drained.outcome_unknown) == (False, True)
        holding.let_go()
        await pipeline.drain()
    assert double.log.payloads == [b"a"]


def test_a_client_whose_loop_has_ended_says_so_at_once() -> None:
    """As in two `asyncio.run`; it waited for the append's deadline, and named none of this."""
    with loop_in_thread() as run:
        double = Double()
        run(double.__aenter__())
        client = dlog.connect(double.target)

        async def append() -> None:
            await client.append("s", b"x")

        asyncio.run(client.__aenter__())
        with pytest.raises(DLogError, match="event loop"):
            asyncio.run(append())
        run(double.__aexit__())
    assert double.log.payloads == []
