"""An async LRU cache bounded by bytes, with single-flight loading.

Invariants:
- cancelling a wait does not cancel the load; the loaded value is cached;
- a failed load is not cached;
- the least recently used value is evicted first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from dlog.stores.contract import ReaderClosedError


class Sized(Protocol):
    @property
    def size(self) -> int:
        """Bytes it takes in memory."""
        ...


K = TypeVar("K")
V = TypeVar("V", bound=Sized)
T = TypeVar("T")


class AsyncLruCache(Generic[K, V]):
    """An LRU cache, bounded by bytes, that loads a missing value once for all tasks that wait for it.

    Use it in `async with`: loads are cancelled at the end of the scope.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._loading: dict[K, asyncio.Future[V]] = {}
        self._tasks = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[Any], None] = {}
        self._is_open = False

    async def __aenter__(self) -> AsyncLruCache[K, V]:
        await self._tasks.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        for task in tuple(self._running):
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    @property
    def bytes(self) -> int:
        """Bytes of the cached values."""
        return self._bytes

    def start(self, work: Callable[[], Awaitable[T]], name: str) -> asyncio.Future[T]:
        """Run `work` in this scope; return its future. Raises ReaderClosedError."""
        if not self._is_open:
            raise ReaderClosedError("the store is closed, open another one")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_looked_at)
        task = self._tasks.create_task(_do(work, done), name=name)
        self._running[task] = None
        task.add_done_callback(partial(self._ended, done))
        return done

    def has(self, key: K) -> bool:
        """Whether the value is cached or being loaded. Does not count as a use."""
        return key in self._kept or key in self._loading

    def find(self, key: K) -> V | None:
        """Return the cached value, without waiting."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    async def get(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """Return the cached value, or load it. Raises the errors of `load`."""
        found = self.find(key)
        if found is not None:
            return found
        loading = self._begin(key, load)
        await asyncio.wait((loading,))
        return loading.result()

    def ahead(self, key: K, load: Callable[[], Awaitable[V]]) -> None:
        """Start loading a value that will be needed soon."""
        if key not in self._kept and self._is_open:
            self._begin(key, load)

    def keep(self, key: K, value: V) -> None:
        """Cache a value that the caller has read."""
        if key not in self._kept and key not in self._loading:
            self._keep(key, value)

    def _begin(self, key: K, load: Callable[[], Awaitable[V]]) -> asyncio.Future[V]:
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = self.start(partial(self._load, key, load), f"load {key}")
        return loading

    async def _load(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        try:
            value = await load()
            self._keep(key, value)
            return value
        finally:
            del self._loading[key]

    def _ended(self, done: asyncio.Future[Any], task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not done.done():  # cancelled, perhaps before it started
            done.set_exception(ReaderClosedError("the store is closed, open another one"))

    def _keep(self, key: K, value: V) -> None:
        self._kept[key] = value
        self._bytes += value.size
        while self._bytes > self.bytes_max and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].size


async def _do(work: Callable[[], Awaitable[T]], done: asyncio.Future[T]) -> None:
    """Run `work` and pass its result or error to `done`; other tasks of the scope go on."""
    try:
        made = await work()
    except Exception as error:  # noqa: BLE001 - the future passes it on
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(made)


def _looked_at(done: asyncio.Future[T]) -> None:
    """Do not log a failure that no caller awaits."""
    if not done.cancelled():
        done.exception()
