"""A repeating timer of the event loop that measures how late the loop calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dlog.io.clock import monotonic_s


class LatenessTimer:
    """Calls `on_due(late_s)`, each time `every_s` after the last call, from `start` to `stop`.

    late_s: delay of the call; whatever blocks the event loop delays this timer.
    """

    def __init__(self, every_s: float, on_due: Callable[[float], None]) -> None:
        self._every_s = every_s
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin on the running loop."""
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """Idempotent. May be called by `on_due`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._every_s, self._due, loop, monotonic_s() + self._every_s)

    def _due(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._on_due(monotonic_s() - due_s)
        if self._timer is not None:
            self._arm(loop)
