"""Runs one cell on one system: logs, generators, resource usage, and the check of all histories.

Invariants:
- a cell whose verdict is not green reports no figure;
- the judge checks the history of every producer, of every follower, and of a reader that reads all logs at the end.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.generators import Generator
from loadtest.histogram import Histogram, joined
from loadtest.history import notes
from loadtest.host_conditions import cpu_times
from loadtest.judge import Verdict, judge
from loadtest.processes import Watch
from loadtest.spec import Shape
from loadtest.systems.base import CannotRunError, Flavour, System

LEAD_S = 0.3  # from the order to start until the instant at which generators start
LOOK_S = 0.25
READ_BACK_S = 600.0
STOP_S = 30.0
PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


@dataclass(slots=True)
class Outcome:
    """Result of one cell."""

    verdict: Verdict
    figures: dict[str, Any] = field(default_factory=dict)
    histograms: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    generators: list[dict[str, Any]] = field(default_factory=list)
    timeline: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As JSON; without figures if the verdict is not green."""
        fields: dict[str, Any] = {
            "green": self.verdict.is_green,
            "verdict": self.verdict.as_json(),
            "errors": self.errors,
        }
        if self.verdict.is_green:
            fields |= {
                "figures": self.figures,
                "histograms": self.histograms,
                "usage": self.usage,
                "generators": self.generators,
                "timeline": self.timeline,
            }
        return fields


