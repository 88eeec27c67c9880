"""Timers of thousands of actors on one timer of the event loop: less memory, and a limit on how many fire per second.

Each timer fires once, not before its time, in order of time. Cancelled timers are removed in bulk. All calls must come
from one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CANCELLED_MIN = 64  # this many cancelled timers may stay in the heap before they are removed
PORTION_S = 0.01  # time between two portions of rate-limited timers


class SharedTimer:
    """One pending timer."""

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
        """When it is due, by the event loop's clock."""
        return self._when_s

    @property
    def is_cancelled(self) -> bool:
        return self._callback is None

    def cancel(self) -> None:
        """Never call the callback; no effect if it was called."""
        if self._callback is not None:
            self._callback = self._argument = None
            self._timers.dropped()

    def fire(self) -> None:
        callback, argument = self._callback, self._argument
        self._callback = self._argument = None
        if callback is not None:
            callback(argument)


class SharedTimers:
    """Timers of one process. A callback must not raise.

    per_s: at most this many fire per second, in portions of PORTION_S (at least one timer each); the excess fires late.
    """

    def __init__(self, per_s: float = math.inf) -> None:
        self._portion = max(1.0, per_s * PORTION_S)
        self._heap: list[SharedTimer] = []
        self._cancelled = 0
        self._armed: asyncio.TimerHandle | None = None
        self._next_portion_s = 0.0

    def __len__(self) -> int:
        """How many timers are pending."""
        return len(self._heap) - self._cancelled

    def call_later(self, after_s: float, callback: Callable[[Any], None], argument: Any) -> SharedTimer:
        """Call `callback(argument)` after `after_s` seconds."""
        loop = asyncio.get_running_loop()
        timer = SharedTimer(self, loop.time() + after_s, callback, argument)
        heapq.heappush(self._heap, timer)
        if self._heap[0] is timer:
            self._arm(loop)
        return timer

    def dropped(self) -> None:
        """Count a cancelled timer."""
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_MIN, len(self._heap) // 2):
            self._heap = [timer for timer in self._heap if not timer.is_cancelled]
            heapq.heapify(self._heap)
            self._cancelled = 0
        if len(self._heap) == self._cancelled and self._armed is not None:
            self._disarm()  # none is pending: do not wake the event loop
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
            self._arm(loop)  # again, even if a callback armed it before the portion was known to be used up


@dataclass(frozen=True, slots=True)
class ProcessTimers:
    """The shared timers of one process.

    far: timers with a long delay. deferrable: timers that may fire late if many actors have one (dlog/machine.py:
    SetTimer.can_wait).
    """

    far: SharedTimers
    deferrable: SharedTimers
