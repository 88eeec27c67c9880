"""CPU seconds of this process and all its descendants, by role.

Children that have ended count with the parent that waited for them. Only the CPU of a process whose parent ended first
is lost between two samples.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

import psutil


def by_role(roots: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """roots: processes with their roles, which include their descendants. Our other descendants: `jvm`, `python`."""
    seen = {process.pid: process.info for process in psutil.process_iter(["ppid", "name", "cpu_times"])}
    below: dict[int, list[int]] = defaultdict(list)
    for pid, info in seen.items():
        below[info["ppid"]].append(pid)
    known = {pid: role for role, pids in roots.items() for pid in pids}
    used: dict[str, float] = defaultdict(float)
    todo = [(os.getpid(), "")]
    while todo:
        pid, role = todo.pop()
        if pid not in seen or seen[pid]["cpu_times"] is None:
            continue
        role, is_jvm = known.get(pid, role), seen[pid]["name"] == "java"
        times = seen[pid]["cpu_times"]
        ended_s = 0.0 if is_jvm else times.children_user + times.children_system  # a JVM's children are Python
        used[role or ("jvm" if is_jvm else "python")] += times.user + times.system + ended_s
        todo += [(child, role) for child in below[pid]]
    return used


def since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Usage from `before` to `now`."""
    return {role: round(max(0.0, now[role] - before.get(role, 0.0)), 2) for role in now}
