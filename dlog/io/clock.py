"""The clock port. Only this file reads the system's clocks; other code gets a Clock.

Monotonic seconds are for decisions (timers, timeouts, gaps), Unix milliseconds only for labels (segment completion,
record time).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and a wall clock."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary time; never goes back."""
        ...

    def unix_ms(self) -> int:
        """Wall time in milliseconds; may jump in both directions, so safety must not depend on it."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000


class NeverAheadClock:
    """A wall clock that never gains time: it starts at `clock`'s wall time and advances with the monotonic clock.

    It ignores forward jumps of the wall clock and follows backward ones until the wall clock has caught up. If it
    started behind it stays behind: for actions that may be late but never early.
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
