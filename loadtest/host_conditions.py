"""Host conditions: fdatasync latency, CPU used by others, wake-up latency, memory copies. Bad ones void a round.

CPU taken by other virtual machines shows as steal; that of other processes here as busy time of no process of ours.

Invariants:
- thresholds alone decide; they are stored in the run's JSON and printed in every report.
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

import psutil

from loadtest.histogram import Histogram

PROBE_S = 0.3
_BLOCK = 4096
_COPY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Bounds beyond which a round is void."""

    idle_min: float = 0.85  # share of all CPUs, just before a turn, before the system starts
    steal_max: float = 0.05  # share of all CPUs, before a turn and while it runs
    foreign_max: float = 0.10  # share of all CPUs, used during a turn by processes of neither system nor load test
    fdatasync_p99_max_ms: float = 5.0
    wake_p99_max_ms: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConditions:
    """One measurement. Shares are of all CPUs together."""

    idle: float
    steal: float
    fdatasync_p50_ms: float
    fdatasync_p99_ms: float
    wake_p50_ms: float
    wake_p99_ms: float
    memcpy_gb_per_s: float
    load_average: float

    def faults(self, bounds: Thresholds) -> list[str]:
        """The exceeded thresholds; empty if conditions are good."""
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
    """Seconds of all CPUs since the machine started."""

    total: float
    idle: float
    steal: float

    def since(self, before: CpuTimes) -> tuple[float, float]:
        """Shares of idle and steal since `before`."""
        total = max(1e-9, self.total - before.total)
        idle, steal = self.idle - before.idle, self.steal - before.steal
        return min(1.0, idle / total), min(1.0, steal / total)  # rounding may give a little over 1

    def busy_since(self, before: CpuTimes) -> float:
        """CPU seconds used on this machine, without steal."""
        return (self.total - self.idle - self.steal) - (before.total - before.idle - before.steal)


def cpu_times() -> CpuTimes:
    """The present times. Idle includes waiting for a disk."""
    now = psutil.cpu_times()
    guests = now.guest + now.guest_nice  # user and nice include them
    return CpuTimes(total=sum(now) - guests, idle=now.idle + now.iowait, steal=now.steal)


async def look(directory: Path) -> HostConditions:
    """Measure for about a second. directory: on the disk that the system will use."""
    before = cpu_times()
    await asyncio.sleep(PROBE_S)
    idle, steal = cpu_times().since(before)
    disk = await asyncio.to_thread(probe_disk, directory)
    wake = await asyncio.to_thread(probe_wake)
    copy = await asyncio.to_thread(probe_copy)
    return HostConditions(
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
    """fdatasync after overwriting 4 KiB of a file, repeated for `seconds`."""
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
    """How much too late a sleep of one millisecond ends."""
    histogram = Histogram()
    end_s = time.monotonic() + seconds
    while (begin_s := time.monotonic()) < end_s:
        time.sleep(0.001)
        histogram.record((time.monotonic() - begin_s - 0.001) * 1e6)
    return histogram


def probe_copy(times: int = 5) -> float:
    """GB/s of copying memory: the median of `times` copies."""
    source = bytearray(_COPY_BYTES)
    speeds = []
    for _ in range(times):
        begin_s = time.perf_counter()
        bytes(source)
        speeds.append(_COPY_BYTES / (time.perf_counter() - begin_s) / 1e9)
    return statistics.median(speeds)


@dataclass(slots=True)
class Turn:
    """Conditions before and during a turn."""

    before: HostConditions
    steal: float = 0.0
    foreign: float = 0.0  # CPU used by processes that are not ours, as a share of all CPUs
    faults: list[str] = field(default_factory=list)

    def judge(self, bounds: Thresholds) -> None:
        """Set `faults` to the exceeded thresholds."""
        self.faults = self.before.faults(bounds)
        if self.steal > bounds.steal_max:
            self.faults.append(f"steal during the turn {self.steal:.0%} > {bounds.steal_max:.0%}")
        if self.foreign > bounds.foreign_max:
            self.faults.append(f"CPU of others during the turn {self.foreign:.0%} > {bounds.foreign_max:.0%}")

    def as_json(self) -> dict[str, Any]:
        shares = {"steal": round(self.steal, 4), "foreign": round(self.foreign, 4)}
        return {"before": self.before.as_json(), **shares, "faults": self.faults}


def thresholds(changes: Mapping[str, float]) -> Thresholds:
    """The defaults with `changes`. Raises ValueError."""
    try:
        return Thresholds(**{key: float(value) for key, value in changes.items()})
    except TypeError as error:
        raise ValueError(f"no such threshold of host conditions: {', '.join(changes)}") from error
