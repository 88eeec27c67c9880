"""Collection of reference cycles in steps of bounded size, in a process that runs for years.

CPython (3.11 to 3.13) collects its oldest generation as a whole, without giving way: 0.1 to 0.3 µs of CPU an object
that it tracks, 0.8 µs in a large heap. That is a second for a proxy that owns 10,000 streams (190 objects each). So the
oldest generation is kept small: what is still alive when it has become too large is frozen (gc.freeze), that is, never
looked at again.

What this promises:
- One collection looks at KEPT_MAX objects that earlier ones left, and at what the process made since and still has:
  YOUNG_MAX, the youngest generation, and what comes within one look. That is 70,000 objects at most while 200,000 a
  second come to stay: 4 to 20 ms.
- A cycle that is dropped before its objects are frozen is freed: under load once 20,000 further objects have come to
  stay or to be garbage, in an idle process within a minute.
- In a process with at most KEPT_MAX objects besides what it loaded at its start, nothing is frozen later.

What it does not promise: a cycle among objects that were frozen while they were in use is never freed, as that of a
connection that was open while a proxy claimed hundreds of streams. This is why nothing that repeats may leave a cycle
behind (tests/unit/client/test_garbage.py, tests/integration/proxies/test_garbage.py). What is frozen and in no cycle is
freed like everything else, once nobody refers to it any more.
"""

from __future__ import annotations

import gc
from typing import Protocol, cast

from dlog.io.late_timer import LateTimer

THRESHOLDS = (10_000, 50, 1_000)  # of Python's own collector, which goes on for the youngest objects
YOUNG_MAX = 10_000  # objects that survived a collection of the youngest and are not looked at yet: more are, at once
KEPT_MAX = 40_000  # objects that a collection may leave in the oldest generation: if there are more, they are frozen
LOOK_S = 0.1
IDLE_LOOKS = 600  # without a collection: one is made as soon as the loop has nothing else to do
IDLE_LATE_S = 0.005  # a look that is later than this finds a loop with something to do


class Collector(Protocol):
    """The part of the module `gc` that is used here."""

    def collect(self, generation: int = 2) -> int: ...
    def freeze(self) -> None: ...
    def get_objects(self, generation: int | None = None) -> list[object]: ...
    def get_stats(self) -> list[dict[str, int]]: ...
    def get_threshold(self) -> tuple[int, int, int]: ...


class CycleCollector:
    """Looks at the collector's generations ten times a second and decides whether to collect all of them."""

    def __init__(self, collector: Collector | None = None) -> None:
        self._gc = collector or cast(Collector, gc)
        self._collections = 0  # of the youngest generation, when we looked last
        self._looks = 0  # since the last collection of ours
        self._timer = LateTimer(LOOK_S, self.look)

    def start(self) -> None:
        """Begin on the running loop. Nothing happens before this process has called `freeze` (dlog/io/process.py)."""
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()

    def look(self, late_s: float) -> None:
        """Collect if it is due. late_s: how late the loop runs this.

        The youngest generation is collected by Python; only if that happened can there be more in the middle one, whose
        size is found by listing it (10 ns an object).
        """
        if self._gc.get_threshold() != THRESHOLDS:
            return  # it is still starting
        self._looks += 1
        before, self._collections = self._collections, self._gc.get_stats()[0]["collections"]
        has_grown = self._collections != before and len(self._gc.get_objects(generation=1)) >= YOUNG_MAX
        if has_grown or (self._looks >= IDLE_LOOKS and late_s <= IDLE_LATE_S):
            self._collect()

    def _collect(self) -> None:
        self._looks = 0
        self._gc.collect()
        if len(self._gc.get_objects(generation=2)) > KEPT_MAX:
            self._gc.freeze()
