"""Curve `takeover`: a write proxy with N streams is killed; clients append."""

from __future__ import annotations

from loadtest.growth.curve import Bound, Curve, Point, Request
from loadtest.judge import Verdict
from loadtest.outages import Heirs

WAITING = 200  # clients, each of which appends to another stream


async def measure(request: Request) -> Point:
    """Raises CannotRunError, DLogError, TimeoutError."""
    waiting = min(WAITING, -(-request.size // 2) if request.is_quick else request.size)
    report = await Heirs(request.size, waiting=waiting, clients=waiting, on_progress=request.on_progress).go()
    failed = [str(text) for text in report["failed"]]
    if not report["green"]:
        return Point(cost=0.0, failed=failed or ["records read back from a stream differ from those written"])
    records = request.size + waiting
    return Point(
        cost=float(report["p99_ms"]),
        figures={
            "p99_s": float(report["p99_ms"]) / 1000,
            "p50_s": float(report["p50_ms"]) / 1000,
            "takes": float(report["takes"]),
            "packets": float(report["zookeeper_requests"]),
        },
        verdict=Verdict(sent=records, acknowledged=records, read=records),
        failed=failed,
    )


CURVE = Curve(
    name="takeover",
    says=f"a proxy that owns N streams is killed, {WAITING} clients append, each to one of them",
    grows="streams",
    cost="p99 ms until acknowledged again",
    sizes=(500, 2_000, 8_000),
    measure=measure,
    exponent_max=0.3,
    bounds=(Bound(figure="p99_s", says="p99 until acknowledged again, s", at_most=2.0, size=8_000),),
)
