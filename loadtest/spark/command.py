"""Measure reading in Spark (W18): fill dlog, Kafka and Parquet with the same records and read them in turns.

A region in Kafka is replayed, too, beside Spark's Kafka source over its topic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlog.cli.discovery import read_run_file
from dlog.errors import DLogError
from loadtest import host_conditions, systems
from loadtest.processes import machine
from loadtest.runner import commit
from loadtest.spark import cpu, jars, jobs, regions
from loadtest.spark.filling import RECORD_BYTES, fill
from loadtest.spark.measuring import SCANNED, SMALL, Bench, Figure, Where, WrongRecordsError
from loadtest.systems.base import CannotRunError, System

SMALL_RECORDS = 45
SOURCES = ("dlog", "kafka", "parquet", "region")
#: one broker suffices for reading
KAFKA = {"brokers": "1", "replicas": "1", "in_sync": "1", "heap_mib": "1024"}
TUNED = "all columns, large fetches"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table. goal: lower (MB/s) or upper (ms) bound; 0: none. before: preparation."""

    what: str
    source: str
    unit: str
    run: Callable[[Bench], Figure]
    goal: float = 0.0
    before: Callable[[Bench], None] = lambda _: None

    @property
    def name(self) -> str:
        return f"{self.what}, {self.source}"

    def is_met(self, value: float) -> bool:
        return value <= self.goal if self.unit == "ms" else value >= self.goal


CELLS = (
    Cell("all columns", "dlog", "MB/s", lambda bench: bench.scan(bench.dlog()), 400),
    Cell("all columns", "kafka", "MB/s", lambda bench: bench.scan(bench.kafka())),
    Cell(TUNED, "kafka", "MB/s", lambda bench: bench.scan(bench.kafka(tuned=True))),
    Cell("all columns", "parquet", "MB/s", lambda bench: bench.scan(bench.parquet())),
    Cell("one column", "dlog", "MB/s", lambda bench: bench.scan(bench.dlog("value")), 600),
    Cell("one column", "kafka", "MB/s", lambda bench: bench.scan(bench.kafka("value"))),
    Cell("one column", "parquet", "MB/s", lambda bench: bench.scan(bench.parquet("value"))),
    Cell("micro-batch", "dlog", "ms", lambda bench: bench.micro_batches("dlog"), 250),
    Cell("micro-batch", "kafka", "ms", lambda bench: bench.micro_batches("kafka")),
    Cell("audit", "dlog", "MB/s", jobs.audit, 800),
    Cell("audit of every copy", "dlog", "MB/s", jobs.audit_all, 800),
    Cell("offload", "dlog", "MB/s", jobs.offload, 450, jobs.write_anew),
    Cell("replay, counted", "region", "MB/s", regions.replay_counted),
    Cell("its topic, counted", "region", "MB/s", regions.source_counted),
    Cell("replay to Parquet", "region", "MB/s", regions.replay_to_parquet),
    Cell("its topic to Parquet", "region", "MB/s", regions.source_to_parquet),
)
#: goals for ratios of MB/s: name, cell, cell of Spark's Kafka source, bound
RATIOS = (
    ("all columns, dlog / kafka", "all columns, dlog", "all columns, kafka", 1.5),
    ("all columns, dlog / kafka with large fetches", "all columns, dlog", f"{TUNED}, kafka", 1.5),
    ("replay, counted, region / its topic", "replay, counted, region", "its topic, counted, region", 0.5),
    ("replay to Parquet, region / its topic", "replay to Parquet, region", "its topic to Parquet, region", 0.5),
)


@dataclass(slots=True)
class CellResult:
    """A cell's figures, one per round. why_not: why there are none."""

    cell: Cell
    figures: list[Figure] = field(default_factory=list)
    cpu_s: list[dict[str, float]] = field(default_factory=list)
    why_not: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(figure.value for figure in self.figures) if self.figures else None

    def as_json(self) -> dict[str, Any]:
        return {
            "cell": self.cell.what,
            "source": self.cell.source,
            "unit": self.cell.unit,
            "goal": self.cell.goal or None,
            "median": self.median,
            "values": [round(figure.value, 2) for figure in self.figures],
            "records": self.figures[0].records if self.figures else 0,
            "more": [dict(figure.more) for figure in self.figures if figure.more],
            "cpu_s": self.cpu_s,
            "not_run": self.why_not or None,
        }


