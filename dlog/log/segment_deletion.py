"""Deletes unreferenced segments at their stores, a few at a time, retrying until the store confirms.

Invariants:
- metadata records a segment (as truncated, or in `allocated`) until its store has confirmed the deletion, so that the
  next owner continues after a crash. Exception: one that was created or empty while `allocated` held another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dlog.errors import DLogError, Remedy
from dlog.log.changes import Change
from dlog.log.messages import STORE, DeleteSegment
from dlog.log.options import OwnerOptions
from dlog.machine import Effect, Send, SetTimer
from dlog.model.ids import SegmentNumber
from dlog.model.segment import Location

TIMER = ("disposal",)


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """A segment to delete. then: the change that removes its record from metadata, if any."""

    location: Location
    number: int
    then: Change | None


class SegmentDeleter:
    """Deletes segments. A call's cost does not depend on how many wait."""

    __slots__ = ("_asked", "_known", "_later", "_options", "_queue")

    def __init__(self, options: OwnerOptions) -> None:
        self._options = options
        self._queue: deque[PendingDeletion] | None = (
            None  # made when needed: an empty one takes 760 B, most streams need none
        )
        self._asked: dict[Location, PendingDeletion] = {}  # in flight
        self._later: list[PendingDeletion] = []  # to be retried when the timer fires
        self._known: dict[Location, None] = {}  # of all three

    def add(self, deletion: PendingDeletion) -> None:
        """Delete it; adding it again changes nothing."""
        if deletion.location not in self._known:
            self._known[deletion.location] = None
            self._enqueue(deletion)

    def _enqueue(self, deletion: PendingDeletion) -> None:
        if self._queue is None:
            self._queue = deque()
        self._queue.append(deletion)

    def effects(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._queue and len(self._asked) < self._options.deletes_max:
            deletion = self._queue.popleft()
            self._asked[deletion.location] = deletion
            effects.append(Send(STORE, DeleteSegment(deletion.location, SegmentNumber(deletion.number))))
        return effects

    def deleted(self, location: Location) -> PendingDeletion | None:
        """The store deleted it; returns the matching request, None if there is none."""
        return self._finish(location)

    def failed(self, question: DeleteSegment, error: DLogError) -> PendingDeletion | None:
        """The store failed. No such segment: return it as deleted; otherwise retry later (see `later`)."""
        if error.remedy is Remedy.STOP:
            return self._finish(question.location)
        deletion = self._asked.pop(question.location, None)
        if deletion is not None:
            self._later.append(deletion)
        return None

    def _finish(self, location: Location) -> PendingDeletion | None:
        deletion = self._asked.pop(location, None)
        if deletion is not None:
            del self._known[location]
        return deletion

    def later(self) -> list[Effect]:
        """Set the retry timer if a deletion failed."""
        return [SetTimer(TIMER, self._options.retry_after_max_s)] if self._later else []

    def lost(self) -> None:
        """The store is lost: requests in flight are not answered, retry them."""
        self._later.extend(self._asked.values())
        self._asked.clear()

    def retry(self) -> None:
        for deletion in self._later:
            self._enqueue(deletion)
        self._later.clear()
