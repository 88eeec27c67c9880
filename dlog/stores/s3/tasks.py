"""Background work of the store `s3`: tasks of one scope, with names, which end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

from dlog.errors import DLogError
from dlog.events import Event, WorkFailed
from dlog.stores.contract import ReaderClosedError


class Tasks:
    """A scope of tasks. Use it in `async with`: they are cancelled at its end.

    on_event: gets WorkFailed for a task that ends with an error; a typed one is expected and not reported.
    """

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self.is_open = False

    async def __aenter__(self) -> Tasks:
        await self._group.__aenter__()
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False
        for task in tuple(self._running):
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def check_open(self) -> None:
        """Raises ReaderClosedError after the end."""
        if not self.is_open:
            raise ReaderClosedError("the store is closed, open another one")

    def start(self, work: Callable[[], Awaitable[object]], name: str) -> asyncio.Task[None]:
        """Run work in a task. Raises ReaderClosedError after the end."""
        self.check_open()
        task = self._group.create_task(self._run(work, name), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _run(self, work: Callable[[], Awaitable[object]], name: str) -> None:
        try:
            await work()
        except DLogError:
            pass
        except Exception as error:  # noqa: BLE001 - one piece of work must not end all others
            self._on_event(WorkFailed(name, repr(error)))
