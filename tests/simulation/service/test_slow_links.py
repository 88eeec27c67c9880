"""Reads over a link that carries little: what is long on its way is waited for, what nobody wants does not go on it.

A window of 16 KiB and half a second for each: a megabyte takes half a minute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest import mock

import dlog
from dlog.client.client import Client
from dlog.client.connection import Connection
from dlog.client.options import ClientOptions
from dlog.client.position import START, at_dlsn
from dlog.client.reader import Reader
from dlog.model.dlsn import DLSN
from dlog.options import MiB
from tests.simulation.service import drawing
from tests.simulation.service.loop import Process, S
from tests.simulation.service.world import World

FAR = "far"
STREAM = "stream-0"


class Narrow(random.Random):
    """Draws the first of what there is: the smallest window."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


@contextlib.contextmanager
def cluster(payloads: list[bytes]) -> Iterator[tuple[World, list[DLSN]]]:
    """A cluster without faults, and a stream that holds these records, each in an entry of its own."""
    plan = drawing.draw(1, "quiet")
    config = {**plan.config, "drawn": False, "readers": 1, "clients": 0, "streams": 1, "latency_ms": 0.3}
    config["settings"] = {**config["settings"], "segment_bytes": 100 * MiB, "segment_age_s": 3600.0}
    world = World(dataclasses.replace(plan, config=config), {})
    world.boot()

    async def write(_: Process) -> list[DLSN]:
        async with dlog.connect(world.work.addresses) as client:
            return [await client.append(STREAM, payload) for payload in payloads]

    places = world.ask("near", write, within_s=60.0, what="the records are written")
    for ends in (("reader-1", FAR), (FAR, "reader-1")):
        world.network.link(*ends).rng = Narrow(7)
    there = world.network.link("reader-1", FAR)
    there.slow_until, there.slow_ns = world.loop.now + 10_000 * S, S
    yield world, places
    world.heal()
    world.stop()


def read_from_afar(
    world: World, work: Callable[[Client], Awaitable[Any]], within_s: float, options: ClientOptions
) -> Any:
    """Do it with a client of the read proxy at the far end of the slow link."""

    async def run(_: Process) -> Any:
        async with dlog.connect(f"dlog://{world.readers[0].address}", options=options) as client:
            return await work(client)

    return world.ask(FAR, run, within_s=within_s, what="a read over a slow link")


def test_a_proxy_is_not_left_while_its_records_are_on_their_way() -> None:
    left: list[str] = []
    on_trouble = Reader._on_trouble

    def note(self: Reader, error: dlog.DLogError) -> None:
        left.append(error.message)
        on_trouble(self, error)

    async def read(client: Client) -> list[int]:
        return [len(record.payload) async for record in client.read(STREAM)]

    with cluster([bytes(900_000)]) as (world, _), mock.patch.object(Reader, "_on_trouble", note):
        assert read_from_afar(world, read, 120.0, ClientOptions(stall_s=2.0)) == [900_000]
    assert not left


def test_a_read_that_is_cancelled_leaves_the_link_to_the_next() -> None:
    heard: Counter[str] = Counter()
    data_received = Connection.data_received

    def count(self: Connection, data: bytes) -> None:
        heard["bytes"] += len(data)
        data_received(self, data)

    with cluster([bytes(20_000) for _ in range(200)]) as (world, places):

        async def read(client: Client) -> int:
            async with contextlib.aclosing(client.read(STREAM, START)) as records:
                async for _ in records:
                    break
            before = heard["bytes"]
            async for record in client.read(STREAM, at_dlsn(places[-1])):
                assert record.dlsn == places[-1]
            return heard["bytes"] - before

        with mock.patch.object(Connection, "data_received", count):
            waste = read_from_afar(world, read, 600.0, ClientOptions())
    assert waste < 2 * MiB, "what had left the proxy when it was cancelled, not the four megabytes of credit"
