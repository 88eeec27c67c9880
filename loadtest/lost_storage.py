"""Script of W35: a bookie full of ledgers is lost for good, and its copies are made again, while a writer goes on.

    fill closed ledgers -> restart the bookie in order (a checkpoint) -> copy its entry logs -> a writer alone ->
    the same load again: kill the bookie and delete its directory -> repaired -> every copy of every entry is read

Invariants:
- the rate counts the bytes that ledger metadata says the bookie held, from the first mark in ZooKeeper to the end;
- the limit beside it is a copy of as many bytes of the bookie's entry logs by read, write and fsync in the same turn;
- figures are reported only if the checker found every record of the writer, and every ledger has all its copies.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from dlog.model.ids import BookieId
from dlog.options import MiB
from loadtest.bench import Bench, Outcome, cost_figures, latencies, produced_figures
from loadtest.histogram import joined
from loadtest.systems.base import CannotRunError
from loadtest.systems.lost_copies import LedgerCluster

LOAD_S = 3600.0  # the load lasts until it is stopped
WARMUP_S = 0.5  # of the load during which the bookie is lost
REPAIR_S = 1800.0  # a run of Java's AutoRecovery with 2 GB was not done after 600 s
LEAST_LOST_MB = 0.5  # so that a cluster that lost nothing is not measured
ENTRY_LOGS = ("entries-*", "*.log")  # of dlog's bookies, of Java's


async def lost_bookie(bench: Bench) -> Outcome:
    """Lose a bookie; the rate at which its copies are made again, beside a copy of files and a writer."""
    shape, system = bench.shape, bench.system
    bookie = system.bookie()
    name = BookieId(bookie.address)
    async with LedgerCluster.connect(system.zookeeper()) as cluster:
        await cluster.pause_repair()
        entries = max(1, shape.backlog_mb * 1_000_000 * _bookies(bench) // 3 // shape.ledgers // shape.record_bytes)
        filled = await cluster.fill(shape.ledgers, entries, shape.record_bytes)
        await system.restart(bookie.name)
        await cluster.resume_repair()
        lost_bytes = await cluster.bytes_on(name)
        if lost_bytes < LEAST_LOST_MB * 1e6:
            raise CannotRunError(f"the bookie to be lost holds next to nothing: bookie={name} bytes={lost_bytes}")
        copied_s = await asyncio.to_thread(copy_files, entry_logs(bookie.directory), bench.room, lost_bytes)

        await bench.make_logs(shape.logs)
        alone = await bench.producer(0)
        start_ns = bench.go([alone])
        await bench.measure(start_ns)
        undisturbed = await alone.result(shape.warmup_s + shape.seconds + shape.patience_s)
        beside = await bench.producer(1, seconds=LOAD_S, warmup_s=WARMUP_S)
        start_ns = bench.go([beside])
        await beside.acknowledged(shape.rate, start_ns, shape.patience_s)
        async with bench.watching():
            lost_s = time.monotonic()
            bookie.kill()
            await asyncio.to_thread(shutil.rmtree, bookie.directory)
            await cluster.forget_registration(name)
            repaired = await cluster.wait_repaired(name, lost_s, REPAIR_S)
        beside.stop()
        verdict, produced, _ = await bench.finish()
        verified = await cluster.verify()
        if verified.entries < len(filled) * entries:
            raise CannotRunError(f"{verified.entries} entries were verified, {len(filled) * entries} written")
    disturbed, usage = produced[1], bench.watch.used()
    repair_s = repaired.ended_s - repaired.began_s
    p99 = [joined([one["response"]]).percentile(99) / 1000 for one in (undisturbed, disturbed)]
    repair_mb_per_s, copy_mb_per_s = (lost_bytes / 1e6 / seconds for seconds in (repair_s, copied_s))
    figures = {
        **produced_figures(shape, [disturbed]),
        **cost_figures(shape, usage, [disturbed]),
        "lost_mb": round(lost_bytes / 1e6, 3),
        "ledgers": verified.ledgers,
        "verified_entries": verified.entries,
        "found_s": round(repaired.began_s - lost_s, 3),
        "repair_s": round(repair_s, 3),
        "repair_mb_per_s": round(repair_mb_per_s, 3),
        "copy_mb_per_s": round(copy_mb_per_s, 3),
        "repair_over_copy": round(repair_mb_per_s / copy_mb_per_s, 4),
        "undisturbed_ms": latencies(joined([undisturbed["response"]])),
        "p99_disturbed_over_undisturbed": round(p99[1] / p99[0], 3) if p99[0] else None,
    }
    return Outcome(
        verdict,
        figures=figures,
        histograms={"response": joined([disturbed["response"]]).as_json()},
        usage=usage,
        generators=[{"cpu_s": round(disturbed["cpu_s"], 3), "rss_peak": disturbed["rss_peak"]}],
        timeline=disturbed["timeline"],
        errors=[*undisturbed["errors"], *disturbed["errors"]],
    )


def _bookies(bench: Bench) -> int:
    """Bookies that entries are spread over, so that each holds three of so many parts."""
    return len(bench.system.processes()["bookie"])


def entry_logs(directory: Path) -> list[Path]:
    """The entry logs of a bookie of either kind, the largest first."""
    found = {path for pattern in ENTRY_LOGS for path in directory.glob(f"**/ledgers/**/{pattern}") if path.is_file()}
    return sorted(found, key=lambda path: path.stat().st_size, reverse=True)


def copy_files(files: Sequence[Path], room: Path, size: int) -> float:
    """Copy the first `size` bytes of these files, one after the other, by read, write and fsync; the seconds taken.
    Raises CannotRunError if they are smaller."""
    left, begin_s = size, time.monotonic()
    copies = [room / f"copy-{number}" for number in range(len(files))]
    try:
        for path, copy in zip(files, copies, strict=True):
            if not left:
                break
            with path.open("rb", buffering=0) as source, copy.open("wb") as target:
                while left and (data := source.read(min(left, MiB))):
                    target.write(data)
                    left -= len(data)
                target.flush()
                os.fsync(target.fileno())
        took_s = time.monotonic() - begin_s
    finally:
        for copy in copies:
            copy.unlink(missing_ok=True)
    if left:
        raise CannotRunError(f"the entry logs of the bookie lack {left} of the {size} bytes that it holds")
    return took_s
