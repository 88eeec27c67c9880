"""Timers that are far off: thousands of them wait behind one of the loop's, which takes several times the memory.

The law of this room: who asks for one hears it once, not before its time, in the order of their times; cancelled ones
are dropped by the lot. One process has its own: nothing here may be called from another loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

CANCELLED_MIN = 64  # so many may lie among the others before they are looked for


class FarTimer:
    """One that was asked for."""

    __slots__ = ("_argument", "_callback", "_timers", "_when_s")

    def __init__(self, timers: FarTimers, when_s: float, callback: Callable[[Any], None], argument: Any) -> None:
        self._timers = timers
        self._when_s = when_s
        self._callback: Callable[[Any], None] | None = callback
        self._argument = argument

    def __lt__(self, other: FarTimer) -> bool:
        return self._when_s < other._when_s

    @property
    def when_s(self) -> float:
        """Of the loop's clock."""
        return self._when_s

    @property
    def is_cancelled(self) -> bool:
        return self._callback is None

    def cancel(self) -> None:
        """Be never called; nothing happens if it was."""
        if self._callback is not None:
            self._callback = self._argument = None
            self._timers.dropped()

    def fire(self) -> None:
        callback, argument = self._callback, self._argument
        self._callback = self._argument = None
        if callback is not None:
            callback(argument)


class FarTimers:
    """Those of one process. A callback must not raise."""

    def __init__(self) -> None:
        self._heap: list[FarTimer] = []
        self._cancelled = 0
        self._armed: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many will be heard."""
        return len(self._heap) - self._cancelled

    def call_later(self, after_s: float, callback: Callable[[Any], None], argument: Any) -> FarTimer:
        """Have `callback(argument)` called after so long."""
        loop = asyncio.get_running_loop()
        timer = FarTimer(self, loop.time() + after_s, callback, argument)
        heapq.heappush(self._heap, timer)
        if self._heap[0] is timer:
            self._arm(loop)
        return timer

    def dropped(self) -> None:
        """One was cancelled."""
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_MIN, len(self._heap) // 2):
            self._heap = [timer for timer in self._heap if not timer.is_cancelled]
            heapq.heapify(self._heap)
            self._cancelled = 0
        if len(self._heap) == self._cancelled and self._armed is not None:
            self._armed.cancel()  # nobody waits: no loop is kept waking for it
            self._armed = None
            self._heap.clear()
            self._cancelled = 0

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed = loop.call_at(self._heap[0].when_s, self._ring)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._armed = None
        while self._heap and (self._heap[0].is_cancelled or self._heap[0].when_s <= now_s):
            timer = heapq.heappop(self._heap)
            if timer.is_cancelled:
                self._cancelled -= 1
            else:
                timer.fire()
        if self._heap and self._armed is None:
            self._arm(loop)
