"""Supervises actors: each failed one is restarted alone, after a back-off.

Invariants:
- an actor whose `run` returns has ended on purpose;
- an actor that raises, AssertionError included, is restarted after a back-off with jitter, however often; the failure
  is reported and the other actors go on.

An actor serves one stream, so its failure is caused by that stream: if the process ended for it, the stream would move
to the next process and end that one too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors.runtime import Resident, TaskScope
from dlog.errors import ClosedError
from dlog.events import ActorFailed, Event
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartOptions:
    """Back-off before a failed actor is restarted."""

    backoff_min_s: float = option(0.05, sim=(0.0, 1.0))
    backoff_max_s: float = option(5.0, sim=(1.0, 10.0))
    window_s: float = option(60.0, sim=(1.0, 100.0))  # older failures do not count

    def backoff_s(self, failures: int, rng: random.Random) -> float:
        """Delay before the restart after the `failures`-th failure in the window: doubling, half of it jitter."""
        ceiling = min(self.backoff_max_s, self.backoff_min_s * float(2 ** (failures - 1)))
        return ceiling * (0.5 + 0.5 * rng.random())


class Supervisor:
    """Keeps actors running: `async with Supervisor(...) as supervisor: supervisor.start(actor)`.

    Leaving the scope stops every actor by message, and cancels it after `drain_s`.
    """

    def __init__(
        self,
        name: str,
        *,
        rng: random.Random,
        options: RestartOptions | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
        on_failure: Callable[[BaseException], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
        drain_s: float = 10.0,
    ) -> None:
        self.name = name
        self._rng = rng
        self._options = options or RestartOptions()
        self._on_event = on_event
        self._on_failure = on_failure
        self._clock = clock
        self._tasks = TaskScope(drain_s=drain_s)
        self._children: dict[str, _Child] = {}

    @property
    def children(self) -> tuple[str, ...]:
        """Names of actors that run or wait for their restart."""
        return tuple(self._children)

    async def __aenter__(self) -> Supervisor:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exit_: Any) -> None:
        await self._tasks.__aexit__(*exit_)

    def start(self, resident: Resident) -> OneTimeEvent:
        """Keep `resident` running; the returned Ending is set when it has ended for good.

        Raises ClosedError if an actor of its name runs.
        """
        if resident.name in self._children:
            raise ClosedError(f"an actor of this name is already running: actor={resident.name}")
        child = _Child(resident, self._children)
        self._children[resident.name] = child
        task = self._tasks.start(self._keep(child), name=resident.name, stop=child.stop)
        task.add_done_callback(child.bury)  # also if the task is cancelled before its first step
        return child.ended

    def stop(self, name: str) -> None:
        """Stop one actor by message; does nothing if it has ended."""
        child = self._children.get(name)
        if child is not None:
            child.stop()

    async def _keep(self, child: _Child) -> None:
        failures: list[float] = []
        while not child.stopping:
            try:
                await child.resident.run()
                return
            except Exception as error:  # noqa: BLE001 - any error concerns this actor only
                now_s = self._clock.monotonic_s()
                failures.append(now_s)
                while failures[0] <= now_s - self._options.window_s:
                    del failures[0]
                self._on_failure(error)
                delay_s = self._options.backoff_s(len(failures), self._rng)
                self._on_event(ActorFailed(child.resident.name, repr(error), round(delay_s, 3)))
            await child.rest(delay_s)


class OneTimeEvent:
    """A one-time event that allocates an asyncio.Event only when waited for."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait until it is set. Cancelling stops the wait only."""
        if not self._is_set:
            self._event = self._event or asyncio.Event()
            await self._event.wait()


class _Child:
    """A supervised actor. family: the supervisor's table, which lists it until it ends."""

    __slots__ = ("_family", "_rested", "ended", "resident", "stopping")

    def __init__(self, resident: Resident, family: dict[str, _Child]) -> None:
        self._family = family
        self.resident = resident
        self.stopping = False
        self.ended = OneTimeEvent()
        self._rested: asyncio.Event | None = None  # set only during a back-off

    def stop(self) -> None:
        self.stopping = True
        if self._rested is not None:
            self._rested.set()
        self.resident.stop()

    def bury(self, _: asyncio.Task[None]) -> None:
        del self._family[self.resident.name]
        self.ended.set()

    async def rest(self, delay_s: float) -> None:
        """Wait `delay_s` before the restart, less if stopped."""
        if self.stopping:
            return
        self._rested = asyncio.Event()
        try:
            async with asyncio.timeout(delay_s):
                await self._rested.wait()
        except TimeoutError:
            return
        finally:
            self._rested = None
