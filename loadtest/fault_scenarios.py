"""Scripts of cells with faults: kill, freeze, restart, kill of everything, hand-over.

Invariants:
- a fault happens while a producer appends in a steady open loop;
- its gap is the longest time without an acknowledgement that overlaps the time from fault to recovery, counted to the
  next acknowledgement; below 20 ms it is reported as 0;
- a fault begins after the last one is over: every node runs and the producer gets acknowledgements.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from loadtest.bench import Bench, Outcome, cost_figures, produced_figures
from loadtest.generators import Generator
from loadtest.histogram import joined
from loadtest.judge import Verdict
from loadtest.scripts import write_backlog
from loadtest.systems.base import CannotRunError, NotApplicable

LOAD_S = 3600.0  # the load lasts until it is stopped
HEAL_S = 180.0
ACKED_S = 0.3  # the load has recovered once the records of so many seconds are acknowledged


async def fault(bench: Bench) -> Outcome:
    """Kill or freeze the owner, or a storage node, repeatedly."""
    shape, system = bench.shape, bench.system

    async def hurt(producer: Generator) -> int:
        node = await _target(bench)
        killed_ns = time.monotonic_ns()
        if shape.fault == "kill":
            await system.kill(node)
            await _answered(bench, producer, killed_ns)
        else:
            await system.pause(node)
            await asyncio.sleep(shape.frozen_s)
            await system.resume(node)
            await _answered(bench, producer, time.monotonic_ns())
        healed_ns = time.monotonic_ns()
        if shape.fault == "kill":
            await system.revive(node)
        await system.whole()
        return healed_ns

    return await _repeat(bench, [hurt] * shape.faults)


async def hand_over(bench: Bench) -> Outcome:
    """Have the owner hand over, repeatedly."""

    async def change(producer: Generator) -> int:
        await bench.system.hand_over(bench.logs[0])
        await _answered(bench, producer, time.monotonic_ns())
        return time.monotonic_ns()

    return await _repeat(bench, [change] * bench.shape.faults)


async def roll(bench: Bench) -> Outcome:
    """Restart every node in turn."""
    system = bench.system

    async def restart(name: str, producer: Generator) -> int:
        await system.restart(name)
        await system.whole()
        await _answered(bench, producer, time.monotonic_ns())
        return time.monotonic_ns()

    names = [node.name for node in system.nodes()]
    return await _repeat(bench, [partial(restart, name) for name in names * bench.shape.faults])


async def _repeat(bench: Bench, faults: Sequence[Callable[[Generator], Awaitable[int]]]) -> Outcome:
    """One fault after the other under a load, with a pause before each; a fault returns the instant of recovery."""
    await bench.make_logs(1)
    producer = await _begin(bench)
    marks: list[tuple[int, int]] = []
    async with bench.watching():
        for one in faults:
            await asyncio.sleep(bench.shape.calm_s)
            began_ns = time.monotonic_ns()
            marks.append((began_ns, await one(producer)))
        await asyncio.sleep(bench.shape.calm_s)
    verdict, load = await _stop(bench)
    return _outcome(bench, verdict, load, marks)


async def kill_all(bench: Bench) -> Outcome:
    """Kill and restart everything under load; time until an append is acknowledged and a record is read."""
    shape, system = bench.shape, bench.system
    await bench.make_logs(1)
    await write_backlog(bench, 0, shape.backlog_mb * 1_000_000 // shape.record_bytes)
    producer = await _begin(bench)
    async with bench.watching():
        await asyncio.sleep(shape.calm_s)
        began_ns = time.monotonic_ns()
        await system.kill_all()
        started_ns = time.monotonic_ns()
        await system.start_all()
        await _answered(bench, producer, started_ns)
        healed_ns = time.monotonic_ns()
        reader = await bench.reader("first-read", judged=False)
        asked_ns = time.monotonic_ns()
        reader.go(asked_ns)
        await system.whole()
        await asyncio.sleep(shape.calm_s)
    read = await reader.result(600.0)
    verdict, load = await _stop(bench)
    outcome = _outcome(bench, verdict, load, [(began_ns, healed_ns)])
    first_acks = [end for begin, end in load["gaps"] if begin < healed_ns and end > started_ns]
    outcome.figures |= {
        "first_append_s": round((min(first_acks, default=healed_ns) - started_ns) / 1e9, 3),
        "first_read_ms": round((read["first_ns"] - asked_ns) / 1e6, 1),
        "on_disk_mb": shape.backlog_mb,
    }
    return outcome


async def _begin(bench: Bench) -> Generator:
    """Start a producer; wait for steady acknowledgements."""
    producer = await bench.producer(len(bench.producers), seconds=LOAD_S, warmup_s=0.5)
    start_ns = bench.go([producer])
    await producer.acknowledged(int(bench.shape.rate * ACKED_S), start_ns, bench.shape.patience_s)
    return producer


async def _answered(bench: Bench, producer: Generator, since_ns: int) -> None:
    """Wait for steady acknowledgements after `since_ns`."""
    await asyncio.sleep(0.1)  # let acknowledgements in flight arrive
    await producer.acknowledged(int(bench.shape.rate * ACKED_S), since_ns, HEAL_S)


async def _target(bench: Bench) -> str:
    system, log = bench.system, bench.logs[0]
    if bench.shape.target == "leader":
        return await system.leader(log)
    owner = await system.owner(log) if system.owner_role or bench.shape.target == "owner" else ""
    if bench.shape.target == "owner":
        return owner
    for node in system.nodes():
        if node.role == system.storage_role and node.name != owner and node.pid:
            return node.name
    raise NotApplicable("no storage node that does not also own the log")


async def _stop(bench: Bench) -> tuple[Verdict, dict[str, Any]]:
    """Stop the load and check; the last producer's result."""
    for producer in bench.producers:
        producer.stop()
    verdict, produced, _ = await bench.finish()
    return verdict, produced[-1]


def _outcome(bench: Bench, verdict: Verdict, load: dict[str, Any], marks: Sequence[tuple[int, int]]) -> Outcome:
    """The figures of all faults."""
    gaps = gaps_at(load["gaps"], marks)
    steady = [
        (end - begin) / 1e6
        for begin, end in load["gaps"]
        if not any(begin < healed and end > began for began, healed in marks)
    ]
    figures: dict[str, Any] = {
        **produced_figures(bench.shape, [load]),
        **cost_figures(bench.shape, bench.watch.used(), [load]),
        "gaps_ms": [round(gap, 1) for gap in gaps],
        "gap_p50_ms": round(statistics.median(gaps), 1),
        "gap_max_ms": round(max(gaps), 1),
        "steady_gap_max_ms": round(max(steady, default=0.0), 1),
        "faults": len(marks),
    }
    return Outcome(
        verdict,
        figures=figures,
        histograms={"response": joined([load["response"]]).as_json()},
        usage=bench.watch.used(),
        generators=[{"cpu_s": round(load["cpu_s"], 3), "rss_peak": load["rss_peak"]}],
        timeline=load["timeline"],
        errors=list(load["errors"]),
    )


def gaps_at(gaps: Sequence[Sequence[int]], marks: Sequence[tuple[int, int]]) -> list[float]:
    """The gap of each fault in ms: the longest that overlaps the time from fault to recovery."""
    if not marks:
        raise CannotRunError("no fault happened, so there is no gap to report")
    found = []
    for began_ns, healed_ns in marks:
        overlapping = [(end - begin) / 1e6 for begin, end in gaps if begin < healed_ns and end > began_ns]
        found.append(max(overlapping, default=0.0))
    return found
