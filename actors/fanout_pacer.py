"""Limits how often tail readers are notified: the more readers one notification reached, the later the next one.

What is confirmed between two notifications goes out in one piece, so with many readers a delivery holds more instead
of costing more; a single reader hardly waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class FanoutPacer:
    """Schedules notifications. turn: notifies the readers, calls `cancel`, and reports their number by `took`.

    per_reader_s: pause before the next notification, per reader notified; max_s: longest pause.
    """

    def __init__(self, turn: Callable[[], None], per_reader_s: float, max_s: float) -> None:
        self._turn = turn
        self._per_reader_s = per_reader_s
        self._max_s = max_s
        self._not_before_s = 0.0
        self._planned: asyncio.TimerHandle | None = None

    @property
    def must_wait(self) -> bool:
        """Whether the pause is still running."""
        return self._wait_s() > 0

    def ask(self, *, at_once: bool = False) -> None:
        """Notify now, or once the pause is over."""
        wait_s = 0.0 if at_once else self._wait_s()
        if wait_s <= 0:
            self._turn()
        elif self._planned is None:
            self._planned = asyncio.get_running_loop().call_later(wait_s, self._turn)

    def took(self, count: int) -> None:
        """`count` readers were notified now."""
        pause_s = min(count * self._per_reader_s, self._max_s)
        self._not_before_s = max(self._not_before_s, asyncio.get_running_loop().time() + pause_s)

    def cancel(self) -> None:
        """Cancel the planned notification."""
        planned, self._planned = self._planned, None
        if planned is not None:
            planned.cancel()

    def _wait_s(self) -> float:
        return self._not_before_s - asyncio.get_running_loop().time()
