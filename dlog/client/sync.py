"""The synchronous client, for scripts, notebooks and Spark: runs `Client` in an event loop in its own thread.

    with dlog.connect_sync("dlog://127.0.0.1:7400") as client:
        client.append("orders", b"...")
        for record in client.read("orders"):
            ...

Invariants:
- It can be used from any thread and after a fork. A forked child, recognised by os.getpid, has no client thread, so
  its first call opens a client of its own; the parent's pending calls stay with the parent.
- The user's code (iterables, callbacks) runs in the user's thread. Code that runs in the client's thread all the same,
  such as a finalizer, gets an InvalidRequestError from every call, since waiting there would never end. So does code
  that runs, while the client starts, in the thread that starts it, such as a log handler.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar, Unpack

from dlog.client.batch import BatchResult
from dlog.client.check import check_thread
from dlog.client.client import AppendSummary, Client, connect
from dlog.client.options import ClientOptions
from dlog.client.pipeline import Pipeline
from dlog.client.position import Position
from dlog.client.reader import Lag, Reader, ReadProgress
from dlog.client.record import Record, RecordBatch
from dlog.client.stream_info import ImportResult, Owner, SettingsChanges, StreamInfo, StreamSettings
from dlog.client.thread_feed import Feed
from dlog.errors import ClosedError, DLogError, InvalidRequestError
from dlog.model.dlsn import DLSN
from dlog.model.segment import LEDGER
from dlog.model.sink import SinkBatch

T = TypeVar("T")


class SyncClient:
    """Blocking client, made by `connect_sync`. Each method does what that of `Client` does, and waits for it."""

    def __init__(self, target: str | None, options: ClientOptions) -> None:
        connect(target, options=options)  # raises for an invalid target now, not at the first use
        self._target = target
        self._options = options
        self._closed = False
        self._here: _ClientThread | None = None
        self._lock = threading.RLock()  # held to change `_here`
        self._starters: set[threading.Thread] = set()  # threads that start the client, and those that they start
        self._pid = os.getpid()

    def __enter__(self) -> SyncClient:
        self._running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(orderly=kind is None)

    def close(self, *, orderly: bool = True) -> None:
        """See `Client.close`. Idempotent."""
        self._check_process()
        self._check_starting()
        with self._lock:
            here = self._here
            if here is not None and here.is_here:
                here.check()
            self._closed = True
            self._here = None
        if here is not None:
            here.stop(orderly)

    # ---- writing ----------------------------------------------------------------------------------------------------

    def append(self, stream: str, payload: bytes, *, txid: int | None = None) -> DLSN:
        return self._ask(lambda client: client.append(stream, payload, txid=txid))

    def append_batch(self, stream: str, payloads: Sequence[bytes], *, txid: int | None = None) -> BatchResult:
        records = list(payloads)
        return self._ask(lambda client: client.append_batch(stream, records, txid=txid))

    def append_many(
        self,
        stream: str,
        payloads: Iterable[bytes],
        *,
        on_written: Callable[[BatchResult], None] | None = None,
    ) -> AppendSummary:
        """As `Client.append_many`. `payloads` is iterated and `on_written` called in the calling thread: both may use
        this client. After an exception in either, the records already iterated are still written, then it is raised;
        after one in `on_written`, `error.fates` tells where they are. If a record fails, iterated ones after the last
        one in `error.fates` were not buffered. KeyboardInterrupt is raised at once. If either forks, the call goes on
        in the parent, and raises ClosedError in the child.
        """
        running = self._running()
        running.check()
        summary = AppendSummary()

        def written(row: BatchResult) -> None:
            nonlocal summary
            summary = summary.with_row(row)
            if on_written is not None:
                on_written(row)

        running.feed(lambda report: running.client.pipeline(stream, report), written).run(payloads)
        return summary

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None = None,
        *,
        after: Position | DLSN | str | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> SyncReader[Record]:
        running = self._running()
        reader = running.client.read_batches(stream, start, after=after, follow=follow, limit=limit)
        progress = ReadProgress()
        return SyncReader(_records(self._pull(running, reader), progress), reader, progress)

    def read_batches(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None = None,
        *,
        after: Position | DLSN | str | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> SyncReader[RecordBatch]:
        running = self._running()
        reader = running.client.read_batches(stream, start, after=after, follow=follow, limit=limit)
        return SyncReader(self._pull(running, reader), reader, ReadProgress())

    # ---- streams ----------------------------------------------------------------------------------------------------

    def create(self, stream: str, *, exist_ok: bool = False, **settings: Unpack[SettingsChanges]) -> StreamInfo:
        return self._ask(lambda client: client.create(stream, exist_ok=exist_ok, **settings))

    def alter(self, stream: str, **settings: Unpack[SettingsChanges]) -> StreamSettings:
        return self._ask(lambda client: client.alter(stream, **settings))

    def delete(self, stream: str, *, force: bool = False) -> None:
        self._ask(lambda client: client.delete(stream, force=force))

    def incarnation(self, stream: str) -> str:
        return self._ask(lambda client: client.incarnation(stream))

    def import_segments(
        self,
        stream: str,
        parts: Sequence[tuple[str, int]],
        batch: SinkBatch | None = None,
        *,
        since: tuple[int, int] | None = None,
        incarnation: str | None = None,
        store: str = LEDGER,
    ) -> ImportResult:
        given = list(parts)
        return self._ask(
            lambda client: client.import_segments(
                stream, given, batch, since=since, incarnation=incarnation, store=store
            )
        )

    def append_once(
        self,
        stream: str,
        payloads: Sequence[bytes],
        batch: SinkBatch,
        *,
        txid: int | None = None,
        since: tuple[int, int] | None = None,
        incarnation: str | None = None,
    ) -> BatchResult:
        records = list(payloads)
        return self._ask(
            lambda client: client.append_once(stream, records, batch, txid=txid, since=since, incarnation=incarnation)
        )

    def move_segment(
        self,
        stream: str,
        number: int,
        *,
        store: str,
        location: str,
        to_store: str,
        to_location: str,
        incarnation: str | None = None,
    ) -> None:
        self._ask(
            lambda client: client.move_segment(
                stream,
                number,
                store=store,
                location=location,
                to_store=to_store,
                to_location=to_location,
                incarnation=incarnation,
            )
        )

    def truncate(self, stream: str, dlsn: DLSN | str) -> DLSN:
        return self._ask(lambda client: client.truncate(stream, dlsn))

    def seal(self, stream: str) -> None:
        self._ask(lambda client: client.seal(stream))

    def stat(self, stream: str) -> StreamInfo:
        return self._ask(lambda client: client.stat(stream))

    def streams(self) -> Iterator[str]:
        running = self._running()
        return self._pull(running, running.client.streams())

    def owner(self, stream: str) -> Owner:
        return self._ask(lambda client: client.owner(stream))

    def owners(self) -> list[Owner]:
        return self._ask(lambda client: client.owners())

    def hand_over(self, stream: str) -> None:
        self._ask(lambda client: client.hand_over(stream))

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        running = self._running()
        return running.wait(question(running.client))

    def _pull(self, running: _ClientThread, items: AsyncGenerator[T, None] | Reader[T]) -> Generator[T, None, None]:
        """Iterate in this thread over items made in the client's thread; about 50 µs for each."""

        step: asyncio.Task[Any] | None = None

        async def following() -> tuple[T, ...]:
            nonlocal step
            step = asyncio.current_task()
            async for item in items:
                return (item,)
            return ()

        async def ending() -> None:
            if step is not None and not step.done():  # KeyboardInterrupt ended the wait for it
                step.cancel()
                await asyncio.wait((step,))
            await items.aclose()

        try:
            while found := running.wait(following()):
                yield from found
        finally:
            if running.is_here and not running.is_own_thread:  # else the loop closes it
                running.wait(ending())

    def _running(self) -> _ClientThread:
        self._check_open()
        self._check_process()
        return self._here or self._start()

    def _start(self) -> _ClientThread:
        """Start the client, or wait until another thread has started it.

        The event loop is made outside the lock: asyncio logs then, and a log handler may wait for another thread.
        """
        self._check_starting()
        starter = threading.current_thread()
        self._starters.add(starter)
        try:
            made = _ClientThread(connect(self._target, options=self._options))
            self._starters.add(made.thread)
            try:
                with self._lock:
                    self._check_open()
                    if self._here is None:
                        made.start()
                        self._here = made
                    return self._here
            finally:
                self._starters.discard(made.thread)
                made.discard_unstarted()
        finally:
            self._starters.discard(starter)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client is closed; open another one with dlog.connect_sync")

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # forked: neither the thread nor its lock was inherited
            self._pid = os.getpid()
            self._lock = threading.RLock()
            self._starters = set()
            self._here = None

    def _check_starting(self) -> None:
        """Raise InvalidRequestError in a thread that starts the client."""
        thread = threading.current_thread()
        if thread in self._starters:
            raise InvalidRequestError(
                "a blocking client was called in a thread that is starting it (by a log handler, a finalizer or a "
                "signal handler), where waiting would never end; start it before, by its `with` block or a first call: "
                f"thread={thread.name}"
            )


