"""Waiting for what may be back in a moment, by a process that may be frozen while it waits.

The law of this room: time that passed while nothing ran here was no waiting. Who was frozen for long has lost contact
by that, and waits anew.
"""

from __future__ import annotations

import asyncio
from typing import Any

_STEPS = 8  # in which is waited; one that takes twice as long was a freeze


class Patience:
    """Waits `whole_s` in all, in steps."""

    def __init__(self, whole_s: float) -> None:
        self._whole_s = self._left_s = whole_s

    @property
    def is_over(self) -> bool:
        return self._left_s <= 0

    async def wait(self, awaited: asyncio.Future[Any]) -> None:
        """Return when it is done, or after a step."""
        clock, step_s = asyncio.get_running_loop().time, self._whole_s / _STEPS
        begun_s = clock()
        await asyncio.wait((awaited,), timeout=step_s)
        took_s = clock() - begun_s
        self._left_s = self._whole_s if took_s > 2 * step_s else self._left_s - took_s
