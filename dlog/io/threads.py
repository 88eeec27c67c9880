"""Where work that blocks is done, so that the loop goes on: threads, or whatever stands in for them.

The law of this file: work never runs on the loop and never touches what the loop owns; what it has to say goes through
`to_loop`. An error that leaves work is told to `on_failed`, whoever waits or not. A port, so that a simulation can do
the same work in its own time without a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: takes all that was put since it was last called; returns for how many seconds to wait for more before it is called
#: with nothing (0: at once, it has something left; None: as long as it takes)
LineWork = Callable[[list[T]], float | None]
OnFailed = Callable[[BaseException], None]


class Worker(Protocol):
    """Something that works until it is stopped."""

    def stop(self) -> None:
        """Idempotent; does not wait."""
        ...

    async def ended(self) -> None:
        """After `stop`: wait until it has ended. Cancelling stops the wait only."""
        ...


class Line(Worker, Protocol[T]):
    """One worker that does one thing after another. `stop` lets it finish what was put; an error ends it."""

    def put(self, items: list[T]) -> None: ...


class Pool(Worker, Protocol):
    """A few workers. `stop` drops what has not begun; an error ends nothing but the work it came from."""

    def submit(self, work: Callable[[*Ts], None], *args: *Ts) -> None: ...


class Threads(Protocol):
    """Makes workers. Belongs to one loop."""

    def line(self, name: str, work: LineWork[T], on_failed: OnFailed) -> Line[T]: ...

    def pool(self, name: str, count: int, on_failed: OnFailed) -> Pool: ...

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Do it away from the loop and return what it returns. Cancelling stops the wait, not the work."""
        ...

    def to_loop(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """From any work: call it on the loop, soon; after the loop has ended never."""
        ...


class RealThreads:
    """Threads of this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def line(self, name: str, work: LineWork[T], on_failed: OnFailed) -> Line[T]:
        return _ThreadLine(name, work, on_failed)

    def pool(self, name: str, count: int, on_failed: OnFailed) -> Pool:
        return _ThreadPool(name, count, on_failed)

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        return await asyncio.to_thread(work, *args)

    def to_loop(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        try:  # not `suppress`: each group of a journal passes here
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop has ended: nobody is left to be told
            return


class _ThreadLine:
    def __init__(self, name: str, work: LineWork[Any], on_failed: OnFailed) -> None:
        self._work = work
        self._on_failed = on_failed
        self._queue: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._stopped = False  # the thread has seen it; its own
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, items: list[Any]) -> None:
        self._queue.put(items)

    def stop(self) -> None:
        self._queue.put(None)

    async def ended(self) -> None:
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        wait_s: float | None = None
        try:
            while True:
                items = self._take(wait_s)
                if self._stopped and not items and wait_s != 0:
                    return
                wait_s = self._work(items)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must be heard that this line has ended
            self._on_failed(error)

    def _take(self, wait_s: float | None) -> list[Any]:
        items: list[Any] = []
        if self._stopped:
            return items
        try:
            queue = self._queue
            more = queue.get(wait_s != 0, wait_s)
            while more is not None:
                items += more
                if queue.empty():  # nobody else takes from it
                    return items
                more = queue.get_nowait()
        except Empty:
            return items
        self._stopped = True
        return items


class _ThreadPool:
    def __init__(self, name: str, count: int, on_failed: OnFailed) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._on_failed = on_failed

    def submit(self, work: Callable[[*Ts], None], *args: *Ts) -> None:
        self._pool.submit(work, *args).add_done_callback(self._check)

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def ended(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)

    def _check(self, future: Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._on_failed(error)
