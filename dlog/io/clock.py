"""Time as a port. The only file that reads a clock; everybody else is handed one.

Monotonic seconds decide (timers, timeouts, gaps); unix milliseconds only label (segment completion, record time).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one to reckon with, one to show."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...

    def unix_ms(self) -> int:
        """Wall time in milliseconds; may jump either way, so nothing may depend on it for safety."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SteadyClock:
    """A wall clock that never runs ahead of real time: it began at what `clock` said when this was made, and goes on
    by the monotonic seconds since.

    A wall clock that jumps ahead later is not followed; one that is set back is, until it is right again. One that was
    behind at the beginning stays behind: for what may come late, but never early.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SYSTEM_CLOCK
        self._begun_s = self._clock.monotonic_s()
        self._begun_ms = self._clock.unix_ms()

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def unix_ms(self) -> int:
        elapsed_s = self._clock.monotonic_s() - self._begun_s
        return min(self._clock.unix_ms(), self._begun_ms + int(elapsed_s * 1000))


SYSTEM_CLOCK = SystemClock()


def monotonic_s() -> float:
    """Monotonic seconds of this machine."""
    return time.monotonic()


def unix_ms() -> int:
    """Wall time of this machine in milliseconds."""
    return SYSTEM_CLOCK.unix_ms()
