"""A repeating timer reports how late it was, and nothing after it was stopped."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dlog.io.lateness_timer import LatenessTimer


class Loop:
    """Holds the one callback that is scheduled."""

    def __init__(self) -> None:
        self.planned: list[tuple[float, Any, tuple[Any, ...]]] = []

    def call_later(self, delay_s: float, callback: Any, *args: Any) -> Loop:
        self.planned.append((delay_s, callback, args))
        return self

    def cancel(self) -> None:
        self.planned.clear()

    def run_planned(self) -> None:
        [(_, callback, args)] = self.planned
        self.planned.clear()
        callback(*args)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    told = [1000.0]
    monkeypatch.setattr("dlog.io.lateness_timer.monotonic_s", lambda: told[0])
    return told


def started(timer: LatenessTimer) -> Loop:
    """The loop on which it was started; it runs scheduled callbacks when the test says so."""
    made, running = Loop(), asyncio._get_running_loop()
    asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, made))
    try:
        timer.start()
    finally:
        asyncio._set_running_loop(running)
    return made


def test_it_tells_how_late_each_call_is(now_s: list[float]) -> None:
    late: list[float] = []
    loop = started(LatenessTimer(0.5, late.append))
    for step_s in (0.5, 0.75, 2.5):
        assert [delay_s for delay_s, *_ in loop.planned] == [0.5]
        now_s[0] += step_s
        loop.run_planned()
    assert late == [0.0, 0.25, 2.0], "each from the call before, not from the first"


def test_nothing_is_planned_once_it_was_stopped(now_s: list[float]) -> None:
    timer = LatenessTimer(0.5, lambda late_s: None)
    loop = started(timer)
    timer.stop()
    timer.stop()
    assert not loop.planned


def test_it_may_be_stopped_by_what_it_calls(now_s: list[float]) -> None:
    timer = LatenessTimer(0.5, lambda late_s: timer.stop())
    loop = started(timer)
    loop.run_planned()
    assert not loop.planned
