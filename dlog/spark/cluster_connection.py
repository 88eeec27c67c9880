"""Connects synchronous code to a cluster: ZooKeeper and bookies, on an event loop in a thread of its own.

Invariants:
- a process has one such thread for each cluster, however many callers it has; the child of a fork opens its own;
- connections stay open for `IDLE_S` after their last use, since Spark soon asks again;
- a blocked caller can be interrupted; its request is cancelled then;
- a blocking call in that thread itself raises InvalidRequestError.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import random
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import uvloop

from dlog.client.check import check_thread
from dlog.client.operation_sender import operation_sender
from dlog.errors import DLogError, InvalidRequestError, Remedy
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
from dlog.io.s3_store import S3Access
from dlog.io.stores import StoresOptions, load_stores, open_stores
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.stores.contract import MisconfiguredError, SegmentStore
from dlog.stores.file.store import FileStore
from dlog.stores.kafka.store import KafkaStore
from dlog.stores.s3.options import NAME as S3
from dlog.stores.s3_direct.options import NAME as S3_DIRECT

IDLE_S = 10.0
AHEAD = 2  # items that are produced before the first is consumed
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 2.0
END_S = 2.0

T = TypeVar("T")
R = TypeVar("R")

#: what to do if a store is not configured here
_HINTS = {
    FileStore.name: "set file.directory (or DLOG_FILE_DIRECTORY)",
    KafkaStore.name: "set kafka.topics (or DLOG_KAFKA_TOPICS)",
    S3_DIRECT: "set objects.root (or DLOG_OBJECTS_ROOT)",
    S3: "set objects.root (or DLOG_OBJECTS_ROOT)",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Open connections to a cluster."""

    metadata: ZooKeeperMetadata
    ledgers: Ledgers
    stores: Mapping[str, SegmentStore]

    def store(self, name: str) -> SegmentStore:
        """The store of a segment. Raises MisconfiguredError if it is not configured here."""
        found = self.stores.get(name)
        if found is None:
            hint = _HINTS.get(name, "use `dlog read`")
            raise MisconfiguredError(f"segments in this store cannot be read here, {hint}: store={name}")
        return found

    def store_for_stages(self, name: str) -> SegmentStore:
        """The store for stages of a stream that writes to store `name`: that one, else the first that takes stages and
        has room for a segment with its default settings. Raises MisconfiguredError."""
        own = self.store(name)
        if own.capabilities.takes_stages:
            return own
        why = ""
        for store in self.stores.values():
            if store.capabilities.takes_stages and store.capabilities.is_written:
                try:
                    store.check_capacity(())
                except InvalidRequestError as error:
                    why = why or f" ({error.message})"
                else:
                    return store
        known = ", ".join(self.stores)
        raise MisconfiguredError(
            f"a sink cannot write here, none of the stores takes stages, {_HINTS[FileStore.name]} or start bookies: "
            f"stores={known}{why}"
        )


Work = Callable[[Cluster], Awaitable[T]]


class _Over(NamedTuple):
    """End of a sequence of items. error: why, unless it ended regularly."""

    error: BaseException | None


async def with_retries(work: Callable[[], Awaitable[T]], retries: int) -> T:
    """Run `work`; retry what may succeed later, with back-off. Raises the last failure."""
    pause_s = PAUSE_FIRST_S
    while True:
        try:
            return await work()
        except (DLogError, TimeoutError) as error:
            if retries <= 0 or (isinstance(error, DLogError) and error.remedy is not Remedy.RETRY):
                raise
        retries -= 1
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


