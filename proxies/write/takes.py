"""Limits how many streams one process takes over at once.

When a proxy dies, its clients ask for hundreds of streams at once, and each take-over asks ZooKeeper and bookies
several questions. So only a few are under way at once; the rest wait in the order in which they were asked for. A
take-over that is held up (the bookies it needs do not answer) gives its turn to the next one after `slow_s` and goes on
beside the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from actors.runtime import Lifetime
from dlog.errors import OverCapacityError

Work = Callable[[], Coroutine[Any, Any, None]]


class Takes:
    """at_once: how many are under way, besides those that are slow. waiting_max: how many may wait. slow_s: how long
    one keeps its place at most."""

    def __init__(self, tasks: Lifetime, *, at_once: int, waiting_max: int, slow_s: float) -> None:
        self.begun = 0  # so far
        self.peak = 0  # of those under way at once
        self._tasks = tasks
        self._at_once = at_once
        self._waiting_max = waiting_max
        self._slow_s = slow_s
        self._waiting: dict[str, Work] = {}
        self._placed: set[str] = set()  # under way, and not slow

    @property
    def running(self) -> int:
        return len(self._placed)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, stream: str, work: Work) -> None:
        """Do the work when its turn has come; once a stream at a time. Raises OverCapacityError."""
        if self.waiting >= self._waiting_max:
            raise OverCapacityError(f"too many streams are being taken: streams={self.waiting}")
        assert stream not in self._waiting, "a stream is taken once at a time"
        self._waiting[stream] = work
        self._begin()

    def let_go(self, stream: str) -> None:
        """Give the place of this one free: it is held up, or done. Idempotent."""
        self._placed.discard(stream)
        self._begin()

    def forget(self, stream: str) -> None:
        """Do not begin this one, if it waits."""
        self._waiting.pop(stream, None)

    def forget_waiting(self) -> list[str]:
        """Begin no more of those that wait; returns their names."""
        names = list(self._waiting)
        self._waiting.clear()
        return names

    def _begin(self) -> None:
        while len(self._placed) < self._at_once and self._waiting:
            stream = next(iter(self._waiting))
            work = self._waiting.pop(stream)
            self._placed.add(stream)
            self.begun += 1
            self.peak = max(self.peak, len(self._placed))
            self._tasks.start_alone(self._do(stream, work), name=f"take {stream}")

    async def _do(self, stream: str, work: Work) -> None:
        held_up = asyncio.get_running_loop().call_later(self._slow_s, self.let_go, stream)
        try:
            await work()
        finally:
            held_up.cancel()
            self.let_go(stream)
