"""Which replica a reader asks first, and how long it waits before it asks another one too.

The wait follows the replies: each wait that a reply ended in time makes it a little shorter, each that none did half as
long again, so that in the long run one wait in `1 / LATE_SHARE` is too long. It needs no clock, and no list of times.
Batch reads take longer than reads of one entry, so each kind has its own wait, and its own count of late replies.

Invariants:
- a wait is at least `speculate_min_s`, and at most WAIT_MAX_S, or `speculate_s`, where it starts, if that is longer;
- of many reads of a kind at most about `LATE_SHARE` ask a second replica for being slow, however slow all of them are,
  up to WAIT_MAX_S: bookies that are overloaded do not get twice the load for it;
- a replica that failed or was late is asked after the others, until the reads that went well since have halved its
  count to nothing: then it is tried again. For batches it must have been late LATE_BATCHES times, without one in time
  between them: successive batches of one bookie use its caches.

Source: J. Dean and L. A. Barroso, "The Tail at Scale", hedged requests; BookKeeper, `speculativeReadTimeout` and
`reorderReadSequence`. The step sizes are those of stochastic approximation of a quantile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dlog.model.ids import BookieId

#: How far a bookie is from this process; a smaller number is nearer.
Distance = Callable[[BookieId], int]

LATE_SHARE = 0.05
_LONGER = 1.5
_SHORTER = _LONGER ** (-LATE_SHARE / (1 - LATE_SHARE))
WAIT_MAX_S = 4.0  # a request fails soon after (BookieClientOptions.request_timeout_s)
COUNT_MAX = 8
HALVED_EVERY = 32  # waits that were long enough
LATE_BATCHES = 3


class _Kind:
    """What is known of one kind of reads: the wait, and how often bookies were late."""

    __slots__ = ("in_time", "late", "wait_s")

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.late: dict[BookieId, int] = {}
        self.in_time = 0


class ReplicaHealth:
    """What the readers of one client know of bookies. wait_s: at first. wait_min_s: the shortest wait."""

    __slots__ = ("_batches", "_faults", "_singles", "_wait_max_s", "_wait_min_s")

    def __init__(self, wait_s: float, wait_min_s: float) -> None:
        self._wait_max_s = max(wait_s, WAIT_MAX_S)
        self._wait_min_s = min(wait_min_s, wait_s)
        self._faults: dict[BookieId, int] = {}  # errors since the last good reply
        self._singles = _Kind(wait_s)
        self._batches = _Kind(wait_s)

    def wait_s(self, *, batch: bool) -> float:
        """How long to wait for a reply to a batch read, or to a read of one entry."""
        return (self._batches if batch else self._singles).wait_s

    def note_good(self, bookie: BookieId) -> None:
        """The bookie returned what it was asked for."""
        self._faults.pop(bookie, None)

    def note_fault(self, bookie: BookieId) -> None:
        """The bookie refused, was lost, or returned damage."""
        self._faults[bookie] = min(COUNT_MAX, self._faults.get(bookie, 0) + 1)

    def note_in_time(self, batch_of: BookieId | None = None) -> None:
        """A wait was long enough: for a batch of this bookie, None: for single entries."""
        kind = self._singles if batch_of is None else self._batches
        kind.wait_s = max(self._wait_min_s, kind.wait_s * _SHORTER)
        if batch_of is not None and kind.late.get(batch_of, 0) < LATE_BATCHES:
            kind.late.pop(batch_of, None)
        kind.in_time += 1
        if kind.in_time % HALVED_EVERY == 0:
            kind.late = _halved(kind.late)
            self._faults = _halved(self._faults)

    def note_late(self, bookies: Iterable[BookieId], *, batch: bool = False) -> None:
        """A wait for these bookies was too short."""
        kind = self._batches if batch else self._singles
        kind.wait_s = min(self._wait_max_s, kind.wait_s * _LONGER)
        for bookie in bookies:
            kind.late[bookie] = min(COUNT_MAX, kind.late.get(bookie, 0) + 1)

    def in_order(self, bookies: Iterable[BookieId], distance: Distance, *, batch: bool = False) -> list[BookieId]:
        """The order in which to ask: the healthiest first, of these the nearest."""
        faults, late = self._faults, self._singles.late
        if batch:
            late = {bookie: count for bookie, count in self._batches.late.items() if count >= LATE_BATCHES}
        return sorted(bookies, key=lambda b: (faults.get(b, 0) + late.get(b, 0), distance(b)))


def _halved(counts: dict[BookieId, int]) -> dict[BookieId, int]:
    return {bookie: half for bookie, count in counts.items() if (half := count // 2)}
