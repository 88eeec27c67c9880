"""How long a peer may be silent before that is evidence against it: a failure detector that adapts to the machine.

On a machine with time to spare answers take a millisecond, and silence of a fraction of a second means something. Where
processes wait for a CPU they take a hundred times as long, and a fixed limit has every process suspect every other.

Invariants:
- the limit is never below the floor nor above the ceiling;
- one answer that took long, of a peer that was frozen once, does not change the limit; two do.

Source: the accrual failure detector (Hayashibara et al.): judge silence by what answers took so far.
"""

from __future__ import annotations

from collections import deque

SAMPLES = 16
FACTOR = 3.0


class SilenceLimit:
    """The limit for one peer, from what its latest answers took."""

    __slots__ = ("_ceiling_s", "_floor_s", "_took_s")

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        self._floor_s = floor_s
        self._ceiling_s = max(floor_s, ceiling_s)
        self._took_s: deque[float] = deque((0.0, 0.0), maxlen=SAMPLES)

    def answered(self, took_s: float) -> None:
        """An answer came after so long, in time or late."""
        self._took_s.append(took_s)

    @property
    def limit_s(self) -> float:
        usual_s = sorted(self._took_s)[-2]
        return min(max(self._floor_s, FACTOR * usual_s), self._ceiling_s)
