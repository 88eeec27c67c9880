"""Garbage collection of reference cycles in short pauses, for processes that run for years.

CPython (3.11 to 3.13) collects its oldest generation in one pause: 0.1 to 0.3 µs of CPU per tracked object, 0.8 µs in a
large heap. That is a second for a proxy that owns 10,000 streams (190 objects each). So the oldest generation is kept
small: when it is too large, its live objects are frozen (gc.freeze), that is, excluded from all later collections.

Invariants:
- One collection visits at most OLD_GENERATION_MAX objects left by earlier ones and the live objects made since:
  MIDDLE_GENERATION_MAX, the youngest generation, and those made within LOOK_S. That is at most 70,000 objects if
  200,000 lasting ones are made a second: 4 to 20 ms.
- A cycle dropped before its objects are frozen is freed: under load after 20,000 more objects that last or become
  garbage, in an idle process within a minute.
- In a process with at most OLD_GENERATION_MAX objects besides those loaded at its start, nothing is frozen later.

Limit: a cycle of objects frozen while in use is never freed, such as that of a connection that was open while a proxy
claimed hundreds of streams. So no repeated operation may leave a cycle (tests/unit/client/test_garbage.py,
tests/integration/proxies/test_garbage.py). Frozen objects in no cycle are freed as usual, by reference counting.
"""

from __future__ import annotations

import gc
from typing import Protocol, cast

from dlog.io.lateness_timer import LatenessTimer

THRESHOLDS = (10_000, 50, 1_000)  # gc.set_threshold: Python still collects the youngest generation itself
MIDDLE_GENERATION_MAX = 10_000  # size of the middle generation from which all generations are collected
OLD_GENERATION_MAX = 40_000  # size of the oldest generation after a collection above which it is frozen
LOOK_S = 0.1  # between two checks
IDLE_LOOKS = 600  # checks without a collection, after which one is made when the loop is idle
IDLE_LATE_S = 0.005  # a check later than this means that the loop is busy


class Collector(Protocol):
    """The functions of the module `gc` used here."""

    def collect(self, generation: int = 2) -> int: ...
    def freeze(self) -> None: ...
    def get_objects(self, generation: int | None = None) -> list[object]: ...
    def get_stats(self) -> list[dict[str, int]]: ...
    def get_threshold(self) -> tuple[int, int, int]: ...


class CycleCollector:
    """Checks the sizes of the generations ten times a second and decides whether to collect all of them."""

    def __init__(self, collector: Collector | None = None) -> None:
        self._gc = collector or cast(Collector, gc)
        self._collections = 0  # of the youngest generation, at the last check
        self._looks = 0  # checks since the last collection by this object
        self._timer = LatenessTimer(LOOK_S, self.look)

    def start(self) -> None:
        """Begin on the running loop. Collects nothing before the process has set THRESHOLDS (dlog/io/process.py)."""
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()

    def look(self, late_s: float) -> None:
        """Collect if it is due. late_s: how late the loop calls this.

        Python collects the youngest generation; only after that can the middle one have grown. Its size is found by
        listing it (10 ns per object).
        """
        if self._gc.get_threshold() != THRESHOLDS:
            return  # the process is still starting
        self._looks += 1
        before, self._collections = self._collections, self._gc.get_stats()[0]["collections"]
        has_grown = self._collections != before and len(self._gc.get_objects(generation=1)) >= MIDDLE_GENERATION_MAX
        if has_grown or (self._looks >= IDLE_LOOKS and late_s <= IDLE_LATE_S):
            self._collect()

    def _collect(self) -> None:
        self._looks = 0
        self._gc.collect()
        if len(self._gc.get_objects(generation=2)) > OLD_GENERATION_MAX:
            self._gc.freeze()
