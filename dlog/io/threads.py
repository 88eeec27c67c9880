"""Workers for blocking calls, off the event loop: a port, so that a simulation can do the work without threads.

Invariants:
- Work never runs on the event loop and never touches objects that the loop owns; it reports through `to_loop`.
- An exception in a line's or pool's work is always passed to `on_failed`.
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

#: called with all items put since the last call; returns how many seconds to wait for more items before it is called
#: with none (0: do not wait, it has work left; None: wait without limit)
SerialWork = Callable[[list[T]], float | None]
OnFailed = Callable[[BaseException], None]


class Worker(Protocol):
    """Does work until it is stopped."""

    def stop(self) -> None:
        """Idempotent; does not wait."""
        ...

    async def ended(self) -> None:
        """After `stop`: wait until it has ended. Cancelling stops only the wait."""
        ...


class Line(Worker, Protocol[T]):
    """One worker that processes items in order. `stop` lets it finish the items put before; an error ends it."""

    def put(self, items: list[T]) -> None: ...


class WorkerPool(Worker, Protocol):
    """A few workers. `stop` drops work that has not started; an error ends only the work that raised it."""

    def submit(self, work: Callable[[*Ts], None], *args: *Ts) -> None: ...


class Threads(Protocol):
    """Makes workers. Belongs to one event loop."""

    def line(self, name: str, work: SerialWork[T], on_failed: OnFailed) -> Line[T]: ...

    def pool(self, name: str, count: int, on_failed: OnFailed) -> WorkerPool: ...

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run `work` off the event loop and return its result. Cancelling stops the wait, not the work."""
        ...

    def to_loop(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """From any work: have `callback` called on the event loop soon; never after the loop has ended."""
        ...


class RealThreads:
    """Threads of this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def line(self, name: str, work: SerialWork[T], on_failed: OnFailed) -> Line[T]:
        return _ThreadLine(name, work, on_failed)

    def pool(self, name: str, count: int, on_failed: OnFailed) -> WorkerPool:
        return _ThreadPool(name, count, on_failed)

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        return await asyncio.to_thread(work, *args)

    def to_loop(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        try:  # not `suppress`, which is slower: every group of journal writes calls this
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop has ended: no receiver is left
            return


class _ThreadLine:
    def __init__(self, name: str, work: SerialWork[Any], on_failed: OnFailed) -> None:
        self._work = work
        self._on_failed = on_failed
        self._queue: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._stopped = False  # the thread has seen the stop; used by the thread only
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
        except BaseException as error:  # noqa: BLE001 - any error ends this line and must be reported
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
                if queue.empty():  # reliable: this thread is the only consumer
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
