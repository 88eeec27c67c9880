"""Reads over a slow link: a reader waits for an answer as long as it keeps arriving.

The window is 16 KiB with half a second for each: a megabyte takes half a minute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest import mock

import dlog
from dlog.client.client import Client
from dlog.client.options import ClientOptions
from dlog.client.reader import ReadSession
from dlog.options import MiB
from tests.simulation.service import drawing
from tests.simulation.service.loop import Process, S
from tests.simulation.service.world import World

FAR = "far"
STREAM = "stream-0"


class Narrow(random.Random):
    """A random source that draws the first choice: the smallest window."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


@contextlib.contextmanager
def cluster(payloads: list[bytes]) -> Iterator[World]:
    """A cluster without faults, and a stream that holds these records, each in an entry of its own."""
    plan = drawing.draw(1, "quiet")
    config = {**plan.config, "drawn": False, "readers": 1, "clients": 0, "streams": 1, "latency_ms": 0.3}
    config["settings"] = {**config["settings"], "segment_bytes": 100 * MiB, "segment_age_s": 3600.0}
    world = World(dataclasses.replace(plan, config=config), {})
    world.boot()

    async def write(_: Process) -> None:
        async with dlog.connect(world.work.addresses) as client:
            for payload in payloads:
                await client.append(STREAM, payload)

    world.ask("near", write, within_s=60.0, what="the records are written")
    for ends in (("reader-1", FAR), (FAR, "reader-1")):
        world.network.link(*ends).rng = Narrow(7)
    there = world.network.link("reader-1", FAR)
    there.slow_until, there.slow_ns = world.loop.now + 10_000 * S, S
    yield world
    world.heal()
    world.stop()


def read_from_afar(
    world: World, work: Callable[[Client], Awaitable[Any]], within_s: float, options: ClientOptions
) -> Any:
    """Run this with a client of the read proxy at the far end of the slow link."""

    async def run(_: Process) -> Any:
        async with dlog.connect(f"dlog://{world.readers[0].address}", options=options) as client:
            return await work(client)

    return world.ask(FAR, run, within_s=within_s, what="a read over a slow link")


def test_a_proxy_is_not_left_while_its_records_are_on_their_way() -> None:
    def leave(self: ReadSession, error: dlog.DLogError) -> None:
        raise AssertionError(f"a proxy was left that was sending: {error.message}")

    async def read(client: Client) -> list[int]:
        return [len(record.payload) async for record in client.read(STREAM)]

    with cluster([bytes(900_000)]) as world, mock.patch.object(ReadSession, "_on_trouble", leave):
        assert read_from_afar(world, read, 120.0, ClientOptions(stall_s=2.0)) == [900_000]
