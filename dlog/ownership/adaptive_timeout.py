"""Adaptive failure detector: the time without an answer after which a peer is suspected.

On an idle machine answers take a millisecond, and silence of a fraction of a second means something. Where processes
wait for a CPU, answers take a hundred times as long, and with a fixed limit every process would suspect every other.

Invariants:
- the limit is never below the floor nor above the ceiling;
- one slow answer, of a peer that was frozen once, does not change the limit; two do.

Source: the accrual failure detector (Hayashibara et al.), which judges silence by the times of earlier answers.
"""

from __future__ import annotations

from collections import deque

SAMPLES = 16
FACTOR = 3.0


class AdaptiveTimeout:
    """The limit for one peer, from the times of its latest answers."""

    __slots__ = ("_ceiling_s", "_floor_s", "_took_s")

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        self._floor_s = floor_s
        self._ceiling_s = max(floor_s, ceiling_s)
        self._took_s: deque[float] = deque((0.0, 0.0), maxlen=SAMPLES)

    def answered(self, took_s: float) -> None:
        """An answer came after `took_s` seconds, in time or late."""
        self._took_s.append(took_s)

    @property
    def limit_s(self) -> float:
        usual_s = sorted(self._took_s)[-2]
        return min(max(self._floor_s, FACTOR * usual_s), self._ceiling_s)