def main(arguments: Sequence[str]) -> int:
    """Exit 0: every source returned the right records; 1: one did not, or something failed; 2: wrong usage."""
    given = parser().parse_args(arguments)
    wanted = set(given.only.split(",") if given.only else SOURCES)
    if given.gb <= 0 or given.rounds < 1 or given.warm_up < 0 or not wanted <= set(SOURCES):
        rule = "--gb must be above 0, --rounds at least 1, --warm-up at least 0, --only a list of "
        print("loadtest: " + rule + ", ".join(SOURCES), file=sys.stderr)
        return 2
    if "parquet" in wanted:
        wanted.add("dlog")  # it is written from what dlog has
    records = max(SMALL_RECORDS, round(given.gb * 1e9 / RECORD_BYTES))
    run = Run(records, given.rounds, given.warm_up, given.voids, given.foreign, wanted)
    try:
        asyncio.run(run.go())
    except (CannotRunError, DLogError, OSError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    if given.out is not None:
        given.out.write_text(json.dumps(run.as_json(), indent=1) + "\n")
    print(run.as_text())
    return 0 if run.is_green else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m loadtest spark", description=(__doc__ or "").partition("\n")[0])
    made.add_argument(
        "--gb", type=float, default=1.0, metavar="N", help="GB of payload, in 200-byte records; default: 1"
    )
    made.add_argument("--rounds", type=int, default=5, metavar="R", help="default: 5")
    made.add_argument("--warm-up", type=int, default=1, metavar="N", help="uncounted rounds before; default: 1")
    made.add_argument(
        "--voids",
        type=int,
        default=3,
        metavar="N",
        help="repeat at most N rounds that bad host conditions made void; default: 3",
    )
    made.add_argument(
        "--only",
        default="",
        metavar="NAME[,NAME...]",
        help=f"read only these of {', '.join(SOURCES)}; parquet needs dlog, and adds it",
    )
    made.add_argument(
        "--foreign",
        type=float,
        default=0.10,
        metavar="SHARE",
        help="share of CPU used by other processes above which a round is void; default: 0.1",
    )
    made.add_argument("--out", type=Path, metavar="FILE", help="save all figures as JSON")
    return made


class Run:
    """One run of all cells."""

    def __init__(self, records: int, rounds: int, warm_up: int, voids: int, foreign: float, wanted: set[str]) -> None:
        self._records = records
        self._region_bytes = records * RECORD_BYTES
        self._rounds = rounds
        self._warm_up = warm_up
        self._voids = voids
        self._wanted = wanted
        self._bounds = host_conditions.Thresholds(foreign_max=foreign)
        self._results = [CellResult(cell) for cell in CELLS]
        self._systems: dict[str, System] = {}
        self._versions: dict[str, str] = {}
        self._turns: list[dict[str, Any]] = []
        self._wrong = False

    @property
    def is_green(self) -> bool:
        return not self._wrong

    async def go(self) -> None:
        """Raises CannotRunError, OSError if nothing could be measured."""
        async with AsyncExitStack() as stack:
            room = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="loadtest-", ignore_cleanup_errors=True))
            )
            self._versions = {"spark": jars.spark_version()}
            source_jars = await self._start(room, stack)
            running = read_run_file(room / "dlog" / "cluster")
            if running is None and "dlog" in self._wanted:
                raise CannotRunError("the `dlog up` under test has ended")
            kafka = self._systems.get("kafka")
            where = Where(
                connect=running.connect if running else "",
                zookeeper=running.zookeeper if running else "",
                namespace=running.namespace if running else "",
                bootstrap=kafka.address()["bootstrap"] if kafka else "",
                jars=source_jars,
                room=room,
                records=self._records,
                region_bytes=self._region_bytes,
            )
            _print_progress("starting Spark")
            bench = await asyncio.to_thread(Bench, where)
            stack.push_async_callback(asyncio.to_thread, bench.close)
            await self._prepare(bench)
            await self._all_rounds(bench, room)

    # ---- sources ----------------------------------------------------------------------------------------------------

    async def _start(self, room: Path, stack: AsyncExitStack) -> tuple[Path, ...]:
        """Start and fill the systems; returns the jars of Spark's Kafka source."""
        for source in set(SOURCES) - self._wanted:
            self._leave_out(source, "not in --only")
        if "dlog" in self._wanted:
            await self._start_one("dlog", {}, room, stack)
        if not {"kafka", "region"} & self._wanted:
            return ()
        try:
            version, found = jars.found()
            await self._start_one("kafka", KAFKA, room, stack)
            if "region" in self._wanted:
                _print_progress(f"region: writing {self._region_bytes:,} bytes")
                await regions.fill_region(self._systems["kafka"].address()["bootstrap"], self._region_bytes)
        except CannotRunError as error:
            self._leave_out("kafka", str(error))
            self._leave_out("region", str(error))
            return ()
        self._versions["kafka source"] = version
        return tuple(found)

    async def _start_one(self, name: str, options: Mapping[str, str], room: Path, stack: AsyncExitStack) -> None:
        """Start a system; fill it, if it is read."""
        variant = systems.find(f"{name}-default" if name == "kafka" else name)
        system = variant.make(name)
        directory = room / name
        directory.mkdir()
        stack.push_async_callback(system.stop)
        _print_progress(f"starting {name}")
        await system.start(directory, {**variant.preset, **options})
        if name in self._wanted:
            _print_progress(f"{name}: writing {self._records:,} records of {RECORD_BYTES} bytes")
            await system.create_all([SCANNED, SMALL])
            await fill(system, SCANNED, self._records, directory)
            await fill(system, SMALL, SMALL_RECORDS, directory, one_by_one=True)
        self._versions |= system.versions()
        self._systems[name] = system

    async def _prepare(self, bench: Bench) -> None:
        """Write Parquet; read and verify each source once, which also warms the page cache and the JVM."""
        if "parquet" in self._wanted:
            await asyncio.to_thread(bench.write_parquet)
        for name, source in (("dlog", bench.dlog), ("kafka", bench.kafka), ("parquet", bench.parquet)):
            if any(result.cell.source == name and not result.why_not for result in self._results):
                _print_progress(f"{name}: verifying every record")
                try:
                    await asyncio.to_thread(bench.verify, name, source)
                except WrongRecordsError as error:
                    self._wrong = True
                    self._leave_out(name, str(error))

    def _leave_out(self, source: str, why: str) -> None:
        for result in self._results:
            if result.cell.source == source:
                result.why_not = result.why_not or why

    # ---- rounds -----------------------------------------------------------------------------------------------------

    async def _all_rounds(self, bench: Bench, room: Path) -> None:
        for number in range(self._warm_up):
            _print_progress("warm-up round")
            await self._round(bench, room, number, counts=False)
        good = voids = 0
        while good < self._rounds:
            faults = await self._round(bench, room, good + voids, counts=True)
            if faults and voids < self._voids:
                voids += 1
                _print_progress(f"round {good + 1}: void, repeated; host conditions: {'; '.join(faults)}")
                for result in self._results:
                    del result.figures[good:], result.cpu_s[good:]
                continue
            good += 1
            _print_progress(f"round {good}: " + ("; ".join(faults) or "good host conditions"))

    async def _round(self, bench: Bench, room: Path, number: int, *, counts: bool) -> list[str]:
        """Measure each cell; the exceeded thresholds."""
        turn = host_conditions.Turn(await host_conditions.look(room))
        before, used = host_conditions.cpu_times(), self._used()
        shift = number % len(self._results)
        for result in self._results[shift:] + self._results[:shift]:  # no cell is always the first
            if not result.why_not:
                await self._measure(bench, result, counts=counts)
        now = host_conditions.cpu_times()
        mine = sum(cpu.since(self._used(), used).values())
        _, turn.steal = now.since(before)
        turn.foreign = max(0.0, now.busy_since(before) - mine) / max(1e-9, now.total - before.total)
        turn.judge(self._bounds)
        if counts:
            self._turns.append(turn.as_json())
        return turn.faults

    async def _measure(self, bench: Bench, result: CellResult, *, counts: bool) -> None:
        try:
            await asyncio.to_thread(result.cell.before, bench)
            before = self._used()
            figure = await asyncio.to_thread(result.cell.run, bench)
        except WrongRecordsError as error:
            self._wrong = True
            result.why_not, result.figures, result.cpu_s = str(error), [], []
            return
        except (CannotRunError, ImportError) as error:
            result.why_not = str(error)
            return
        except Exception as error:  # noqa: BLE001 - any error of Spark fails this cell only
            self._wrong = True
            result.why_not, result.figures, result.cpu_s = f"{type(error).__name__}: {error}"[:500], [], []
            return
        if counts:
            result.figures.append(figure)
            result.cpu_s.append(cpu.since(self._used(), before))

    def _used(self) -> dict[str, float]:
        return cpu.by_role({role: pids for s in self._systems.values() for role, pids in s.processes().items()})

    # ---- report -----------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": "W18",
            "records": self._records,
            "record_bytes": RECORD_BYTES,
            "rounds": self._rounds,
            "machine": machine(),
            "commit": commit(),
            "versions": self._versions,
            "cells": [result.as_json() for result in self._results],
            "goals": self._goals(),
            "turns": self._turns,
        }

    def _goals(self) -> dict[str, dict[str, Any]]:
        by_name = {result.cell.name: result.median for result in self._results}
        goals: dict[str, dict[str, Any]] = {}
        for result in self._results:
            if result.cell.goal and result.median is not None:
                is_met = result.cell.is_met(result.median)
                goals[result.cell.name] = {"goal": result.cell.goal, "reached": round(result.median, 1), "met": is_met}
        for name, one, other, bound in RATIOS:
            ours, theirs = by_name[one], by_name[other]
            if ours and theirs:
                goals[name] = {"goal": bound, "reached": round(ours / theirs, 2), "met": ours / theirs >= bound}
        return goals

    def as_text(self) -> str:
        sizes = f"{RECORD_BYTES} bytes (region: the same in records of {regions.RECORD_BYTES})"
        head = f"W18: {self._records:,} records of {sizes}, local[2], {self._rounds} rounds; "
        lines = [head + ", ".join(f"{name} {version}" for name, version in self._versions.items())]
        lines.append(f"{'cell':33} {'median':>9} {'least':>8} {'most':>8} unit  CPU-s per round")
        for result in self._results:
            if result.median is None:
                lines.append(f"{result.cell.name:33} not run: {result.why_not}")
                continue
            values = [figure.value for figure in result.figures]
            roles = {role for used in result.cpu_s for role in used}
            middle = {role: statistics.median(used.get(role, 0.0) for used in result.cpu_s) for role in sorted(roles)}
            spent = " ".join(f"{role} {seconds:.2f}" for role, seconds in middle.items() if seconds >= 0.05)
            figures = f"{result.median:9,.0f} {min(values):8,.0f} {max(values):8,.0f}"
            lines.append(f"{result.cell.name:33} {figures} {result.cell.unit:5} {spent}")
        for name, goal in self._goals().items():
            lines.append(
                f"goal {name}: {goal['goal']:g}, reached {goal['reached']:g}: {'met' if goal['met'] else 'NOT MET'}"
            )
        bad = sorted({fault for turn in self._turns for fault in turn["faults"]})
        if bad:
            lines.append("bad host conditions: " + "; ".join(bad))
        return "\n".join(lines)


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
