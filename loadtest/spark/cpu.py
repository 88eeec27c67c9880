"""CPU seconds of this process and all its descendants, by role; from /proc.

Children that have ended count with the parent that waited for them. Only the CPU of a process whose parent ended first
is lost between two samples.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.processes import _TICKS


def by_role(roots: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """roots: processes with their roles, which include their descendants. Our other descendants: `jvm`, `python`."""
    seen = {pid: told for pid in _pids() if (told := _look(pid)) is not None}
    below: dict[int, list[int]] = {}
    for pid, (parent, _, _) in seen.items():
        below.setdefault(parent, []).append(pid)
    known = {pid: role for role, pids in roots.items() for pid in pids}
    used: dict[str, float] = {}
    todo = [(os.getpid(), "")]
    while todo:
        pid, role = todo.pop()
        if pid not in seen:
            continue
        _, name, cpu_s = seen[pid]
        role = known.get(pid, role)
        mine = role or ("jvm" if name == "java" else "python")
        used[mine] = used.get(mine, 0.0) + cpu_s
        todo += [(child, role) for child in below.get(pid, ())]
    return used


def since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Usage from `before` to `now`."""
    return {role: round(max(0.0, now[role] - before.get(role, 0.0)), 2) for role in now}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _look(pid: int) -> tuple[int, str, float] | None:
    """Parent, name, CPU seconds with those of ended children; without them for a JVM, whose children are Python."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    words, name = tail.split(), head.partition("(")[2]
    ticks = words[11:13] if name == "java" else words[11:15]
    return int(words[1]), name, sum(map(int, ticks)) / _TICKS
