"""Tests a wall clock that never runs ahead of real time."""

from __future__ import annotations

import pytest

from dlog.io.clock import NeverAheadClock

DAY_MS = 86_400_000


class Wall:
    """The clocks of a machine: correct monotonic seconds, and a wall clock that can be set."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ahead_ms = 0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return int(self.now_s * 1000) + self.ahead_ms


@pytest.mark.parametrize(("ahead_ms", "seen_ms"), [(0, 160_000), (4 * DAY_MS, 160_000), (-30_000, 130_000)])
def test_a_clock_that_is_set_ahead_is_not_followed_and_one_that_is_set_back_is(ahead_ms: int, seen_ms: int) -> None:
    wall = Wall()
    steady = NeverAheadClock(wall)
    assert steady.unix_ms() == 100_000
    wall.now_s, wall.ahead_ms = 160.0, ahead_ms
    assert steady.unix_ms() == seen_ms
    assert steady.monotonic_s() == 160.0
    wall.ahead_ms = 0
    assert steady.unix_ms() == 160_000, "right again"
