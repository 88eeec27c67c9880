"""An actor: a machine with a life. One driver, one mailbox, one named task; started again with a fresh machine.

The law of this room: an actor file is composition (which machine, which peers, which limits) and holds no protocol.
An error leaves through `run` to the supervisor; nobody here swallows it, and nobody swallows a cancellation. Work ends
by message (`stop`), not by surviving a cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from dlog.errors import UnavailableError
from dlog.io.driver import Driver, Sink
from dlog.machine import Fact


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


@dataclass(frozen=True, slots=True)
class ActorStatistics:
    """What an actor did since it was made, over all its lives."""

    name: str
    lives: int
    facts: int
    batches: int
    refused: int  # requests turned away at admission
    waiting: int  # requests without an answer now


class Actor:
    """A supervised machine.

    build: makes a driver with a fresh machine; called once for each life. Requests may be asked before `run` has had
    its first turn: they wait in the mailbox.
    """

    def __init__(self, name: str, build: Callable[[], Driver]) -> None:
        self._name = name
        self._build = build
        self._driver = build()
        self._lives = 1
        self._before = (0, 0, 0)  # facts, batches, refused of former lives
        self._stopping = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def driver(self) -> Driver:
        """Of the present life."""
        return self._driver

    @property
    def statistics(self) -> ActorStatistics:
        driver, (facts, batches, refused) = self._driver, self._before
        return ActorStatistics(
            self._name,
            self._lives,
            facts + driver.facts,
            batches + driver.batches,
            refused + driver.refused,
            driver.waiting,
        )

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """See Driver.ask. Between two lives: raises ClosedError, nothing was taken."""
        return self._driver.ask(request)

    def submit(self, request: Any, sink: Sink) -> None:
        """See Driver.submit. Between two lives: raises ClosedError, nothing was taken."""
        self._driver.submit(request, sink)

    def post(self, fact: Fact) -> None:
        """A fact for the present life; dropped between two."""
        self._driver.post(fact)

    async def run(self) -> None:
        """One life. After a life that ended the next call begins another with a fresh machine."""
        if self._driver.ended:
            old = self._driver
            facts, batches, refused = self._before
            self._before = (facts + old.facts, batches + old.batches, refused + old.refused)
            self._driver = self._build()
            self._lives += 1
        if self._stopping:
            self._driver.stop()
        await self._driver.run()

    def stop(self) -> None:
        self._stopping = True
        self._driver.stop()


class Lifetime:
    """A scope in which tasks live, in the form of a TaskGroup that ends by message.

    Leaving the scope normally sends every resident its stop and waits; an error in any task ends all of them and
    leaves through the scope. Tasks are named.
    """

    def __init__(self, *, drain_s: float = 10.0) -> None:
        self._drain_s = drain_s
        self._group = asyncio.TaskGroup()
        self._stops: dict[asyncio.Task[Any], Callable[[], None]] = {}

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
        task.add_done_callback(lambda ended: self._stops.pop(ended, None))
        return task

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


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
