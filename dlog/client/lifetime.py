"""The life of what a client keeps running: one task group, owned by the client and not by whoever opened it.

A client may be opened in one task and closed in another (a web application's start and stop), and a defect inside it
must not cancel its user's task. So the group lives in a task of its own; what fails there is told to everybody who
waits, by `on_end`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Lifetime:
    """`start`, then `spawn` as often as needed, then `stop`. `on_end(error)` is called once if it ends by an error."""

    def __init__(self, name: str, on_end: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_end = on_end
        self._group: asyncio.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Return once `spawn` may be called."""
        started = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._live(started), name=self._name)
        await started.wait()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` until it ends or the lifetime does."""
        if self._group is None:
            work.close()
            return
        try:
            task = self._group.create_task(work, name=name)
        except RuntimeError:  # it is ending
            work.close()
            return
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Cancel what runs and wait until it has ended. Idempotent."""
        self._stop.set()
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _live(self, started: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                started.set()
                await self._stop.wait()
                self._group = None
                for task in tuple(self._running):
                    task.cancel()
        except* Exception as errors:  # noqa: BLE001 - a defect: told to all who wait, not to a task nobody awaits
            self._on_end(errors)
        finally:
            self._group = None
            self._on_end = _nothing  # it refers to who owns this


def _nothing(error: BaseException) -> None:
    pass
