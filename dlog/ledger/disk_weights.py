"""Weights for the choice of bookies by the free space of their disks: an emptier bookie is chosen more often.

Invariants:
- no bookie has a weight of zero: what is not known of a bookie, or is old, never excludes it;
- of two bookies whose free space is known the one with more has at least the other's weight;
- no weight is above `multiple_max`, where 1 is the weight of the median: a new, empty bookie does not get all new
  ledgers, and with them all load.

Source: BookKeeper, WeightedRandomSelection and `bookieMaxWeightMultipleForWeightBasedPlacement`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median

from dlog.model.ids import BookieId

ROUNDS_KEPT = 3  # rounds without an answer after which a bookie's free space counts as unknown
WEIGHT_MIN = 0.01  # of a nearly full bookie. One that is full is read-only, and no candidate at all
UNKNOWN = 1.0


class DiskWeights:
    """Free bytes of bookies, as reported in rounds of questions. multiple_max: how many times as often as the median
    bookie an emptier one may be chosen; at least 1."""

    def __init__(self, multiple_max: float) -> None:
        assert multiple_max >= 1.0, "no bookie is chosen less often for being emptier than the median"
        self._multiple_max = multiple_max
        self._free: dict[BookieId, int] = {}
        self._silent: dict[BookieId, int] = {}  # rounds since the last answer
        self._median = 0.0

    def note_round(self, asked: Collection[BookieId], reported: Mapping[BookieId, int]) -> None:
        """Take in one round: `reported` has the free bytes of those of `asked` that answered. What is known of other
        bookies stays; those that are not registered any more are dropped by `keep`."""
        for bookie in asked:
            if bookie in reported:
                self._free[bookie] = max(0, reported[bookie])
                self._silent[bookie] = 0
            elif bookie in self._free:
                self._silent[bookie] += 1
                if self._silent[bookie] >= ROUNDS_KEPT:
                    self._drop(bookie)
        self._median = float(median(self._free.values())) if self._free else 0.0

    def keep(self, registered: Collection[BookieId]) -> None:
        """Drop what is known of all other bookies."""
        for bookie in self._free.keys() - set(registered):
            self._drop(bookie)
        self._median = float(median(self._free.values())) if self._free else 0.0

    def weight(self, bookie: BookieId) -> float:
        """The bookie's share of new ensembles, relative to the median's, which is 1; also of one that is not known."""
        free = self._free.get(bookie)
        if free is None or not self._median:
            return UNKNOWN
        return min(self._multiple_max, max(WEIGHT_MIN, free / self._median))

    def _drop(self, bookie: BookieId) -> None:
        del self._free[bookie], self._silent[bookie]
