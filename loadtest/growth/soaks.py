"""Curves `disk` and `memory`: the soak of W22, for longer."""

from __future__ import annotations

from loadtest.growth.cluster import start_cluster
from loadtest.growth.curve import Bound, Curve, Point, Request
from loadtest.soaking import Load, Soak

RATE_MB_S = 3


async def measure_disk(request: Request) -> Point:
    """Raises CannotRunError, DLogError, TimeoutError."""
    return await _measure(request, "used_max_mb")


async def measure_memory(request: Request) -> Point:
    """Raises CannotRunError, DLogError, TimeoutError."""
    return await _measure(request, "rss_ratio")


async def _measure(request: Request, cost: str) -> Point:
    load = Load(seconds=request.minutes * 60, bytes_per_s=request.size * 1_000_000)
    async with start_cluster(request.room, config="small-disk") as cluster:
        soaked = await Soak(lambda: cluster.running, load, request.on_progress).run()
    figures = soaked.figures() | {f"rss_ratio {name}": ratio for name, ratio in soaked.rss_ratios().items()}
    return Point(cost=figures[cost], figures=figures, verdict=soaked.verdict, failed=soaked.failed)


DISK = Curve(
    name="disk",
    says="disk of bookies under 3 MB/s with a retention of 10 s",
    grows="MB/s",
    cost="maximum MB used by a bookie",
    sizes=(RATE_MB_S,),
    measure=measure_disk,
    minutes=30.0,
    bounds=(
        Bound(figure="beyond_3x_live_mb", says="disk beyond 3x live data, MB", at_most=200.0, size=RATE_MB_S),
        Bound(figure="used_max_mb", says="disk of a bookie, MB", at_most=2000.0, size=RATE_MB_S),
        Bound(figure="read_only", says="bookies that are read-only at the end", at_most=0.0, size=RATE_MB_S),
    ),
)
MEMORY = Curve(
    name="memory",
    says="memory of processes under 3 MB/s while streams and readers come and go",
    grows="MB/s",
    cost="RSS at the end over RSS after a sixth of the time",
    sizes=(RATE_MB_S,),
    measure=measure_memory,
    minutes=60.0,
    bounds=(
        Bound(figure="rss_ratio", says="RSS at the end over RSS after 1/6 of the time", at_most=1.1, size=RATE_MB_S),
    ),
)
