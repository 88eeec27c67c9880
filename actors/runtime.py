"""What lives: residents that a supervisor keeps, and scopes whose tasks end by message.

The law of this room: an actor file is composition (which machine, which peers, which limits) and holds no protocol.
An error leaves through `run` to the supervisor; nobody here swallows it, and nobody swallows a cancellation. Work ends
by message (`stop`), not by surviving a cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from dlog.errors import UnavailableError


class Resident(Protocol):
    """What a supervisor can keep alive."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None:
        """Live until stopped (returns), cancelled, or broken (raises). Called again after it raised."""
        ...

    def stop(self) -> None:
        """End by message: finish what was taken, take no more; idempotent."""
        ...


class Lifetime:
    """A scope in which tasks live, in the form of a TaskGroup that ends by message.

    Leaving the scope normally sends every resident its stop and waits; an error in a task ends all of them and leaves
    through the scope, unless it was started alone. Tasks are named.

    on_failure: hears which of those that were started alone has failed, and of what.
    """

    def __init__(self, *, drain_s: float = 10.0, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        self._drain_s = drain_s
        self._on_failure = on_failure
        self._group = asyncio.TaskGroup()
        self._stops: dict[asyncio.Task[Any], Callable[[], None]] = {}
        self._forget = partial(_without, self._stops)  # one for all

    async def __aenter__(self) -> Lifetime:
        await self._group.__aenter__()
        return self

    def start(
        self, work: Coroutine[Any, Any, Any], *, name: str, stop: Callable[[], None] | None = None
    ) -> asyncio.Task[Any]:
        """Start a task that lives no longer than the scope. stop: asks it to end; without one it is cancelled.

        Raises UnavailableError when the scope is being left: what came in at the last moment is not begun.
        """
        try:
            task = self._group.create_task(work, name=name)
        except RuntimeError:
            work.close()
            raise UnavailableError("this process ends; ask another", outcome_unknown=False) from None
        self._stops[task] = stop if stop is not None else partial(_cancel, task)
        task.add_done_callback(self._forget)
        return task

    def start_alone(
        self, work: Coroutine[Any, Any, Any], *, name: str, stop: Callable[[], None] | None = None
    ) -> asyncio.Task[Any]:
        """As `start`, for what is done for one stream, reader or connection: an error in it ends nothing else."""
        try:
            task = self.start(self._contain(work, name), name=name, stop=stop)
        except UnavailableError:
            work.close()
            raise
        task.add_done_callback(lambda _: work.close())  # one that is cancelled before its first step has not begun it
        return task

    async def _contain(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it is told, and everything else goes on
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
