"""Curve `names`: N streams are created and listed, a thousand written, on a `dlog up` with defaults."""

from __future__ import annotations

import time

from loadtest.growth.cluster import Cluster, Written, start_cluster
from loadtest.growth.curve import Bound, Curve, Point, Request
from loadtest.outages import each
from loadtest.processes import usage
from loadtest.systems.base import CannotRunError

AT_ONCE = 32
WRITTEN = 1000


async def measure(request: Request) -> Point:
    """Raises CannotRunError, DLogError."""
    count = request.size
    streams = [f"name-{number:06d}" for number in range(count)]
    chosen = [streams[i * count // min(WRITTEN, count)] for i in range(min(WRITTEN, count))]
    written = Written()
    async with start_cluster(request.room) as cluster, cluster.connect() as client:
        before, rss_before = await cluster.zookeeper(), _zookeeper_rss(cluster)
        cpu, begin_s = cluster.measure_cpu(), time.monotonic()

        async def create(stream: str) -> None:
            await client.create(stream)

        await each(streams, AT_ONCE, create)
        created_s, cpu_s = time.monotonic() - begin_s, cpu()
        after, rss_after = await cluster.zookeeper(), _zookeeper_rss(cluster)
        request.on_progress(f"names: {count:,} streams created")
        begin_s = time.monotonic()
        listed = [name async for name in client.streams()]
        listed_s = time.monotonic() - begin_s

        async def append(stream: str) -> None:
            await written.append(client, stream)

        begin_s = time.monotonic()
        await each(chosen, AT_ONCE, append)
        written_s = time.monotonic() - begin_s
        verdict = await written.finish(client)
    failed = [] if listed == streams else [f"listed {len(listed)} streams but created {count}"]
    return Point(
        cost=cpu_s / count * 1000,
        figures={
            "missing": float(count - len(listed)),
            "created_s": created_s,
            "listed_s": listed_s,
            "written_s": written_s,
            "packets_a_stream": (after.packets - before.packets) / count,
            "znodes_a_stream": (after.znodes - before.znodes) / count,
            "zookeeper_kb_a_stream": max(0, rss_after - rss_before) / count / 1000,
        },
        verdict=verdict,
        failed=failed,
    )


def _zookeeper_rss(cluster: Cluster) -> int:
    (part,) = cluster.parts("zookeeper")
    used = usage(part.pid)
    if used is None:
        raise CannotRunError("the ZooKeeper process has ended")
    return used.rss_bytes


CURVE = Curve(
    name="names",
    says=f"N streams created, listed, {WRITTEN:,} of them written",
    grows="streams",
    cost="CPU ms per stream created",
    sizes=(2_000, 10_000, 50_000),
    measure=measure,
    exponent_max=0.15,
    bounds=(
        Bound(figure="missing", says="streams missing in the list", at_most=0, size=50_000),
        Bound(figure="packets_a_stream", says="ZooKeeper packets per stream created", size=50_000),
        Bound(figure="znodes_a_stream", says="znodes per stream created", size=50_000),
        Bound(figure="zookeeper_kb_a_stream", says="ZooKeeper's resident KB per stream created", size=50_000),
    ),
)
