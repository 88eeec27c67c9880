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


SYSTEM_CLOCK = SystemClock()


def monotonic_s() -> float:
    """Monotonic seconds of this machine."""
    return time.monotonic()


def unix_ms() -> int:
    """Wall time of this machine in milliseconds."""
    return SYSTEM_CLOCK.unix_ms()
