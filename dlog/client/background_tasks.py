"""The task group of a client's background tasks, which runs in a task of its own.

A client may be opened in one task and closed in another (start and stop of a web application), and an internal error
must not cancel the user's task. Such an error is reported by `on_end`, which fails all pending calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """Runs background tasks: `start`, any number of `spawn`, `stop`. Calls `on_end(error)` once if a task fails."""

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
        """Run `work` until it ends or `stop` is called. After that, `work` is closed without running."""
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
        """Cancel all tasks and wait until they have ended. Idempotent."""
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
        except* Exception as errors:  # noqa: BLE001 - an internal error; no caller awaits this task
            self._on_end(errors)
        finally:
            self._group = None
            self._on_end = _nothing  # breaks a reference cycle with the client


def _nothing(error: BaseException) -> None:
    pass
