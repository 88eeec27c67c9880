"""Bookies that failed repeatedly, which new ensembles avoid for a while.

A bookie may be registered, and answer questions, and still fail adds: its disk hangs, or its network loses packets.
Each ledger would find that out anew.

Invariants:
- failures within `SPELL_S` of the first of them count as one: a bookie that restarts fails for all its ledgers at once;
- a bookie is in quarantine from its `failures`th failure within `quarantine_s` on, for `quarantine_s`;
- the quarantine excludes nobody: placement chooses a bookie in it where it finds no other (placement.py).

Source: BookKeeper, `bookieQuarantineTime` and `bookieErrorThresholdPerInterval`, which count each failed request.
"""

from __future__ import annotations

from collections import deque

from dlog.events import BookieQuarantined
from dlog.model.ids import BookieId

SPELL_S = 5.0
BOOKIES_MAX = 10_000


class Quarantine:
    """The failures of bookies, as one process sees them. Times are of a monotonic clock, in seconds.

    failures: how many put a bookie in quarantine; 0: none do. for_s: for how long; failures longer ago are forgotten.
    Bounded: of more than BOOKIES_MAX bookies the one whose last failure is oldest is forgotten.
    """

    def __init__(self, failures: int, for_s: float) -> None:
        self._limit = failures
        self._for_s = for_s
        self._spells: dict[BookieId, deque[float]] = {}  # when each spell began; the bookie that failed last is last
        self._until_s: dict[BookieId, float] = {}

    def note_failure(self, bookie: BookieId, now_s: float) -> BookieQuarantined | None:
        """Record a failure. Returns the event to emit if it put the bookie in quarantine."""
        if not self._limit:
            return None
        is_held = self.holds(bookie, now_s)
        spells = self._spells.pop(bookie, None) or deque(maxlen=self._limit)
        self._spells[bookie] = spells
        while len(self._spells) > BOOKIES_MAX:
            oldest = next(iter(self._spells))
            del self._spells[oldest]
            self._until_s.pop(oldest, None)
        if spells and now_s < spells[-1] + SPELL_S:
            return None
        spells.append(now_s)
        if is_held or len(spells) < self._limit or spells[0] <= now_s - self._for_s:
            return None
        self._until_s[bookie] = now_s + self._for_s
        return BookieQuarantined(bookie, len(spells), self._for_s)

    def holds(self, bookie: BookieId, now_s: float) -> bool:
        """Whether the bookie is in quarantine."""
        until_s = self._until_s.get(bookie)
        if until_s is None:
            return False
        if now_s < until_s:
            return True
        del self._until_s[bookie]
        self._spells.pop(bookie, None)  # it starts afresh
        return False
