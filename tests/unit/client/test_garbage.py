"""Repeated operations of a client leave nothing to the cycle collector (tests/garbage.py)."""

from __future__ import annotations

import asyncio

import pytest

import dlog
from dlog.client import client as client_module
from dlog.client.client import Client
from dlog.errors import ClosedError, StreamNotFoundError
from dlog.wire import proxy
from tests.garbage import garbage_of
from tests.unit.client.proxy_double import Double, Peer

ROUNDS = 1000


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PRODUCERS_MAX", 1)


async def written(client: Client, stream: str) -> None:
    """Write a stream in each way there is."""
    await client.append(stream, b"a")
    await client.append_batch(stream, [b"b", b"c"])
    await client.append_many(stream, [b"d"] * 3)
    pipeline = client.pipeline(stream, lambda _: None)
    assert pipeline.append_nowait(b"e")
    await pipeline.put([b"f", b"g"])
    await pipeline.drain()


async def test_producers_and_pipelines_of_a_thousand_streams() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        client._producers_max = 1

        async def rounds(count: int) -> None:
            for n in range(count):
                await written(client, f"s{n}")

        assert await garbage_of(rounds, ROUNDS) == {}


async def test_a_thousand_clients_that_are_closed_while_they_write() -> None:
    async with Double() as double:

        async def rounds(count: int) -> None:
            for n in range(count):
                async with dlog.connect(double.target) as client:
                    await client.append("s", b"a")
                    pipeline = client.pipeline("s")
                    assert pipeline.append_nowait(b"b")
                    await client.close(orderly=bool(n % 2))

        assert await garbage_of(rounds, ROUNDS) == {}


async def test_waiting_for_room() -> None:
    async with Double() as double, dlog.connect(double.target, buffer_bytes_max=1) as client:
        client._producers_max = 1

        async def rounds(count: int) -> None:
            for n in range(count):
                async with asyncio.TaskGroup() as group:
                    for _ in range(3):
                        group.create_task(client.append(f"s{n}", b"a"), name="append")

        assert await garbage_of(rounds, ROUNDS) == {}


@pytest.mark.parametrize("refused", [proxy.Write, proxy.GetOwner])
async def test_appends_to_streams_that_are_not_there(refused: type[proxy.Write | proxy.GetOwner]) -> None:
    """refused: the request that gets this error: a batch, or the request before it."""

    def script(peer: Peer, message: object) -> bool:
        if isinstance(message, refused):
            peer.send(proxy.Failed(message.request, StreamNotFoundError.code, "no such stream"))
        return isinstance(message, refused)

    async with Double(script=script) as double, dlog.connect(double.target) as client:
        client._producers_max = 1

        async def rounds(count: int) -> None:
            for n in range(count):
                with pytest.raises(StreamNotFoundError):
                    await client.append(f"s{n}", b"a")
                with pytest.raises(StreamNotFoundError):
                    await client.append_batch(f"s{n}", [b"a"])
                with pytest.raises(StreamNotFoundError):
                    await client.append_many(f"s{n}", [b"a"])

        assert await garbage_of(rounds, ROUNDS // 10) == {}  # each tries again after a pause


async def test_appends_to_a_client_that_is_closed() -> None:
    async with Double() as double:

        async def rounds(count: int) -> None:
            for _ in range(count):
                async with dlog.connect(double.target) as client:
                    pipeline = client.pipeline("s")
                with pytest.raises(ClosedError):
                    await client.append("s", b"a")
                with pytest.raises(ClosedError):
                    pipeline.append_nowait(b"a")

        assert await garbage_of(rounds, ROUNDS) == {}
