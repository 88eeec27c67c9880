"""The workers of a bookie without a thread: each job is one event of the loop, a drawn time after it began.

Invariants:
- A job runs as a whole at the instant at which it ends, so nothing sees it half done; until then its worker does
  nothing else.
- The effect of a crash in the middle is made when the crash comes: some jobs that were running are complete, one has
  done a first part of its disk operations, the rest have not begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

from dlog.io.threads import Line, OnFailed, SerialWork, WorkerPool
from tests.simulation.disk import Died, Mount

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class Latency:
    """How long a job takes, in seconds. `factor` makes the disk slow; `stalls` is the share that hangs.

    At most `longest_s`, also with both: a job that began on a slow disk ends soon after the disk is well.
    """

    rng: random.Random
    mean_s: dict[str, float] = field(default_factory=lambda: {"journal": 0.0003, "read": 0.0002, "flush": 0.01})
    factor: float = 1.0
    stalls: float = 0.0005
    stall_s: float = 0.5
    longest_s: float = 20.0

    def draw(self, name: str) -> float:
        took_s = self.mean_s.get(name, 0.001) * (0.5 + self.rng.expovariate(2.0))
        if self.rng.random() < self.stalls:
            took_s += self.rng.uniform(0.1, 1.0) * self.stall_s
        return min(took_s * self.factor, self.longest_s)


class SimulatedThreads:
    """The workers of one process. loop: the event loop it runs on; mount: its disk, for crashes in the middle of a
    job."""

    def __init__(self, loop: asyncio.AbstractEventLoop, mount: Mount, latency: Latency) -> None:
        self._loop = loop
        self._mount = mount
        self._latency = latency
        self._dead = False
        self._running: list[_Job] = []  # in the order they began

    def line(self, name: str, work: SerialWork[T], on_failed: OnFailed) -> Line[T]:
        return _SimulatedLine(self, name, work, on_failed)

    def pool(self, name: str, count: int, on_failed: OnFailed) -> WorkerPool:
        return _SimulatedPool(self, name, count, on_failed)

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        done: asyncio.Future[T] = self._loop.create_future()
        results: list[T] = []

        def tell(error: BaseException | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(results[0])

        self.begin("run", lambda: results.append(work(*args)), tell)
        return await done

    def to_loop(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        if not self._dead:
            self._loop.call_soon(callback, *args)

    def begin(self, name: str, work: Callable[[], None], tell: Callable[[BaseException | None], None]) -> None:
        """Begin a job on a free worker; `tell` is called when it is done, with its error or None."""
        job = _Job(work, tell)
        self._running.append(job)
        self._loop.call_later(self._latency.draw(name), self._finish, job)

    def after(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)

    def die(self, rng: random.Random) -> None:
        """End the process now. Call it before its mount and its tasks are declared dead."""
        self._dead = True
        jobs = [job for job in self._running if rng.random() < 0.7]
        rng.shuffle(jobs)
        self._running.clear()
        for job in jobs[1:]:
            _perform_dying(job)
        if jobs:
            self._mount.left = rng.randint(0, 12)
            _perform_dying(jobs[0])

    def _finish(self, job: _Job) -> None:
        if self._dead:
            return
        self._running.remove(job)
        try:
            job.work()
        except Died:
            raise
        except BaseException as error:  # noqa: BLE001 - as in a thread: any error is passed on
            job.tell(error)
        else:
            job.tell(None)


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[], None]
    tell: Callable[[BaseException | None], None]


def _perform_dying(job: _Job) -> None:
    with contextlib.suppress(Died, Exception):  # nobody waits for its result
        job.work()


class _SimulatedLine:
    def __init__(self, threads: SimulatedThreads, name: str, work: SerialWork[Any], on_failed: OnFailed) -> None:
        self._threads = threads
        self._name = name
        self._work = work
        self._on_failed = on_failed
        self._waiting: list[Any] = []
        self._wait_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._stopped = False
        self._over = asyncio.Event()

    def put(self, items: list[Any]) -> None:
        if not self._stopped and not self._over.is_set():
            self._waiting += items
            self._go_on()

    def stop(self) -> None:
        self._stopped = True
        self._go_on()

    async def ended(self) -> None:
        await self._over.wait()

    def _go_on(self) -> None:
        if self._busy or self._over.is_set():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting or self._wait_s == 0:
            self._begin()
        elif self._stopped:
            self._over.set()
        elif self._wait_s is not None:
            self._timer = self._threads.after(self._wait_s, self._begin)

    def _begin(self) -> None:
        self._busy = True
        self._threads.begin(self._name, self._perform, self._performed)

    def _perform(self) -> None:
        items, self._waiting = self._waiting, []
        self._wait_s = self._work(items)

    def _performed(self, error: BaseException | None) -> None:
        self._busy = False
        if error is not None:
            self._over.set()
            self._on_failed(error)
        self._go_on()


class _SimulatedPool:
    def __init__(self, threads: SimulatedThreads, name: str, count: int, on_failed: OnFailed) -> None:
        self._threads = threads
        self._name = name
        self._free = count
        self._count = count
        self._on_failed = on_failed
        self._waiting: deque[Callable[[], None]] = deque()
        self._stopped = False
        self._over = asyncio.Event()

    def submit(self, work: Callable[[*Ts], None], *args: *Ts) -> None:
        if self._stopped:
            raise RuntimeError("work for a pool that was stopped")
        self._waiting.append(lambda: work(*args))
        self._go_on()

    def stop(self) -> None:
        self._stopped = True
        self._waiting.clear()
        self._go_on()

    async def ended(self) -> None:
        await self._over.wait()

    def _go_on(self) -> None:
        while self._waiting and self._free:
            self._free -= 1
            self._threads.begin(self._name, self._waiting.popleft(), self._performed)
        if self._stopped and self._free == self._count:
            self._over.set()

    def _performed(self, error: BaseException | None) -> None:
        self._free += 1
        if error is not None:
            self._on_failed(error)
        self._go_on()
