"""Scripts of cells without faults: a load, a catch-up read beside a load, idle logs, a soak, uploads, a part alone.

A script starts what it needs and measures between two instants of one clock; the bench checks the records.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dlog.stores.object_storage.prices import STORED_DOLLARS_PER_TB_MONTH
from loadtest import s3_prices
from loadtest.bench import READ_BACK_S, STOP_S, Bench, Outcome, cost_figures, latencies, produced_figures, until_ns
from loadtest.histogram import joined
from loadtest.judge import Verdict
from loadtest.soaking import Load
from loadtest.spec import Shape
from loadtest.systems.base import CannotRunError

LOAD_S = 3600.0  # the load lasts until it is stopped
QUIET_S = 1.5  # time without a new object after which an upload has ended
UNBROKEN_S = 10.0  # new objects for so long without a pause of QUIET_S: uploads overlap, and none is waited for
LOGS_TO_WEIGH = 100  # with fewer, memory per log is lost in what the first log allocates


async def load(bench: Bench) -> Outcome:
    """Producers, and followers if the shape has readers."""
    shape = bench.shape
    await bench.make_logs(shape.logs)
    share, rest = divmod(shape.readers, shape.reader_processes)
    for number in range(shape.reader_processes):
        copies = share + (number < rest)
        if copies:
            await bench.follower(number, copies)
    for number in range(shape.producers):
        await bench.producer(number)
    start_ns = bench.go([*bench.producers, *(generator for generator, _ in bench.readers)])
    await bench.measure(start_ns)
    verdict, produced, followed = await bench.finish()
    outcome = _outcome(bench, verdict, produced)
    if followed:
        outcome.generators += map(_generator, followed)
        delivery = joined(one["delivery"] for one in followed)
        out = sum(float(one["measured_bytes"]) / float(one["measured_s"]) for one in followed)
        response = joined(one["response"] for one in produced)
        outcome.figures |= {
            "delivery_ms": latencies(delivery),
            "delivered_mb_per_s": round(out / 1e6, 2),
            "tail_extra_p99_ms": (
                round((delivery.percentile(99) - response.percentile(99)) / 1000, 3) if delivery.count else None
            ),
        }
        outcome.histograms["delivery"] = delivery.as_json()
        outcome.errors += [text for one in followed for text in one["errors"]]
    return outcome


async def catch_up(bench: Bench) -> Outcome:
    """Write a backlog; measure a writer alone; then measure the same load while a reader reads from the start.

    The reader runs exactly during the writer's measured time. If it finishes the backlog earlier, the writer was
    undisturbed for the rest: the ratio of the two p99 is then not reported.
    """
    shape = bench.shape
    await bench.make_logs(1)
    await write_backlog(bench, 0, backlog_records(shape))
    alone = await bench.producer(1)
    start_ns = bench.go([alone])
    await bench.measure(start_ns)
    undisturbed = await alone.result(shape.warmup_s + shape.seconds + shape.patience_s)
    beside = await bench.producer(2)
    reader = await bench.reader("catch-up", judged=False)
    start_ns = bench.go([beside])
    begin_ns = start_ns + int(shape.warmup_s * 1e9)
    await until_ns(begin_ns)
    reader.go(begin_ns)
    await bench.measure(start_ns)
    reader.stop()
    read = await reader.result(STOP_S)
    took_s = (read["last_ns"] - begin_ns) / 1e9
    read_all = read["ended"] and took_s < shape.seconds
    verdict, produced, _ = await bench.finish()
    disturbed = produced[2]
    outcome = _outcome(bench, verdict, [disturbed])
    p99 = [joined([one["response"]]).percentile(99) / 1000 for one in (undisturbed, disturbed)]
    outcome.figures |= {
        "catch_up_mb_per_s": round(read["measured_bytes"] / read["measured_s"] / 1e6, 2),
        "catch_up_records_per_s": round(read["measured"] / read["measured_s"], 1),
        "catch_up_s": round(read["measured_s"], 3),
        "undisturbed_ms": latencies(joined([undisturbed["response"]])),
        "p99_disturbed_over_undisturbed": round(p99[1] / p99[0], 3) if p99[0] and not read_all else None,
    }
    outcome.errors += read["errors"]
    if read_all:
        outcome.errors.append(
            f"the backlog was read in {took_s:.2f} of the measured {shape.seconds:g} s: raise backlog_mb"
        )
    return outcome


async def idle(bench: Bench) -> Outcome:
    """Append one record to each log, then measure without any load."""
    shape = bench.shape
    await bench.make_logs(shape.logs)
    before = {role: len(pids) for role, pids in bench.system.processes().items()}
    rested = bench.watch
    rested.begin(bench.system.processes())
    rss_before = sum(int(used["rss_bytes"]) for used in rested.used().values())
    producer = await bench.producer(0, mode="open", rate=1.0)  # without `go` it keeps its logs open, idle
    await asyncio.sleep(2.0)  # work that follows from opening logs ends meanwhile
    rested.begin(bench.system.processes())
    begin_s = time.monotonic()
    await asyncio.sleep(shape.idle_s)
    rested.look(bench.system.processes())
    took_s = time.monotonic() - begin_s
    usage = rested.used()
    producer.stop()
    verdict, produced, _ = await bench.finish()
    outcome = Outcome(verdict, usage=usage, errors=[text for one in produced for text in one["errors"]])
    rss = sum(int(used["rss_bytes"]) for used in usage.values())
    outcome.figures = {
        "rss_bytes": rss,
        "rss_before_bytes": rss_before,
        "bytes_per_log": round(max(0, rss - rss_before) / shape.logs) if shape.logs >= LOGS_TO_WEIGH else None,
        "cpu_percent": round(sum(float(used["cpu_s"]) for used in usage.values()) / took_s * 100, 2),
        "files": sum(int(used["files"]) for used in usage.values()),
        "processes": before,
    }
    return outcome


async def scan(bench: Bench) -> Outcome:
    """Write a backlog; measure a reader alone that reads it from the start to the end, opening included."""
    shape = bench.shape
    await bench.make_logs(1)
    await write_backlog(bench, 0, backlog_records(shape))
    reader = await bench.reader("scan", judged=False)
    begin_ns = time.monotonic_ns()
    async with bench.watching():
        reader.go(begin_ns)
        read = await reader.result(READ_BACK_S)
    if not read["ended"]:
        raise CannotRunError(f"the reader did not reach the end: {read['errors']}")
    verdict, _, _ = await bench.finish()
    took_s = (read["last_ns"] - begin_ns) / 1e9
    return Outcome(
        verdict,
        figures={
            "scan_mb_per_s": round(read["measured_bytes"] / took_s / 1e6, 2),
            "scan_records_per_s": round(read["measured"] / took_s, 1),
            "scan_s": round(took_s, 3),
            "generator_cpu_s": round(read["cpu_s"], 3),
        },
        usage=bench.watch.used(),
        generators=[_generator(read)],
    )


async def reopen(bench: Bench) -> Outcome:
    """Write a log, save a snapshot, write some more, crash; measure opening it with the snapshot and without one."""
    shape = bench.shape
    await bench.make_logs(1)
    whole = backlog_records(shape)
    rest = max(1, int(whole * shape.unsaved))
    await write_backlog(bench, 0, whole - rest)
    await write_backlog(bench, 1, rest, crash=True)
    saved = await bench.system.reopen(bench.logs[0], with_snapshot=True)
    scanned = await bench.system.reopen(bench.logs[0], with_snapshot=False)
    verdict, _, _ = await bench.finish()
    if saved.state != scanned.state:
        raise CannotRunError(f"the snapshot gave another state than a scan: {saved.state} {scanned.state}")
    figures = {
        "open_s": round(saved.seconds, 4),
        "open_without_snapshot_s": round(scanned.seconds, 4),
        "open_ratio": round(saved.seconds / scanned.seconds, 4),
        "records": whole,
    }
    return Outcome(verdict, figures=figures)


async def soak(bench: Bench) -> Outcome:
    """Run loadtest/soaking.py: disk and memory under a steady load with retention."""
    shape = bench.shape
    load = Load(
        seconds=shape.seconds,
        streams=shape.logs,
        bytes_per_s=shape.rate * shape.record_bytes,
        record_bytes=shape.record_bytes,
        retention_s=shape.retention_s,
    )
    async with bench.watching():
        soaked = await bench.system.soak(load)
    if soaked.failed:
        raise CannotRunError(f"the soak had {len(soaked.failed)} failures, first: {soaked.failed[0]}")
    ratios = {name: round(ratio, 3) for name, ratio in soaked.rss_ratios().items()}
    figures: dict[str, Any] = {name: round(value, 3) for name, value in soaked.figures().items()}
    return Outcome(soaked.verdict, figures=figures | {"rss_ratios": ratios}, usage=bench.watch.used())


async def uploads(bench: Bench) -> Outcome:
    """A load, with the requests to the object storage counted between the ends of two uploads."""
    shape, system = bench.shape, bench.system
    await bench.make_logs(shape.logs)
    producer = await bench.producer(0, seconds=LOAD_S)
    start_ns = bench.go([producer])
    await until_ns(start_ns + int(shape.warmup_s * 1e9))
    async with bench.watching():
        begin = await until_uploaded(system.requests, shape.patience_s)
        begin_ns, acked_before = time.monotonic_ns(), producer.acked
        await until_ns(begin_ns + int(shape.seconds * 1e9))
        end = await until_uploaded(system.requests, shape.patience_s)
        end_ns, acked = time.monotonic_ns(), producer.acked - acked_before
    producer.stop()
    verdict, produced, _ = await bench.finish()
    outcome = _outcome(bench, verdict, produced)
    requests = {name: count - begin[name] for name, count in end.items() if count > begin[name]}
    took_s, size = (end_ns - begin_ns) / 1e9, acked * shape.record_bytes
    puts = sum(count for name, count in requests.items() if s3_prices.is_put(name))
    outcome.figures |= {
        "counted_s": round(took_s, 2),
        "counted_mb_per_s": round(size / took_s / 1e6, 3),
        "puts_per_s": round(puts / took_s, 3),
        "requests_per_gib": round(sum(requests.values()) / size * 2**30, 1),
        "dollars_per_tb": round(s3_prices.request_dollars(requests) / size * 1e12, 4),
        "space_dollars_per_tb_month": STORED_DOLLARS_PER_TB_MONTH,
        "requests": requests,
    }
    return outcome


async def until_uploaded(requests_so_far: Callable[[], Mapping[str, int]], patience_s: float) -> Counter[str]:
    """Wait until objects were put, and then none for QUIET_S, or until UNBROKEN_S after the first; the requests so far.

    Where nodes upload so much that their uploads overlap, there is no pause, and the part of an upload that is counted
    in vain is small beside the many that are counted whole. Raises CannotRunError if none ends within `patience_s`.
    """
    begin_s = time.monotonic()
    first_s = last_s = math.inf  # when the first and the last new object were seen
    requests = Counter(requests_so_far())
    while (now_s := time.monotonic()) - last_s < QUIET_S and now_s - first_s < UNBROKEN_S:
        if now_s - begin_s > patience_s:
            raise CannotRunError(f"no upload ended within {patience_s:g} s: requests={dict(requests)}")
        await asyncio.sleep(0.1)
        before, requests = requests, Counter(requests_so_far())
        if requests["PutObject"] != before["PutObject"]:
            last_s = time.monotonic()
            first_s = min(first_s, last_s)
    return requests


async def examine(bench: Bench) -> Outcome:
    """Measure a part of the system by itself."""
    async with bench.watching():
        figures = await bench.system.examine(bench.shape)
    return Outcome(Verdict(), figures=dict(figures), usage=bench.watch.used())


def backlog_records(shape: Shape) -> int:
    return shape.backlog_mb * 1_000_000 // shape.record_bytes


async def write_backlog(bench: Bench, number: int, records: int, *, crash: bool = False) -> None:
    """Append `records` records at full speed, in application batches if the system supports them. crash: the producer
    ends without closing its logs."""
    shape = bench.shape
    if records < 1:
        return
    batch = 1 if bench.system.lacks("batch") else max(1, 64 * 1024 // shape.record_bytes)
    window = max(64 * batch, 2048, bench.system.backlog_bytes // shape.record_bytes)
    changes: dict[str, Any] = {"mode": "window", "batch_records": batch, "window": window}
    if crash:
        changes["options"] = {**bench.options, "crash": "true"}
    producer = await bench.producer(number, seconds=3600.0, warmup_s=0.0, records=records, **changes)
    bench.go([producer])
    await producer.result(3600.0)


def _outcome(bench: Bench, verdict: Any, produced: list[dict[str, Any]]) -> Outcome:
    """The figures that every load reports."""
    shape = bench.shape
    usage = bench.watch.used()
    timeline: list[int] = []
    for one in produced:
        timeline += [0] * (len(one["timeline"]) - len(timeline))
        for slot, count in enumerate(one["timeline"]):
            timeline[slot] += count
    return Outcome(
        verdict,
        figures={**produced_figures(shape, produced), **cost_figures(shape, usage, produced)},
        histograms={name: joined(one[name] for one in produced).as_json() for name in ("response", "service")},
        usage=usage,
        generators=list(map(_generator, produced)),
        timeline=timeline,
        errors=[text for one in produced for text in one["errors"]],
    )


def _generator(one: Mapping[str, Any]) -> dict[str, Any]:
    """Resource usage of a generator."""
    busy = one["cpu_s"] / one["measured_s"]
    return {"cpu_s": round(one["cpu_s"], 3), "busy": round(busy, 3), "rss_peak": one["rss_peak"]}