class SyncReader(Iterator[T]):
    """One read of a stream, made by `SyncClient.read` and `SyncClient.read_batches`. Iterate over it once; `close` ends
    it early."""

    def __init__(self, items: Generator[T, None, None], reader: Reader[RecordBatch], progress: ReadProgress) -> None:
        self._items = items
        self._reader = reader
        self._progress = progress

    def __iter__(self) -> Iterator[T]:
        return self._items

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        """End the read; the proxy sends nothing more. Idempotent."""
        self._items.close()

    @property
    def lag(self) -> Lag | None:
        """See `Reader.lag`."""
        return self._reader.lag

    @property
    def caught_up(self) -> bool:
        """See `Reader.caught_up`."""
        return self._progress.left == 0 and self._reader.caught_up


def _records(batches: Generator[RecordBatch, None, None], progress: ReadProgress) -> Generator[Record, None, None]:
    with closing(batches):
        for batch in batches:
            for progress.left, record in zip(range(len(batch) - 1, -1, -1), batch, strict=True):
                yield record


class _ClientThread:
    """A Client and the thread that runs its event loop; `start` opens it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._loop.run_forever, name="dlog client", daemon=True)

    def start(self) -> None:
        self.thread.start()
        self.wait(self.client.__aenter__())

    def discard_unstarted(self) -> None:
        """Close the loop, unless the thread was started."""
        if self.thread.ident is None:
            self._loop.close()

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self.thread

    def feed(
        self, begin: Callable[[Callable[[BatchResult], None]], Pipeline], on_written: Callable[[BatchResult], None]
    ) -> Feed:
        return Feed(self._loop, begin, on_written)

    def check(self) -> None:
        """Raise ClosedError or InvalidRequestError if the caller cannot wait for a result here."""
        if not self.is_here:
            raise ClosedError("this client is closed, or belongs to the parent process; open another one")
        check_thread(self.thread)

    @property
    def is_here(self) -> bool:
        return self._pid == os.getpid() and self.thread.is_alive() and not self._loop.is_closed()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the client's loop and block until it is done. KeyboardInterrupt cancels it."""
        try:
            self.check()
        except DLogError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("this client was closed by another thread; open another", outcome_unknown=True) from None
        except BaseException:
            future.cancel()
            raise

    def stop(self, orderly: bool) -> None:
        if self.is_here:
            self.wait(self.client.close(orderly=orderly))
            self.wait(_end_others())
            self.wait(self._loop.shutdown_asyncgens())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self.thread.join()
            self._loop.close()


async def _end_others() -> None:
    """Cancel the calls of other threads, so that none waits for a stopped loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


def connect_sync(target: str | None = None, *, options: ClientOptions | None = None, **changes: Any) -> SyncClient:
    """A blocking client of the cluster at `dlog://host:port[,host:port]`, for use in `with`; see `connect`."""
    client = connect(target, options=options, **changes)
    return SyncClient(target, client.options)
