"""Curve `truncate`: half of N segments are truncated while a client appends."""

from __future__ import annotations

import asyncio
import time

import dlog
from dlog.model.ids import EntryId, SegmentNumber
from loadtest.checker import Checker
from loadtest.growth.cluster import start_cluster
from loadtest.growth.curve import Bound, Curve, Point, Request
from loadtest.growth.segments import fill, segments_listed, wait_until_listed
from loadtest.writer import ACKS_BETWEEN, Writer, read_back

PAUSE_S = 0.005  # between an acknowledgement and the next append
QUIET_S, QUICK_QUIET_S = 3.0, 0.5  # measured before the truncation: the cost of the appends alone
GONE_S = 600.0
CPU_MIN_S = 0.001  # less is within the error of subtracting the appends' cost
STREAM = "truncated"


async def measure(request: Request) -> Point:
    """Raises CannotRunError, DLogError, TimeoutError."""
    checker = Checker()
    quiet_s = QUICK_QUIET_S if request.is_quick else QUIET_S
    async with start_cluster(request.room) as cluster:
        namespace = cluster.running.namespace
        async with cluster.connect() as client, await cluster.connect_metadata() as metadata:
            await fill(client, metadata, STREAM, request.size)
            writer = Writer(0, STREAM, client, checker, pause_s=PAUSE_S)
            async with asyncio.TaskGroup() as group:
                group.create_task(writer.run(1), name="writer")
                await writer.acknowledged(ACKS_BETWEEN)
                owner = cluster.part_at("write", (await client.owner(STREAM)).location)
                writer.mark()
                cpu = cluster.measure_cpu([owner])
                await asyncio.sleep(quiet_s)
                quiet_gap_s, quiet_cpu = writer.mark(), cpu() / quiet_s
                listed = await segments_listed(metadata, namespace, STREAM)
                cpu, begin_s = cluster.measure_cpu([owner]), time.monotonic()
                await client.truncate(STREAM, dlog.DLSN(SegmentNumber(request.size // 2 + 1), EntryId(0), 0))
                answered_s = time.monotonic() - begin_s
                await wait_until_listed(metadata, namespace, STREAM, listed - request.size // 2, GONE_S)
                gone_s = time.monotonic() - begin_s
                await writer.acknowledged(1)
                gap_s, cpu_s = writer.mark(), max(CPU_MIN_S, cpu() - quiet_cpu * gone_s)
                writer.stop()
            # remove the remaining segments without ledgers, before the writer's first record
            first = await client.truncate(STREAM, dlog.DLSN(SegmentNumber(request.size + 2), EntryId(0), 0))
            assert first, "answered with the first DLSN"
            await read_back(client, STREAM, checker)
    return Point(
        cost=cpu_s,
        figures={
            "gone_s": gone_s,
            "answered_ms": answered_s * 1000,
            "gap_ms": gap_s * 1000,
            "quiet_gap_ms": quiet_gap_s * 1000,
        },
        verdict=checker.finish(),
        failed=writer.failed,
    )


CURVE = Curve(
    name="truncate",
    says="half of N segments truncated while a client appends",
    grows="segments",
    cost="CPU s of the owner",
    sizes=(1_250, 5_000, 20_000),
    measure=measure,
    exponent_max=1.15,
    bounds=(
        Bound(figure="gone_s", says="s until the segments are removed from metadata", at_most=15.0, size=20_000),
        Bound(figure="gap_ms", says="longest ack gap meanwhile, ms", at_most=50.0, size=20_000),
    ),
)
