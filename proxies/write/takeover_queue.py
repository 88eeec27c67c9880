"""Limits how many streams one process takes over at once.

When a proxy dies, its clients ask for hundreds of streams at once, and each take-over sends several requests to
ZooKeeper and bookies. So only a few run at once; the others wait in order of request. A slow take-over (the bookies it
needs do not respond) no longer counts after `slow_s`: the next one starts, and it goes on beside the others.

The metadata stream is taken over at once and never counts: a take-over of a stream in objects ends only when the
metadata stream has an owner, so that it must not wait behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from actors.runtime import TaskScope
from dlog.errors import OverCapacityError
from dlog.model.ids import METADATA_STREAM

Work = Callable[[], Coroutine[Any, Any, None]]


class TakeoverQueue:
    """Queue of take-overs. at_once: how many run, not counting slow ones. waiting_max: how many may wait. slow_s: a
    take-over that runs longer is slow."""

    def __init__(self, tasks: TaskScope, *, at_once: int, waiting_max: int, slow_s: float) -> None:
        self.begun = 0  # started so far
        self.peak = 0  # most running at once
        self._tasks = tasks
        self._at_once = at_once
        self._waiting_max = waiting_max
        self._slow_s = slow_s
        self._waiting: dict[str, Work] = {}
        self._placed: set[str] = set()  # running and not slow

    @property
    def running(self) -> int:
        return len(self._placed)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, stream: str, work: Work) -> None:
        """Queue a stream's take-over; one per stream at a time. Raises OverCapacityError."""
        if stream == METADATA_STREAM:
            self._start(stream, work)
            return
        if self.waiting >= self._waiting_max:
            raise OverCapacityError(f"too many streams wait for their take-over, try again: streams={self.waiting}")
        assert stream not in self._waiting, "one take-over per stream at a time"
        self._waiting[stream] = work
        self._begin()

    def let_go(self, stream: str) -> None:
        """Stop counting this take-over, which is slow or done. Idempotent."""
        self._placed.discard(stream)
        self._begin()

    def forget(self, stream: str) -> None:
        """Remove a waiting take-over."""
        self._waiting.pop(stream, None)

    def forget_waiting(self) -> list[str]:
        """Remove all waiting take-overs; returns their streams."""
        names = list(self._waiting)
        self._waiting.clear()
        return names

    def _begin(self) -> None:
        while len(self._placed) < self._at_once and self._waiting:
            stream = next(iter(self._waiting))
            work = self._waiting.pop(stream)
            self._placed.add(stream)
            self.peak = max(self.peak, len(self._placed))
            self._start(stream, work)

    def _start(self, stream: str, work: Work) -> None:
        self.begun += 1
        self._tasks.start_alone(self._do(stream, work), name=f"take over {stream}")

    async def _do(self, stream: str, work: Work) -> None:
        held_up = asyncio.get_running_loop().call_later(self._slow_s, self.let_go, stream)
        try:
            await work()
        finally:
            held_up.cancel()
            self.let_go(stream)
