"""Disposal: places that nothing refers to any more are deleted at their stores, a few at a time, until it is certain.

The law of this room: metadata first. What is handed in here is already marked (TRUNCATED, or held by `allocated`), so a
crash forgets nothing: the next owner finds the mark and goes on. When the store has confirmed, a change takes the mark
away.
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

TIMER = ("disposal",)


@dataclass(frozen=True, slots=True)
class Doomed:
    """A place to delete. then: the change that takes the mark away, if there is one."""

    store: str
    place: str
    number: int
    then: Change | None


class Disposal:
    """Deletes what it is handed. Each call costs the same however many places wait."""

    __slots__ = ("_asked", "_known", "_later", "_options", "_queue")

    def __init__(self, options: OwnerOptions) -> None:
        self._options = options
        self._queue: deque[Doomed] | None = None  # made when needed: an empty one has 760 B, and most delete nothing
        self._asked: dict[str, Doomed] = {}  # by place
        self._later: list[Doomed] = []  # until the timer fires
        self._known: dict[tuple[str, str], None] = {}  # store and place of all of these

    def add(self, doomed: Doomed) -> None:
        """Delete it; handing in twice is handing in once."""
        key = doomed.store, doomed.place
        if key not in self._known:
            self._known[key] = None
            self._enqueue(doomed)

    def _enqueue(self, doomed: Doomed) -> None:
        if self._queue is None:
            self._queue = deque()
        self._queue.append(doomed)

    def effects(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._queue and len(self._asked) < self._options.deletes_max:
            doomed = self._queue.popleft()
            self._asked[doomed.place] = doomed
            effects.append(Send(STORE, DeleteSegment(doomed.store, doomed.place, SegmentNumber(doomed.number))))
        return effects

    def deleted(self, place: str) -> Doomed | None:
        """The store confirms; returns what it was, None if nobody asked."""
        return self._finish(place)

    def failed(self, question: DeleteSegment, error: DLogError) -> Doomed | None:
        """The store failed: if there is no such place that is as good, otherwise try again later (see `later`)."""
        if error.remedy is Remedy.STOP:
            return self._finish(question.place)
        doomed = self._asked.pop(question.place, None)
        if doomed is not None:
            self._later.append(doomed)
        return None

    def _finish(self, place: str) -> Doomed | None:
        doomed = self._asked.pop(place, None)
        if doomed is not None:
            del self._known[doomed.store, doomed.place]
        return doomed

    def later(self) -> list[Effect]:
        """Have the timer fire for what failed."""
        return [SetTimer(TIMER, self._options.retry_after_max_s)] if self._later else []

    def lost(self) -> None:
        """The store is gone: nothing asked will be answered."""
        self._later.extend(self._asked.values())
        self._asked.clear()

    def retry(self) -> None:
        for doomed in self._later:
            self._enqueue(doomed)
        self._later.clear()
