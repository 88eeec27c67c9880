"""Timers of thousands of actors behind one timer of the loop: less memory each, and a limit on how many fire a second.

Each fires once, not before its time, in the order of their times; cancelled ones are removed many at a time. They
belong to one loop: nothing here may be called from another.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CANCELLED_MIN = 64  # so many may lie among the others before they are looked for
PORTION_S = 0.01  # between two portions of timers whose number a second is limited


class SharedTimer:
    """One that was asked for."""

    __slots__ = ("_argument", "_callback", "_timers", "_when_s")

    def __init__(self, timers: SharedTimers, when_s: float, callback: Callable[[Any], None], argument: Any) -> None:
        self._timers = timers
        self._when_s = when_s
        self._callback: Callable[[Any], None] | None = callback
        self._argument = argument

    def __lt__(self, other: SharedTimer) -> bool:
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


class SharedTimers:
    """Those of one process. A callback must not raise.

    per_s: at most so many fire a second, in portions of PORTION_S (at least one each); those that are due later than
    that allows come late.
    """

    def __init__(self, per_s: float = math.inf) -> None:
        self._portion = max(1.0, per_s * PORTION_S)
        self._heap: list[SharedTimer] = []
        self._cancelled = 0
        self._armed: asyncio.TimerHandle | None = None
        self._next_portion_s = 0.0

    def __len__(self) -> int:
        """How many will be heard."""
        return len(self._heap) - self._cancelled

    def call_later(self, after_s: float, callback: Callable[[Any], None], argument: Any) -> SharedTimer:
        """Have `callback(argument)` called after so long."""
        loop = asyncio.get_running_loop()
        timer = SharedTimer(self, loop.time() + after_s, callback, argument)
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
            self._disarm()  # nobody waits: no loop is kept waking for it
            self._heap.clear()
            self._cancelled = 0

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._disarm()
        self._armed = loop.call_at(max(self._heap[0].when_s, self._next_portion_s), self._ring)

    def _disarm(self) -> None:
        armed, self._armed = self._armed, None
        if armed is not None:
            armed.cancel()

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        left = self._portion
        self._disarm()
        while left >= 1.0 and self._heap and (self._heap[0].is_cancelled or self._heap[0].when_s <= now_s):
            timer = heapq.heappop(self._heap)
            if timer.is_cancelled:
                self._cancelled -= 1
            else:
                left -= 1.0
                timer.fire()
        if left < 1.0:
            self._next_portion_s = now_s + PORTION_S
        if self._heap:
            self._arm(loop)  # also where a callback has, before the portion was known to be used up


@dataclass(frozen=True, slots=True)
class ProcessTimers:
    """The shared timers of one process.

    far: those that are far off. deferrable: those that may come late where many actors wait for one
    (dlog/machine.py: SetTimer).
    """

    far: SharedTimers
    deferrable: SharedTimers
