"""Timeouts, back-off and refresh signals for a process that may be frozen (SIGSTOP, VM pause) while it waits.

Invariants:
- time in which this process was frozen is no waiting: a wait restarts after a freeze, which itself lost contact.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any

_STEPS = 8  # of a wait; a step that takes more than twice its time was a freeze


class FreezeTolerantTimeout:
    """A timeout of `whole_s`, waited for in steps."""

    def __init__(self, whole_s: float) -> None:
        self._whole_s = self._left_s = whole_s

    @property
    def is_over(self) -> bool:
        return self._left_s <= 0

    async def wait(self, awaited: asyncio.Future[Any]) -> None:
        """Return when `awaited` is done, or after one step."""
        clock, step_s = asyncio.get_running_loop().time, self._whole_s / _STEPS
        begun_s = clock()
        await asyncio.wait((awaited,), timeout=step_s)
        took_s = clock() - begun_s
        self._left_s = self._whole_s if took_s > 2 * step_s else self._left_s - took_s


class RetryBackoff:
    """Exponential back-off: doubles from first_s to max_s; each pause is shortened at random by up to half."""

    def __init__(self, first_s: float, max_s: float, rng: random.Random) -> None:
        self._first_s = self._next_s = first_s
        self._max_s = max_s
        self._rng = rng

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The next pause."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._max_s)
        return self._jittered(pause_s)

    def longest_s(self) -> float:
        """A pause of up to max_s, shortened at random like the others; for when no attempt can succeed soon."""
        return self._jittered(self._max_s)

    def _jittered(self, pause_s: float) -> float:
        return pause_s * (0.5 + self._rng.random() / 2)


class RefreshSignal:
    """Signals that something must be read again, and ends the pause after a failed read when there is reason to."""

    def __init__(self) -> None:
        self._due = asyncio.Event()
        self._hinted = asyncio.Event()  # since the last `taken`

    def set(self) -> None:
        """A read is due."""
        self._due.set()

    def hint(self) -> None:
        """It has changed: a read is due, and a pause ends."""
        self._due.set()
        self._hinted.set()

    def wake(self) -> None:
        """The cause of a failed read may be over: a pause ends."""
        self._hinted.set()

    async def taken(self) -> None:
        """Return when a read is due; a `set` from now on makes another due."""
        await self._due.wait()
        self._due.clear()
        self._hinted.clear()

    async def rest(self, longest_s: float) -> None:
        """After a failed read: sleep `longest_s`, or until `hint` or `wake`; then a read is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._hinted.wait()
        self._due.set()


class ChangeSignal:
    """Wakes all tasks that wait for the next change."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()  # replaced each time it is set

    def notify(self) -> None:
        """Something changed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def wait(self) -> Coroutine[Any, Any, object]:
        """Returns after the next `notify` from this call on, even if it is awaited later."""
        return self._changed.wait()
