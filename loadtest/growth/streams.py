"""Curve `streams`: 20,000 records per second over N streams, as in workload W5."""

from __future__ import annotations

from loadtest import spec
from loadtest.bench import Bench
from loadtest.growth.cluster import SERVING, start_cluster
from loadtest.growth.curve import Bound, Curve, Point, Request
from loadtest.scripts import load

SECONDS, WARMUP_S = 10.0, 5.0
QUICK_SECONDS, QUICK_WARMUP_S = 1.0, 0.5


async def measure(request: Request) -> Point:
    """Raises CannotRunError, DLogError."""
    (cell,) = spec.load("W5", "quick", _changes(request)).cells
    async with start_cluster(request.room) as cluster:
        bench = Bench(cluster.system, cell.shape, request.room, {}, seed=1)
        try:
            outcome = await load(bench)
        finally:
            await bench.close()
    figures = outcome.figures
    records = figures["records_per_s"] * cell.shape.seconds
    cpu_s = sum(float(used["cpu_s"]) for role, used in outcome.usage.items() if role in SERVING)
    return Point(
        cost=cpu_s / max(1.0, records) * 1e6,
        figures={
            "p50_ms": float(figures["response_ms"].get("p50", 0.0)),
            "p99_ms": float(figures["response_ms"].get("p99", 0.0)),
            "records_per_s": float(figures["records_per_s"]),
            "behind": float(figures["behind"]),
        },
        verdict=outcome.verdict,
        failed=outcome.errors,
    )


def _changes(request: Request) -> dict[str, str]:
    seconds, warmup_s = (QUICK_SECONDS, QUICK_WARMUP_S) if request.is_quick else (SECONDS, WARMUP_S)
    return {"logs": str(request.size), "seconds": str(seconds), "warmup_s": str(warmup_s)}


CURVE = Curve(
    name="streams",
    says="20,000 records/s in all over N streams, zipf 1.1 (workload W5)",
    grows="streams",
    cost="CPU us per record",
    sizes=(100, 1_000, 10_000),
    measure=measure,
    exponent_max=0.3,
    bounds=(Bound(figure="p50_ms", says="p50 latency, due to acknowledged, ms", at_most=10.0, size=10_000),),
)
