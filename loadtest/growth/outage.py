"""Curve `outage`: ZooKeeper is restarted with N owned streams while clients append."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack

from loadtest.checker import Checker
from loadtest.growth.cluster import Cluster, Written, create_streams, start_cluster
from loadtest.growth.curve import Bound, Curve, Point, Request
from loadtest.judge import Verdict
from loadtest.systems.base import CannotRunError
from loadtest.waiting import until
from loadtest.writer import ACKS_BETWEEN, Writer, read_back

WRITERS = 4
PAUSE_S = 0.005  # between an acknowledgement and a writer's next append
BACK_S = 60.0
AFTER_S, QUICK_AFTER_S = 30.0, 3.0  # sessions expire up to ten seconds after the restart; owners then register again


async def measure(request: Request) -> Point:
    """Raises CannotRunError, DLogError, TimeoutError."""
    written = Written()
    verdict = Verdict()
    streams = [f"owned-{number}" for number in range(request.size)]
    async with start_cluster(request.room) as cluster, AsyncExitStack() as clients:
        client = await clients.enter_async_context(cluster.connect())
        await create_streams(client, streams, written)
        request.on_progress(f"outage: {request.size:,} streams created and owned")
        writers, checkers = [], []
        for number in range(WRITERS):
            stream = f"goes-on-{number}"
            await client.create(stream)
            checkers.append((stream, Checker()))
            own = await clients.enter_async_context(cluster.connect())
            writers.append(Writer(0, stream, own, checkers[-1][1], pause_s=PAUSE_S))
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run(1), name="writer")
            try:
                figures = await _restart_zookeeper(cluster, writers, request.is_quick)
            finally:
                for writer in writers:
                    writer.stop()
        for stream, checker in checkers:
            await read_back(client, stream, checker)
            verdict.add(checker.finish())
        verdict.add(await written.finish(client))
    return Point(
        cost=figures["packets"],
        figures=figures | {"packets_a_stream": figures["packets"] / request.size},
        verdict=verdict,
        failed=[text for writer in writers for text in writer.failed],
    )


async def _restart_zookeeper(cluster: Cluster, writers: list[Writer], is_quick: bool) -> dict[str, float]:
    """Kill ZooKeeper, which the `dlog up` restarts, and measure until AFTER_S after the restart."""

    after_s = QUICK_AFTER_S if is_quick else AFTER_S

    async def is_back() -> bool:
        try:
            await cluster.zookeeper(timeout_s=1.0)
        except (OSError, CannotRunError):  # it listens before it serves
            return False
        return True

    for writer in writers:
        await writer.acknowledged(ACKS_BETWEEN)
    quiet_s = max(writer.longest_s for writer in writers)
    for writer in writers:
        writer.longest_s = 0.0
    (zookeeper,) = cluster.parts("zookeeper")
    cpu = cluster.measure_cpu(cluster.parts("write", "read", "bookie"))
    os.kill(zookeeper.pid, signal.SIGKILL)
    begin_s = time.monotonic()
    await until(is_back, BACK_S, "ZooKeeper was not restarted")
    away_s = time.monotonic() - begin_s
    await asyncio.sleep(after_s)
    for writer in writers:
        await writer.acknowledged(1)
    packets = (await cluster.zookeeper()).packets  # counted since the restart
    return {
        "longest_s": max(writer.longest_s for writer in writers),
        "quiet_longest_s": quiet_s,
        "away_s": away_s,
        "packets": packets,
        "cpu_s": cpu(),
    }


CURVE = Curve(
    name="outage",
    says="ZooKeeper killed and restarted with N owned streams",
    grows="streams",
    cost="ZooKeeper packets afterwards",
    sizes=(1_000, 3_200, 10_000),
    measure=measure,
    exponent_max=1.1,
    bounds=(
        Bound(figure="longest_s", says="longest append meanwhile and after, s", at_most=0.5, size=10_000),
        Bound(figure="packets_a_stream", says="ZooKeeper packets per stream afterwards", size=10_000),
    ),
)
