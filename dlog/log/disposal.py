"""Disposal: places that nothing refers to any more are deleted at their stores, a few at a time, until it is certain.

The law of this room: metadata first. What is handed in here is already marked (TRUNCATED, or held by `allocated`), so a
crash forgets nothing: the next owner finds the mark and goes on. When the store has confirmed, a change takes the mark
away.
"""

from __future__ import annotations

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
    """Deletes what it is handed."""

    __slots__ = ("_asked", "_later", "_options", "_queue")

    def __init__(self, options: OwnerOptions) -> None:
        self._options = options
        self._queue: list[Doomed] = []
        self._asked: dict[str, Doomed] = {}  # by place
        self._later: tuple[Doomed, ...] = ()  # until the timer fires

    def add(self, doomed: Doomed) -> None:
        """Delete it; handing in twice is handing in once."""
        known = (*self._queue, *self._asked.values(), *self._later)
        if all(d.place != doomed.place or d.store != doomed.store for d in known):
            self._queue.append(doomed)

    def effects(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._queue and len(self._asked) < self._options.deletes_max:
            doomed = self._queue.pop(0)
            self._asked[doomed.place] = doomed
            effects.append(Send(STORE, DeleteSegment(doomed.store, doomed.place, SegmentNumber(doomed.number))))
        return effects

    def deleted(self, place: str) -> Doomed | None:
        """The store confirms; returns what it was, None if nobody asked."""
        return self._asked.pop(place, None)

    def failed(self, question: DeleteSegment, error: DLogError) -> Doomed | None:
        """The store failed: if there is no such place that is as good, otherwise try again later (see `later`)."""
        doomed = self._asked.pop(question.place, None)
        if doomed is None or error.remedy is Remedy.STOP:
            return doomed
        self._later += (doomed,)
        return None

    def later(self) -> list[Effect]:
        """Have the timer fire for what failed."""
        return [SetTimer(TIMER, self._options.retry_after_max_s)] if self._later else []

    def lost(self) -> None:
        """The store is gone: nothing asked will be answered."""
        self._later += tuple(self._asked.values())
        self._asked.clear()

    def retry(self) -> None:
        self._queue.extend(self._later)
        self._later = ()
