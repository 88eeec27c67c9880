"""When many who wait at a tail are told of it: in turns, each the later the more were told in the one before.

The law of this room: what is confirmed between two turns goes to everybody in one piece, so that a delivery to many
holds more instead of costing more; who is alone hardly waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """turn: tells those whose wait is over, and says by `took` how many that were; it cancels what is planned.

    told_s: for each who was told, before the next turn; max_s: but no longer than that.
    """

    def __init__(self, turn: Callable[[], None], told_s: float, max_s: float) -> None:
        self._turn = turn
        self._told_s = told_s
        self._max_s = max_s
        self._not_before_s = 0.0
        self._planned: asyncio.TimerHandle | None = None

    @property
    def must_wait(self) -> bool:
        """Whether the next turn has not come yet."""
        return self._wait_s() > 0

    def ask(self, *, at_once: bool = False) -> None:
        """There is something to tell: now, or when the next turn comes."""
        wait_s = 0.0 if at_once else self._wait_s()
        if wait_s <= 0:
            self._turn()
        elif self._planned is None:
            self._planned = asyncio.get_running_loop().call_later(wait_s, self._turn)

    def took(self, count: int) -> None:
        """So many were told now."""
        pause_s = min(count * self._told_s, self._max_s)
        self._not_before_s = max(self._not_before_s, asyncio.get_running_loop().time() + pause_s)

    def cancel(self) -> None:
        """No turn is planned any more."""
        planned, self._planned = self._planned, None
        if planned is not None:
            planned.cancel()

    def _wait_s(self) -> float:
        return self._not_before_s - asyncio.get_running_loop().time()
