"""Bounds how many objects a process creates in a second, which is what an object storage charges for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PutBudget:
    """A rate that may be saved up for one second.

    now_s: a clock that never goes back; None: the running loop's.
    """

    def __init__(self, per_s: float, now_s: Callable[[], float] | None = None) -> None:
        self._each_s = 1.0 / per_s
        self._now_s = now_s
        self._used_up_to_s = float("-inf")  # when all that was taken is paid for

    @property
    def delay_s(self) -> float:
        """How long `take` would wait now."""
        return max(0.0, self._used_up_to_s - self._now())

    def take_nowait(self) -> float:
        """Take one; it may be used after the returned delay in seconds. Those that do not wait delay later ones."""
        now_s = self._now()
        delay_s = max(0.0, self._used_up_to_s - now_s)
        self._used_up_to_s = max(self._used_up_to_s, now_s - 1.0) + self._each_s
        return delay_s

    async def take(self) -> None:
        """Wait for one. Cancelling the wait does not give it back."""
        delay_s = self.take_nowait()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() if self._now_s is None else self._now_s()
