"""Waiting for what may be back in a moment, by a process that may be frozen while it waits.

The law of this room: time that passed while nothing ran here was no waiting. Who was frozen for long has lost contact
by that, and waits anew.
"""

from __future__ import annotations

import asyncio
import contextlib
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


class Stale:
    """That something is to be read again, and whether a reading that failed may rest before."""

    def __init__(self) -> None:
        self._due = asyncio.Event()
        self._hinted = asyncio.Event()  # since it was last taken

    def set(self) -> None:
        """It is to be read again."""
        self._due.set()

    def hint(self) -> None:
        """It has changed, or contact is back: also who rests reads now."""
        self._due.set()
        self._hinted.set()

    async def taken(self) -> None:
        """Return when a reading is due; what is set from now on makes another due."""
        await self._due.wait()
        self._due.clear()
        self._hinted.clear()

    async def rest(self, longest_s: float) -> None:
        """After a reading that failed: sleep for so long, or until a hint; then another is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._hinted.wait()
        self._due.set()
