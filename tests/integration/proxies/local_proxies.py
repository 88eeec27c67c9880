"""Proxies in the test's own process, on metadata and segments in memory: real sockets, real machines, no disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from dlog.events import Event
from dlog.model.location import DEFAULT_LOCATION
from proxies.read.options import ReadOptions
from proxies.read.server import ReadProxy
from proxies.write.object_controllers import ObjectStorageAccess
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy
from tests.memory_metadata import MemoryMetadata
from tests.memory_store import MemoryStore, MemoryStoreState

START_S = 90.0
E = TypeVar("E", bound=Event)


class Events(list[Event]):
    """The events of a proxy, in order; a test may wait for more."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def tell(self, event: Event) -> None:
        self.append(event)
        self._news.set()

    async def of(self, kind: type[E], count: int = 1) -> list[E]:
        """The events of a kind, once there are this many."""
        async with asyncio.timeout(START_S):
            while len(found := [event for event in self if isinstance(event, kind)]) < count:
                self._news.clear()
                await self._news.wait()
        return found


class Running:
    """A proxy and the task in which it runs."""

    def __init__(self, proxy: WriteProxy | ReadProxy, events: Events, tasks: asyncio.TaskGroup) -> None:
        self.proxy = proxy
        self.address = ""
        self.events = events
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        self.task = tasks.create_task(self._live(), name="proxy under test")

    async def started(self) -> Running:
        async with asyncio.timeout(START_S):
            await self._ready.wait()
        return self

    async def drain(self) -> None:
        """Stop it as SIGTERM does."""
        self._stop.set()
        await asyncio.wait((self.task,))

    async def kill(self) -> None:
        """Stop it as nearly like SIGKILL as a task can: nothing is handed over, connections are cut."""
        self.task.cancel()
        await asyncio.wait((self.task,))

    async def _live(self) -> None:
        await self.proxy.run(self._stop, self._is_ready)

    def _is_ready(self, name: str, address: str) -> None:
        self.address = address
        self._ready.set()


class LocalProxies:
    """The shared state of a cluster, and the proxies on it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.metadata = MemoryMetadata()
        self.state = MemoryStoreState()
        self.tasks = tasks
        self.running: list[Running] = []
        self.object_storage: Callable[[], ObjectStorageAccess] | None = None  # of write proxies that are started
        self.other_stores: dict[str, Any] = {}  # by name, for proxies that are started from now on

    async def write_proxy(self, location: Any = DEFAULT_LOCATION, **options: Any) -> Running:
        events = Events()
        proxy = WriteProxy(
            WriteOptions(**options),
            self.metadata,
            self._stores(),
            location=location,
            object_storage=None if self.object_storage is None else self.object_storage(),
            on_event=events.tell,
            rng=random.Random(1),
        )
        return await self._start(proxy, events)

    async def read_proxy(self, metadata: Any = None, location: Any = DEFAULT_LOCATION, **options: Any) -> Running:
        """metadata: the view of this proxy alone."""
        events = Events()
        metadata = self.metadata if metadata is None else metadata
        proxy = ReadProxy(
            ReadOptions(**options),
            metadata,
            self._stores(),
            location=location,
            on_event=events.tell,
            rng=random.Random(1),
        )
        return await self._start(proxy, events)

    async def _start(self, proxy: WriteProxy | ReadProxy, events: Events) -> Running:
        running = Running(proxy, events, self.tasks)
        self.running.append(running)
        return await running.started()

    def _stores(self) -> dict[str, Any]:
        return {"memory": MemoryStore(self.state), **self.other_stores}


@asynccontextmanager
async def local() -> AsyncIterator[LocalProxies]:
    """A `LocalProxies` whose proxies end with the scope."""
    async with asyncio.TaskGroup() as tasks:
        built = LocalProxies(tasks)
        try:
            yield built
        finally:
            for running in built.running:
                running.task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)  # connections that were being accepted are aborted in the next turns