class ClusterConnection:
    """Connections to one cluster, for all threads of one process. Obtain it with `reach`."""

    def __init__(self, zookeeper: str, namespace: str, stores: StoresOptions) -> None:
        self._zookeeper = zookeeper
        self._namespace = namespace
        self._stores = stores
        self._loop = uvloop.new_event_loop()
        self._opened: asyncio.Future[Cluster] | None = None  # from here on: used on the event loop only
        self._over = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"dlog {namespace}", daemon=True)
        self._thread.start()

    def ask(self, work: Work[T], *, retries: int = 0, timeout_s: float | None = 60.0) -> T:
        """Run `work` with the cluster. What may succeed later is retried up to `retries` times, each attempt at most
        `timeout_s` long (None: no bound). Raises what `work` raises, TimeoutError, MetadataUnavailableError."""
        check_thread(self._thread)
        running = asyncio.run_coroutine_threadsafe(
            with_retries(lambda: self._once(work, timeout_s), retries), self._loop
        )
        try:
            return running.result()
        except BaseException:
            running.cancel()  # the caller was interrupted
            raise

    def pump(self, make: Callable[[Cluster], AsyncGenerator[T, None]]) -> Iterator[T]:
        """What `make` yields, at most `AHEAD` items ahead; raises what it raises. Closing the iterator cancels it."""
        check_thread(self._thread)
        items: SimpleQueue[T | _Over] = SimpleQueue()
        space = asyncio.Semaphore(AHEAD)

        async def work(cluster: Cluster) -> None:
            async with aclosing(make(cluster)) as made:
                async for item in made:
                    await space.acquire()
                    items.put(item)

        running = asyncio.run_coroutine_threadsafe(self._once(work, None), self._loop)
        running.add_done_callback(lambda done: items.put(_Over(None if done.cancelled() else done.exception())))
        try:
            while not isinstance(item := self._next(items), _Over):
                self._loop.call_soon_threadsafe(space.release)
                yield item
            if item.error is not None:
                raise item.error
        finally:
            running.cancel()

    def _next(self, items: SimpleQueue[T]) -> T:
        check_thread(self._thread)
        return items.get()

    def feed(self, consume: Callable[[Cluster, AsyncIterator[T]], Awaitable[R]]) -> Feed[T, R]:
        """Pass items to `consume`, which runs until it has taken all of them; see Feed."""
        queue: asyncio.Queue[T | _Over] = asyncio.Queue(AHEAD)

        async def given() -> AsyncIterator[T]:
            while not isinstance(item := await queue.get(), _Over):
                yield item

        async def work(cluster: Cluster) -> R:
            return await consume(cluster, given())

        running = asyncio.run_coroutine_threadsafe(self._once(work, None), self._loop)
        return Feed(self._loop, self._thread, queue, running)

    # ---- on the event loop ------------------------------------------------------------------------------------------

    async def _once(self, work: Work[T], timeout_s: float | None) -> T:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._users += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await work(await self._open())
        finally:
            self._users -= 1
            if not self._users:
                self._idle = self._loop.call_later(IDLE_S, self._retire)

    async def _open(self) -> Cluster:
        if self._opened is None:
            self._opened, self._over = self._loop.create_future(), asyncio.Event()
            self._opened.add_done_callback(_looked_at)
            self._keeping = self._loop.create_task(self._keep(self._opened, self._over), name=self._zookeeper)
        opened = self._opened
        await asyncio.wait((opened,))
        if opened.exception() is not None and self._opened is opened:
            self._opened = None  # the next request tries again
        return opened.result()

    async def _keep(self, opened: asyncio.Future[Cluster], over: asyncio.Event) -> None:
        """Keep the cluster open until `over` is set."""
        rng = random.Random(os.urandom(8))
        try:
            async with (
                await ZooKeeperMetadata.connect(self._zookeeper, self._namespace, rng=rng) as metadata,
                BookieClient(
                    resolver(metadata), rng=rng, options=BookieClientOptions().configured(self._stores.ledger)
                ) as bookies,
                Ledgers(
                    metadata, bookies, rng=rng, options=LedgersOptions().configured(self._stores.ledger)
                ) as ledgers,
                open_stores(ledgers, metadata, self._stores, rng, s3=_s3_access(metadata, rng)) as stores,
            ):
                opened.set_result(Cluster(metadata, ledgers, stores))
                await over.wait()
        except Exception as error:  # noqa: BLE001 - raised to those that await `opened`
            if not opened.done():
                opened.set_exception(error)

    def _retire(self) -> None:
        if not self._users and self._opened is not None:
            self._opened = None
            self._over.set()

    def end(self) -> None:
        """At exit: no event loop may run while the interpreter is shut down."""
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        concurrent.futures.wait((ending,), END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)

    async def _end(self) -> None:
        self._over.set()
        if self._keeping is not None:
            await asyncio.wait((self._keeping,), timeout=END_S)


def _looked_at(opened: asyncio.Future[Cluster]) -> None:
    """Retrieve a failure, so that asyncio does not report it as unhandled."""
    if not opened.cancelled():
        opened.exception()


class Feed(Generic[T, R]):
    """Passes items to a consumer on the event loop. `put` blocks while `AHEAD` items are not taken. `put` and `finish`
    raise what the consumer raised; `finish` returns its result. Call either `finish` or `abandon`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        queue: asyncio.Queue[T | _Over],
        running: concurrent.futures.Future[R],
    ) -> None:
        self._loop = loop
        self._thread = thread
        self._queue = queue
        self._running = running

    def put(self, item: T) -> None:
        self._hand(item)

    def finish(self) -> R:
        self._hand(_Over(None))
        return self._running.result()

    def abandon(self) -> None:
        self._running.cancel()

    def _hand(self, item: T | _Over) -> None:
        check_thread(self._thread)
        handed = asyncio.run_coroutine_threadsafe(self._queue.put(item), self._loop)
        either: list[concurrent.futures.Future[Any]] = [handed, self._running]
        concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        if not handed.done():
            handed.cancel()
            self._running.result()  # raises: the consumer has failed
            raise AssertionError("the consumer of a feed ended before its items did")


_reaches: dict[tuple[int, str, str, StoresOptions], ClusterConnection] = {}
_lock = threading.Lock()


def reach(zookeeper: str, namespace: str, stores: StoresOptions | None = None) -> ClusterConnection:
    """This process's connections to a cluster. stores: how segments are reached; None: from the environment. Raises
    ConfigError if the environment is invalid."""
    stores = load_stores(None) if stores is None else stores
    key = (os.getpid(), zookeeper, namespace, stores)
    with _lock:
        found = _reaches.get(key)
        if found is None:
            found = _reaches[key] = ClusterConnection(zookeeper, namespace, stores)
        return found


@atexit.register
def _end_all() -> None:
    for (pid, *_), found in tuple(_reaches.items()):
        if pid == os.getpid():
            found.end()


def _s3_access(metadata: ZooKeeperMetadata, rng: random.Random) -> S3Access:
    """For a process that creates no segments, and asks the controller through proxies."""
    return S3Access(metadata, lambda *_: operation_sender(metadata, rng))
