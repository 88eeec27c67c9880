"""A store that removes segments by itself in the simulated world of one stream, as retention of a Kafka topic does.

A fault of the plan (FaultKind.ENVIRONMENT with one of MESSAGES) removes one segment, completed or in progress. The
model of the store keeps the entries for the checks, and answers requests for them with SegmentTruncatedError.

Invariants:
- S9: a reader is told that a segment behind the truncation point is truncated, with the start of the next one, only if
  its store removed it and the list has it as completed.
- The other checks count the entries of a removed segment as in the log: a batch is not written a second time after its
  segment was removed (S2), and a reader that passes the segment without being told has seen a gap (S4).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from dlog.log.messages import HandOverStream
from dlog.model.dlsn import DLSN, of
from dlog.model.segment import Location, Segment
from tests.simulation.plan import Fault, FaultKind

if TYPE_CHECKING:
    from tests.simulation.stream_world import StreamWorld

LAST, ANY, OPEN = "remove_last", "remove_any", "remove_open"  # the newest completed, any completed, one in progress
MESSAGES = (LAST, LAST, ANY, OPEN, OPEN)


def draw_removals(rng: random.Random, duration_s: float) -> tuple[Fault, ...]:
    """Removals at any time, or soon after a claim or after a segment was started."""
    faults: list[Fault] = []
    for _ in range(rng.choice((1, 2, 4, 8))):
        mark = rng.choice(("", "owned", "segment_started", "lease_lost"))
        soon_s = rng.choice((0.0, 0.0005, 0.002, 0.01, 0.05)) * rng.random()
        faults.append(
            Fault(
                kind=FaultKind.ENVIRONMENT,
                message=rng.choice(MESSAGES),
                at_s=soon_s if mark else rng.uniform(0, duration_s),
                mark=mark,
                count=rng.randint(1, 6),
            )
        )
    return tuple(faults)


class Removals:
    """What the stores removed. open: locations whose segment was in progress then, so that the list does not show its
    last entry."""

    def __init__(self, world: StreamWorld) -> None:
        self._world = world
        self._rng = random.Random(f"{world.plan.seed}/removals")
        self._knows_end: dict[Location, bool] = {}  # removed: whether the store can say where the segment ended
        self.open: set[Location] = set()

    def happen(self, fault: Fault) -> None:
        """A fault of the plan: remove a segment, if there is one of this kind."""
        world, store = self._world, self._world.store
        segments = [s for s in world.value.segments if s.location in store.segments and not self.has(s.location)]
        if fault.message == OPEN:
            found = [s for s in segments if not s.completed and store.segments[s.location].payloads]
        else:
            found = [s for s in segments if s.completed]
            found = found[-1:] if fault.message == LAST else found
        if found:
            self._remove(self._rng.choice(found))

    def _remove(self, segment: Segment) -> None:
        if not segment.completed:
            self.open.add(segment.location)
            if self._rng.random() < 0.5:
                self._world.store.segments[segment.location].writer = ""  # its next append is refused
        self._world.sim.reach("removed" if segment.completed else "removed_open")
        self._knows_end[segment.location] = self._rng.random() < 0.5
        self.store_started()

    def store_started(self) -> None:
        """The store removes what it has removed before: it restarted from what is durable."""
        for location, knows_end in self._knows_end.items():
            held = self._world.store.segments.get(location)
            if held is not None:
                held.is_removed, held.knows_end = True, knows_end

    def has(self, location: Location) -> bool:
        return location in self._knows_end

    def is_cached(self) -> bool:
        """Whether a read proxy still has in memory what the store has removed."""
        return self._rng.random() < 0.2

    def explains(self, first: DLSN) -> bool:
        """Whether a reader may be told that this is the first position that it can read, because the segment before it
        is removed."""
        before = self._world.value.segment(first.segment - 1)
        is_start = first == of(first.segment, 0, 0)
        return is_start and before is not None and before.completed and self.has(before.location)

    def care(self) -> None:
        """Readers wait for the end of a removed segment in progress: have its owner end it."""
        address = self._world.owner_address()
        if address is not None and any(self.has(segment.location) for segment in self._world.value.in_progress):
            self._world.sim.ask(address, HandOverStream(), lambda _: None)
