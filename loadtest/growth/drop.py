"""Curve `drop`: a read proxy with a full cache of N MiB drops 100 truncated segments."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from contextlib import aclosing

import dlog
from dlog.model.ids import EntryId, SegmentNumber
from loadtest.checker import Checker
from loadtest.growth.cluster import start_cluster
from loadtest.growth.curve import Bound, Curve, Point, Request
from loadtest.growth.segments import segments_listed, wait_until_listed
from loadtest.judge import Verdict
from loadtest.payload import PayloadMaker
from loadtest.systems.nodes import HOST, Ports
from loadtest.writer import read_back

MIB = 1024 * 1024
SEGMENTS = 100
ROUNDS, QUICK_ROUNDS = 3, 1
SEGMENT_BYTES = 64 * 1024  # the least allowed setting
RECORD_BYTES = SEGMENT_BYTES + 1024
SMALL_BYTES = 100
PAUSE_S = 0.01
BATCH_RECORDS = 14  # batch size of the stream that fills the cache
GONE_S = 120.0
FOLLOW_S = 120.0


async def measure(request: Request) -> Point:
    """Raises CannotRunError, DLogError, TimeoutError."""
    verdict = Verdict()
    cpu_s, cached, dropped = 0.0, list[float](), list[float]()
    rounds = QUICK_ROUNDS if request.is_quick else ROUNDS
    with Ports() as ports:
        (port,) = ports.take(1)
        config = {"read": {"cache_bytes_max": request.size * MIB, "http_port": port}}
        async with start_cluster(request.room, config, read_proxies="1") as cluster, cluster.connect() as client:
            (proxy,) = cluster.parts("read")
            namespace = cluster.running.namespace
            verdict.add(await _fill_cache(client, request.size * MIB))
            async with await cluster.connect_metadata() as metadata:
                for number in range(rounds):
                    stream, checker = f"dropped-{number}", Checker()
                    have = asyncio.Event()
                    await client.create(stream, segment_bytes=SEGMENT_BYTES)
                    await _write(client, stream, checker)
                    async with asyncio.TaskGroup() as group:
                        reader = group.create_task(_follow(client, stream, checker, have), name="follower")
                        async with asyncio.timeout(FOLLOW_S):
                            await have.wait()
                        cached.append(await asyncio.to_thread(_cache_bytes, port))
                        listed = await segments_listed(metadata, namespace, stream)
                        cpu = cluster.measure_cpu([proxy])
                        await client.truncate(stream, dlog.DLSN(SegmentNumber(SEGMENTS + 1), EntryId(0), 0))
                        await wait_until_listed(metadata, namespace, stream, listed - SEGMENTS, GONE_S)
                        await asyncio.sleep(0.2)  # the read proxy is notified by its watch
                        cpu_s += cpu()
                        dropped.append(cached[-1] - await asyncio.to_thread(_cache_bytes, port))
                        reader.cancel()
                    await read_back(client, stream, checker)
                    verdict.add(checker.finish())
    return Point(
        cost=cpu_s / rounds,
        figures={"cpu_s": cpu_s / rounds, "cached_mib": min(cached) / MIB, "dropped_mib": min(dropped) / MIB},
        verdict=verdict,
    )


async def _fill_cache(client: dlog.Client, size: int) -> Verdict:
    """Write a stream as large as the cache, and read it."""
    checker, maker = Checker(), PayloadMaker(0, RECORD_BYTES)
    stream = "fills-the-cache"
    await client.create(stream)
    sequence = 0
    while sequence * RECORD_BYTES < size:
        batch = maker.make(sequence, BATCH_RECORDS, 0)
        checker.sent(0, sequence, len(batch))
        result = await client.append_batch(stream, batch)
        checker.acknowledged(0, sequence, len(batch), result.first)
        sequence += len(batch)
    await read_back(client, stream, checker)
    return checker.finish()


async def _write(client: dlog.Client, stream: str, checker: Checker) -> None:
    """Fill each segment with one large record; append small ones until the next segment begins."""
    large, small = PayloadMaker(0, RECORD_BYTES), PayloadMaker(0, SMALL_BYTES)
    sequence = 0

    async def append(maker: PayloadMaker) -> int:
        nonlocal sequence
        checker.sent(0, sequence, 1)
        dlsn = await client.append(stream, *maker.make(sequence, 1, 0))
        checker.acknowledged(0, sequence, 1, dlsn)
        sequence += 1
        return dlsn.segment

    segment = 0
    while segment <= SEGMENTS:
        filled = segment = await append(large)
        while segment == filled <= SEGMENTS:
            await asyncio.sleep(PAUSE_S)
            segment = await append(small)


async def _follow(client: dlog.Client, stream: str, checker: Checker, have: asyncio.Event) -> None:
    """Read from the start, then follow. have: set at the first segment that will not be dropped."""
    async with aclosing(client.read_batches(stream, start=dlog.START, follow=True)) as batches:
        async for batch in batches:
            checker.given("follower", batch.dlsn, batch.payloads)
            if batch.dlsn.segment > SEGMENTS:
                have.set()


def _cache_bytes(port: int) -> float:
    """Size of the read proxy's cache, from its metrics."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=60.0) as answer:
        metrics = answer.read().decode()
    found = re.search(r"^dlog_read_cache_bytes (\S+)$", metrics, re.M)
    assert found is not None, "http_port is set"
    return float(found[1])


CURVE = Curve(
    name="drop",
    says=f"{SEGMENTS} segments truncated under a read proxy's full cache of N MiB",
    grows="MiB",
    cost="CPU s of the read proxy",
    sizes=(16, 64, 256),
    measure=measure,
    exponent_max=0.15,
    bounds=(
        Bound(figure="cpu_s", says="read proxy's CPU s to drop 100 segments", at_most=0.05, size=64),
        Bound(figure="dropped_mib", says="MiB dropped from the cache", size=64),
    ),
)