class Bench:
    """One cell while it runs."""

    def __init__(self, system: System, shape: Shape, room: Path, options: Mapping[str, str], seed: int) -> None:
        self.system = system
        self.shape = shape
        self.logs: list[str] = []
        self.watch = Watch()
        self.producers: list[Generator] = []
        self.readers: list[tuple[Generator, list[Path]]] = []
        self._unjudged: list[Generator] = []  # readers whose histories the judge does not check
        self.room = room
        self.options = {**options, **({"tables": str(shape.tables)} if shape.tables != 1 else {})}
        self._seed = seed
        self._histories: list[Path] = []
        self._stack = AsyncExitStack()
        self.steal = self.foreign = 0.0  # shares of all CPUs during the measured time

    async def close(self) -> None:
        """Stop every generator."""
        await self._stack.aclose()

    async def make_logs(self, count: int) -> None:
        """Create `count` new logs."""
        stem = f"lt-{uuid.uuid4().hex[:8]}"
        self.logs = [f"{stem}-{i}" for i in range(count)]
        await self.system.create_all(self.logs)

    async def producer(self, number: int, **changes: Any) -> Generator:
        """Start a producer. changes: replace values of its job."""
        shape = self.shape
        job = {
            **self._job("produce"),
            "producer": number,
            "mode": shape.mode,
            "window": max(1, shape.window_records // shape.producers),
            "rate": shape.rate / shape.producers,
            "batch_records": shape.batch_records,
            "tasks": max(1, shape.tasks // shape.producers),
            "zipf": shape.zipf,
            **changes,
        }
        generator, path = await self._start(f"producer-{number}", job, wait=True)
        self.producers.append(generator)
        self._histories.append(path)
        return generator

    async def follower(self, number: int, copies: int) -> Generator:
        """Start a process of `copies` readers that follow from the start."""
        job = {**self._job("read"), "start": "start", "follow": True, "copies": copies}
        generator, path = await self._start(f"reader-{number}", job, wait=True)
        paths = [path] if copies == 1 else [path.with_name(f"{path.name}.{i}") for i in range(copies)]
        self.readers.append((generator, paths))
        return generator

    async def reader(self, name: str, *, wait: bool = True, judged: bool = True) -> Generator:
        """Start a reader that reads from the start to the end and stops. judged: it starts after all appends."""
        job = {**self._job("read"), "start": "start", "follow": False, "copies": 1}
        generator, path = await self._start(name, job, wait=wait)
        if judged:
            self.readers.append((generator, [path]))
        else:
            self._unjudged.append(generator)
        return generator

    def _job(self, kind: str) -> dict[str, Any]:
        shape = self.shape
        return {
            "kind": kind,
            "address": self.system.address(),
            "options": self.options,
            "logs": self.logs,
            "record_bytes": shape.record_bytes,
            "seconds": shape.seconds,
            "warmup_s": shape.warmup_s,
            "patience_s": shape.patience_s,
            "seed": self._seed,
        }

    async def _start(self, name: str, job: dict[str, Any], *, wait: bool) -> tuple[Generator, Path]:
        path = self.room / f"{self.logs[0]}.{name}.history"
        job = {**job, "reader": name, "history": str(path)}
        flavour: Flavour = "user" if self.shape.flavour == "user" else "fast"
        command, more = self.system.generator(job, flavour)
        generator = Generator(name)
        self._stack.push_async_callback(generator.end)
        await generator.start(command, {**job, **more}, self.room / f"{self.logs[0]}.{name}.stderr", wait=wait)
        return generator, path

    # ---- while it runs ----------------------------------------------------------------------------------------------

    def processes(self) -> dict[str, Sequence[int]]:
        """Process ids of the system by role, and of the generators."""
        mine = [g.pid for g in (*self.producers, *(reader for reader, _ in self.readers), *self._unjudged)]
        return {**self.system.processes(), "generator": mine}

    def go(self, generators: Sequence[Generator]) -> int:
        """Start the load after LEAD_S; returns that instant."""
        start_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
        for generator in generators:
            generator.go(start_ns)
        return start_ns

    async def measure(self, start_ns: int) -> None:
        """Wait for the end of the measured time; sample resource usage during it."""
        shape = self.shape
        await until_ns(start_ns + int(shape.warmup_s * 1e9))
        self.watch.begin(self.processes())
        before, mine = cpu_times(), time.process_time()
        end_ns = start_ns + int((shape.warmup_s + shape.seconds) * 1e9)
        while time.monotonic_ns() < end_ns:
            await until_ns(min(end_ns, time.monotonic_ns() + int(LOOK_S * 1e9)))
            self.watch.look(self.processes())
        now = cpu_times()
        _, self.steal = now.since(before)
        others_s = now.busy_since(before) - self.watch.cpu_s() - (time.process_time() - mine)
        self.foreign = max(0.0, others_s / max(1e-9, now.total - before.total))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Sample resource usage inside this context."""
        self.watch.begin(self.processes())

        async def look() -> None:
            while True:
                await asyncio.sleep(LOOK_S)
                self.watch.look(self.processes())

        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(look(), name="look")
            try:
                yield
            finally:
                looking.cancel()
                self.watch.look(self.processes())

    # ---- in the end -------------------------------------------------------------------------------------------------

    async def finish(self) -> tuple[Verdict, list[dict[str, Any]], list[dict[str, Any]]]:
        """Read everything back, let followers reach the end, judge; results of producers and of followers."""
        produced = [await g.result(self._result_s) for g in self.producers]
        back = await self.reader("read-back")
        back.go(time.monotonic_ns())
        read_back = await back.result(READ_BACK_S)
        followers = [(g, paths) for g, paths in self.readers if g is not back]
        counts = counts_of(self.readers[-1][1][0], self.logs)
        for generator, _ in followers:
            generator.until(counts)
        followed = []
        for generator, _ in followers:
            try:
                followed.append(await generator.result(self.shape.patience_s))
            except CannotRunError:  # it did not reach the end: the judge counts what it lacks as lost
                generator.stop()
                followed.append(await generator.result(STOP_S))
        verdict = await asyncio.to_thread(
            judge,
            self.logs,
            [notes(path) for path in self._histories],
            [
                (f"{generator.name}.{i}", notes(path))
                for generator, paths in self.readers
                for i, path in enumerate(paths)
            ],
        )
        if not read_back["ended"]:
            verdict.lost += 1
            verdict.examples.append(f"read-back did not reach the end: {read_back['errors']}")
        self._forget()
        return verdict, produced, followed

    @property
    def _result_s(self) -> float:
        return self.shape.warmup_s + self.shape.seconds + self.shape.patience_s + 30

    def _forget(self) -> None:
        """Delete histories, which are large."""
        for path in (*self._histories, *(path for _, paths in self.readers for path in paths)):
            path.unlink(missing_ok=True)


def counts_of(history: Path, logs: Sequence[str]) -> dict[str, int]:
    """Number of records of each log in a reader's history."""
    counts = dict.fromkeys(logs, 0)
    for note in notes(history):
        count = getattr(note, "count", 0 if not hasattr(note, "text") else 1)
        counts[logs[note.log]] += count
    return counts


async def until_ns(instant: int) -> None:
    """Sleep until an instant of CLOCK_MONOTONIC."""
    await asyncio.sleep(max(0.0, (instant - time.monotonic_ns()) / 1e9))


def latencies(histogram: Histogram) -> dict[str, float]:
    """Latencies in ms at the reported percentiles; empty if nothing was recorded."""
    if not histogram.count:
        return {}
    return {name: round(histogram.percentile(percent) / 1000, 3) for name, percent in PERCENTS.items()}


def produced_figures(shape: Shape, produced: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of the measured time."""
    records = sum(float(one["measured"]) / float(one["measured_s"]) for one in produced)
    gaps = [(end - begin) / 1e6 for one in produced for begin, end in one["gaps"]]
    return {
        "records_per_s": round(records, 1),
        "mb_per_s": round(records * shape.record_bytes / 1e6, 3),
        "acked": sum(int(one["acked"]) for one in produced),
        "failed": sum(int(one["failed"]) for one in produced),
        "behind": sum(int(one["behind"]) for one in produced),
        "gap_max_ms": round(max(gaps, default=0.0), 1),
        **{f"{name}_ms": latencies(joined(one[name] for one in produced)) for name in ("response", "service", "delay")},
    }


def cost_figures(
    shape: Shape, usage: Mapping[str, Mapping[str, Any]], produced: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """CPU seconds per GB of payload, and memory, without the generators; CPU also with them."""
    gigabytes = sum(int(one["measured"]) for one in produced) * shape.record_bytes / 1e9
    parts = {role: used for role, used in usage.items() if role != "generator"}
    cpu_s = sum(float(used["cpu_s"]) for used in parts.values())
    mine = float(usage.get("generator", {}).get("cpu_s", 0.0))
    return {
        "cpu_s": round(cpu_s, 3),
        "generator_cpu_s": round(mine, 3),
        "cpu_s_per_gb": round(cpu_s / gigabytes, 2) if gigabytes else None,
        "cpu_s_per_gb_with_generators": round((cpu_s + mine) / gigabytes, 2) if gigabytes else None,
        "rss_bytes": sum(int(used["rss_bytes"]) for used in parts.values()),
        "rss_peak_bytes": sum(int(used["rss_peak_bytes"]) for used in parts.values()),
    }


def lacking(system: System, shape: Shape) -> str | None:
    """Why this system cannot run this cell; None if it can."""
    for feature in shape.needs():
        reason = system.lacks(feature)
        if reason is not None:
            return reason
    return None
