"""Waiting for what may be back in a moment, by a process that may be frozen while it waits.

The law of this room: time that passed while nothing ran here was no waiting. Who was frozen for long has lost contact
by that, and waits anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
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


class Pauses:
    """Between a try that failed and the next: twice as long each time, from first_s to max_s; by chance up to half of
    it less."""

    def __init__(self, first_s: float, max_s: float, rng: random.Random) -> None:
        self._first_s = self._next_s = first_s
        self._max_s = max_s
        self._rng = rng

    def reset(self) -> None:
        """A try went well."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """How long to pause now."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._max_s)
        return self._jittered(pause_s)

    def longest_s(self) -> float:
        """A pause where no try is expected to go better soon."""
        return self._jittered(self._max_s)

    def _jittered(self, pause_s: float) -> float:
        return pause_s * (0.5 + self._rng.random() / 2)


class Stale:
    """That something is to be read again, and whether a reading that failed may rest before."""

    def __init__(self) -> None:
        self._due = asyncio.Event()
        self._hinted = asyncio.Event()  # since it was last taken

    def set(self) -> None:
        """It is to be read again."""
        self._due.set()

    def hint(self) -> None:
        """It has changed: also who rests reads now."""
        self._due.set()
        self._hinted.set()

    def wake(self) -> None:
        """What made a reading fail may be over: who rests reads now."""
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
