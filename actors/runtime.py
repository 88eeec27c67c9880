"""Actor interface (`Resident`) and task scopes that end by message (`TaskScope`).

Invariants:
- an actor module composes a state machine, peers and limits, and holds no protocol logic;
- an error leaves through `run` to the supervisor; errors and cancellations are not swallowed;
- work ends by message (`stop`), not by surviving a cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from dlog.errors import UnavailableError


class Resident(Protocol):
    """An actor that a supervisor keeps running."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None:
        """Run until stopped (returns), cancelled or failed (raises). Called again after it raised."""
        ...

    def stop(self) -> None:
        """Finish accepted work, accept no more, then let `run` return; idempotent."""
        ...


class TaskScope:
    """A TaskGroup that ends its tasks by message.

    Leaving the scope normally calls every task's `stop` and waits `drain_s`, then cancels. An error in a task ends all
    tasks and leaves through the scope, unless it was started by `start_alone`. Tasks are named.

    on_failure: called with the name and error of a failed `start_alone` task.
    """

    def __init__(self, *, drain_s: float = 10.0, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        self._drain_s = drain_s
        self._on_failure = on_failure
        self._group = asyncio.TaskGroup()
        self._stops: dict[asyncio.Task[Any], Callable[[], None]] = {}
        self._forget = partial(_without, self._stops)  # shared by all tasks

    async def __aenter__(self) -> TaskScope:
        await self._group.__aenter__()
        return self

    def start(
        self, work: Coroutine[Any, Any, Any], *, name: str, stop: Callable[[], None] | None = None
    ) -> asyncio.Task[Any]:
        """Start a task that ends with the scope. stop: asks it to end; without it the task is cancelled.

        Raises UnavailableError, without running `work`, while the scope is being left.
        """
        try:
            task = self._group.create_task(work, name=name)
        except RuntimeError:
            work.close()
            raise UnavailableError("this process is shutting down, ask another one", outcome_unknown=False) from None
        self._stops[task] = stop if stop is not None else partial(_cancel, task)
        task.add_done_callback(self._forget)
        return task

    def start_alone(
        self, work: Coroutine[Any, Any, Any], *, name: str, stop: Callable[[], None] | None = None
    ) -> asyncio.Task[Any]:
        """As `start`, for work of one stream, reader or connection: its error ends no other task."""
        try:
            task = self.start(self._contain(work, name), name=name, stop=stop)
        except UnavailableError:
            work.close()
            raise
        task.add_done_callback(lambda _: work.close())  # needed if cancelled before the first step
        return task

    async def _contain(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - reported to on_failure; the other tasks go on
            if self._on_failure is not None:
                self._on_failure(name, error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._group.__aexit__(kind, error, trace)
            return
        for stop in list(self._stops.values()):
            stop()
        timer = asyncio.get_running_loop().call_later(self._drain_s, self._cancel_rest)
        try:
            await self._group.__aexit__(None, None, None)
        finally:
            timer.cancel()

    def _cancel_rest(self) -> None:
        for task in list(self._stops):
            task.cancel()


def _without(stops: dict[asyncio.Task[Any], Callable[[], None]], ended: asyncio.Task[Any]) -> None:
    stops.pop(ended, None)


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
