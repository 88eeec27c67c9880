"""What the machine was like: fdatasync, CPU taken by others, wake-up latency, memory copies. Bad weather voids a round.

The law of this file: a threshold decides, never an opinion; thresholds stand in the run's JSON and in every report.
What a virtual machine's neighbours take shows as steal; what other processes here take, as busy time that is not ours.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.histogram import Histogram

PROBE_S = 0.3
_BLOCK = 4096
_COPY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Beyond these a round is void."""

    idle_min: float = 0.85  # of all CPUs, just before a turn, while nothing of ours runs
    steal_max: float = 0.05  # of all CPUs, before a turn and while it runs
    foreign_max: float = 0.10  # of all CPUs, taken by processes that are not ours while a turn runs
    fdatasync_p99_max_ms: float = 5.0
    wake_p99_max_ms: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """One look. Shares are of all CPUs together."""

    idle: float
    steal: float
    fdatasync_p50_ms: float
    fdatasync_p99_ms: float
    wake_p50_ms: float
    wake_p99_ms: float
    memcpy_gb_per_s: float
    load_average: float

    def faults(self, bounds: Thresholds) -> list[str]:
        """Why this is bad weather; nothing if it is good."""
        found = []
        if self.idle < bounds.idle_min:
            found.append(f"idle {self.idle:.0%} < {bounds.idle_min:.0%}")
        if self.steal > bounds.steal_max:
            found.append(f"steal {self.steal:.0%} > {bounds.steal_max:.0%}")
        if self.fdatasync_p99_ms > bounds.fdatasync_p99_max_ms:
            found.append(f"fdatasync p99 {self.fdatasync_p99_ms:.2f} ms > {bounds.fdatasync_p99_max_ms:g} ms")
        if self.wake_p99_ms > bounds.wake_p99_max_ms:
            found.append(f"wake-up p99 {self.wake_p99_ms:.2f} ms > {bounds.wake_p99_max_ms:g} ms")
        return found

    def as_json(self) -> dict[str, float]:
        return {key: round(value, 4) for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """/proc/stat's first line, in seconds of all CPUs."""

    total: float
    idle: float
    steal: float

    def since(self, before: CpuTimes) -> tuple[float, float]:
        """Shares of idle and steal between the two."""
        total = max(1e-9, self.total - before.total)
        idle, steal = self.idle - before.idle, self.steal - before.steal
        return min(1.0, idle / total), min(1.0, steal / total)  # sums of fractions: not quite one where all is one

    def busy_since(self, before: CpuTimes) -> float:
        """CPU seconds that somebody used here, steal left out."""
        return (self.total - self.idle - self.steal) - (before.total - before.idle - before.steal)


def cpu_times() -> CpuTimes:
    """Now. Idle counts waiting for a disk."""
    ticks = os.sysconf("SC_CLK_TCK")
    numbers = [int(word) / ticks for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return CpuTimes(total=sum(numbers), idle=numbers[3] + numbers[4], steal=numbers[7])


async def look(directory: Path) -> Weather:
    """About a second. The disk is looked at in `directory`, where the systems' data will lie."""
    before = cpu_times()
    await asyncio.sleep(PROBE_S)
    idle, steal = cpu_times().since(before)
    disk = await asyncio.to_thread(probe_disk, directory)
    wake = await asyncio.to_thread(probe_wake)
    copy = await asyncio.to_thread(probe_copy)
    return Weather(
        idle=idle,
        steal=steal,
        fdatasync_p50_ms=disk.percentile(50) / 1000,
        fdatasync_p99_ms=disk.percentile(99) / 1000,
        wake_p50_ms=wake.percentile(50) / 1000,
        wake_p99_ms=wake.percentile(99) / 1000,
        memcpy_gb_per_s=copy,
        load_average=os.getloadavg()[0],
    )


def probe_disk(directory: Path, seconds: float = PROBE_S) -> Histogram:
    """fdatasync of 4 KiB written over zeroes, as often as goes."""
    histogram = Histogram()
    with tempfile.TemporaryFile(dir=directory) as file:
        number = file.fileno()
        os.pwrite(number, bytes(256 * _BLOCK), 0)
        os.fsync(number)
        block = os.urandom(_BLOCK)
        end_s = time.monotonic() + seconds
        at = 0
        while time.monotonic() < end_s:
            os.pwrite(number, block, at % 256 * _BLOCK)
            begin_s = time.perf_counter()
            os.fdatasync(number)
            histogram.record((time.perf_counter() - begin_s) * 1e6)
            at += 1
    return histogram


def probe_wake(seconds: float = PROBE_S) -> Histogram:
    """How much later than asked for a sleep of a millisecond ends."""
    histogram = Histogram()
    end_s = time.monotonic() + seconds
    while (begin_s := time.monotonic()) < end_s:
        time.sleep(0.001)
        histogram.record((time.monotonic() - begin_s - 0.001) * 1e6)
    return histogram


def probe_copy(times: int = 5) -> float:
    """GB/s of copying memory, the middle one of some."""
    source = bytearray(_COPY_BYTES)
    speeds = []
    for _ in range(times):
        begin_s = time.perf_counter()
        bytes(source)
        speeds.append(_COPY_BYTES / (time.perf_counter() - begin_s) / 1e9)
    return statistics.median(speeds)


@dataclass(slots=True)
class Turn:
    """The weather before a system's turn and what others took while it ran."""

    before: Weather
    steal: float = 0.0
    foreign: float = 0.0  # CPU that was neither idle nor ours, as a share of all
    faults: list[str] = field(default_factory=list)

    def judge(self, bounds: Thresholds) -> None:
        """Say what was wrong with it."""
        self.faults = self.before.faults(bounds)
        if self.steal > bounds.steal_max:
            self.faults.append(f"steal during the turn {self.steal:.0%} > {bounds.steal_max:.0%}")
        if self.foreign > bounds.foreign_max:
            self.faults.append(f"CPU of others during the turn {self.foreign:.0%} > {bounds.foreign_max:.0%}")

    def as_json(self) -> dict[str, Any]:
        shares = {"steal": round(self.steal, 4), "foreign": round(self.foreign, 4)}
        return {"before": self.before.as_json(), **shares, "faults": self.faults}


def thresholds(changes: Mapping[str, float]) -> Thresholds:
    """With some of them changed. Raises ValueError."""
    try:
        return Thresholds(**{key: float(value) for key, value in changes.items()})
    except TypeError as error:
        raise ValueError(f"no such threshold of the weather: {', '.join(changes)}") from error
