"""Curve `roll`: a stream of N segments with 100 tail readers; a record fills one."""

from __future__ import annotations

import asyncio
from functools import partial

import dlog
from dlog.model.ids import EntryId, SegmentNumber
from loadtest.checker import Checker
from loadtest.growth.cluster import SERVING, follow, start_cluster
from loadtest.growth.curve import COST_RATIO, Bound, Curve, Point, Request
from loadtest.growth.segments import fill
from loadtest.payload import PayloadMaker
from loadtest.systems.base import CannotRunError
from loadtest.waiting import until
from loadtest.writer import read_back

READERS = 100
ROLLS, QUICK_ROLLS = 60, 6
SEGMENT_BYTES = 64 * 1024  # the least allowed setting
RECORD_BYTES = SEGMENT_BYTES + 1024
PAUSE_S = 0.1  # between two rolls, so that readers have handled one before the next
FOLLOW_S = 60.0
STREAM = "rolled"


async def measure(request: Request) -> Point:
    """Raises CannotRunError, DLogError, TimeoutError."""
    checker = Checker()
    records = QUICK_ROLLS if request.is_quick else ROLLS
    maker = PayloadMaker(0, RECORD_BYTES)
    sent = 0
    given = [0] * READERS  # number of records that each reader has received
    last = [-1] * READERS

    async with (
        start_cluster(request.room) as cluster,
        cluster.connect() as client,
        await cluster.connect_metadata() as metadata,
    ):
        await fill(client, metadata, STREAM, request.size, segment_bytes=SEGMENT_BYTES)

        async def append() -> dlog.DLSN:
            nonlocal sent
            sequence, sent = sent, sent + 1
            checker.sent(0, sequence, 1)
            dlsn = await client.append(STREAM, *maker.make(sequence, 1, 0))
            checker.acknowledged(0, sequence, 1, dlsn)
            return dlsn

        async def all_follow() -> bool:
            await append()
            return all(given)

        async def all_have_the_last() -> bool:
            return all(seen == sent - 1 for seen in last)

        def received(reader: int, count: int, newest: int) -> None:
            given[reader] += count
            last[reader] = newest

        async with asyncio.TaskGroup() as group:
            readers = [
                group.create_task(follow(client, STREAM, f"tail-{i}", checker, partial(received, i)), name=f"tail {i}")
                for i in range(READERS)
            ]
            await until(all_follow, FOLLOW_S, "not every reader received a record", PAUSE_S)
            for _ in range(records // 3):  # warm up: ZooKeeper's JVM compiles hot code
                await append()
                await asyncio.sleep(PAUSE_S)
            await until(all_have_the_last, FOLLOW_S, "not every reader is at the tail")
            cpu, before = {role: cluster.measure_cpu(cluster.parts(role)) for role in SERVING}, await append()
            for _ in range(records):
                after = await append()
                await asyncio.sleep(PAUSE_S)
            await until(all_have_the_last, FOLLOW_S, "not every reader received all records")
            by_role = {f"{role}_cpu_s": spent() for role, spent in cpu.items()}
            rolls = after.segment - before.segment
            for task in readers:
                task.cancel()
        if rolls < 1:
            raise CannotRunError(f"the stream did not roll: rolls={rolls} records={records}")
        await client.truncate(STREAM, dlog.DLSN(SegmentNumber(request.size + 2), EntryId(0), 0))
        await read_back(client, STREAM, checker)
    return Point(cost=sum(by_role.values()) / rolls, figures={"rolls": rolls} | by_role, verdict=checker.finish())


CURVE = Curve(
    name="roll",
    says=f"rolls of a stream with {READERS} tail readers and N segments",
    grows="segments",
    cost="CPU s per roll, all processes",
    sizes=(1_000, 4_500, 20_000),
    measure=measure,
    exponent_max=0.15,
    bounds=(Bound(figure=COST_RATIO, says="CPU per roll over that at 1,000 segments", at_most=1.5, size=20_000),),
)
