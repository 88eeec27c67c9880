"""Encodes the ids of a ledger's entries on one bookie: AvailabilityOfEntriesOfLedger, the answer to a list of entries.

    version i32 (0) | groups i32 | 56 zero bytes | groups x (first i64, last i64, size i32, period i32)

A group is `size` consecutive ids from each of first, first + period, ..., last. A single run has last = first and
period 0.

Source: BookKeeper, AvailabilityOfEntriesOfLedger.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_SIZE_MAX = (1 << 31) - 1


def encode_runs(runs: Iterable[tuple[int, int]]) -> bytes:
    """runs: (first, last) of consecutive ids, in order. Runs of equal size at equal distances, as striping makes them,
    become one group, so that the answer stays short."""
    groups: list[tuple[int, int, int, int]] = []
    for run_first, run_last in runs:
        while run_first <= run_last:
            size = min(run_last - run_first + 1, _SIZE_MAX)
            if not (groups and _joins(groups, run_first, size)):
                groups.append((run_first, run_first, size, 0))
            run_first += size
    return _HEADER.pack(0, len(groups)) + b"".join(_GROUP.pack(*group) for group in groups)


def _joins(groups: list[tuple[int, int, int, int]], first: int, size: int) -> bool:
    """Extend the last group by this run, if it fits."""
    start, last, group_size, period = groups[-1]
    distance = first - last
    if size != group_size or distance > _SIZE_MAX or (period and distance != period):
        return False
    groups[-1] = (start, first, size, distance)
    return True
