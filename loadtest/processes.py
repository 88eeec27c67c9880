"""Resource usage of processes: CPU seconds, memory, open files; summed by role.

A process that has ended counts with its last sample.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_SCHED = 2  # CPUCLOCK_SCHED (Linux): the CPU time clock of a process


@dataclass(frozen=True, slots=True)
class Usage:
    """One sample of one process."""

    cpu_s: float
    rss_bytes: int
    files: int


def usage(pid: int) -> Usage | None:
    """Sample a process; None if it does not run."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            times = process.cpu_times()
            return Usage(times.user + times.system, process.memory_info().rss, process.num_fds())
    except psutil.Error:
        return None


def cpu_s(pid: int) -> float | None:
    """CPU seconds by the process's clock, exact to 1 us (`usage`: 10 ms); None if it does not run."""
    try:
        return time.clock_gettime((~pid << 3) | _SCHED)
    except OSError:
        return None


class Watch:
    """Resource usage by role, from `begin` to the last `look`."""

    def __init__(self) -> None:
        self._begin: dict[int, Usage] = {}
        self._last: dict[int, Usage] = {}
        self._role: dict[int, str] = {}
        self._rss_peak: dict[str, int] = {}

    def begin(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._begin.clear()
        self._last.clear()
        self._rss_peak.clear()
        self.look(processes)
        self._begin = dict(self._last)

    def look(self, processes: Mapping[str, Sequence[int]]) -> None:
        """Sample. Call regularly: peaks, and the usage of processes that end, come from samples."""
        for role, pids in processes.items():
            rss = 0
            for pid in pids:
                seen = usage(pid)
                if seen is not None:
                    self._role[pid] = role
                    self._last[pid] = seen
                    rss += seen.rss_bytes
            self._rss_peak[role] = max(self._rss_peak.get(role, 0), rss)

    def used(self) -> dict[str, dict[str, Any]]:
        """By role: processes, cpu_s, rss_bytes (last), rss_peak_bytes (of samples), files."""
        found: dict[str, dict[str, Any]] = {}
        for pid, last in self._last.items():
            role = self._role[pid]
            begun = self._begin.get(pid)
            entry = found.setdefault(role, {"processes": 0, "cpu_s": 0.0, "rss_bytes": 0, "files": 0})
            entry["processes"] += 1
            entry["cpu_s"] = round(entry["cpu_s"] + last.cpu_s - (begun.cpu_s if begun else 0.0), 3)
            entry["rss_bytes"] += last.rss_bytes
            entry["files"] += last.files
        for role, entry in found.items():
            entry["rss_peak_bytes"] = self._rss_peak[role]
        return found

    def cpu_s(self) -> float:
        """Sum over roles."""
        return float(sum(entry["cpu_s"] for entry in self.used().values()))


def machine() -> dict[str, Any]:
    """The host: CPUs, memory, kernel."""
    info = os.uname()
    lines = Path("/proc/cpuinfo").read_text().splitlines()  # psutil does not report the model
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), info.machine)
    memory = psutil.virtual_memory().total
    return {"cpus": os.cpu_count(), "cpu": model, "memory_bytes": memory, "kernel": info.release}
