"""The synchronous face: the same client, with its loop in a thread of its own. For scripts, notebooks and Spark.

    with dlog.connect_sync("dlog://127.0.0.1:7400") as client:
        client.append("orders", b"...")
        for record in client.read("orders"):
            ...

The law of this file:
- It may be used from any thread, and it survives a fork. A forked child does not have the parent's thread, so at the
  first use there (told by os.getpid) it opens a client of its own; what the parent had under way stays the parent's.
- The user's code (iterables, listeners) runs in the user's thread. What runs in the client's thread all the same, as a
  finalizer may, and asks a question there, gets a typed error: the answer would be waited for where it is made.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from dlog.client.batch import BatchResult
from dlog.client.check import check_thread
from dlog.client.client import AppendSummary, Client, connect
from dlog.client.feeding import Feed
from dlog.client.options import ClientOptions
from dlog.client.pipeline import Pipeline
from dlog.client.position import Position, position
from dlog.client.record import Record, RecordBatch
from dlog.errors import ClosedError, DLogError
from dlog.model.dlsn import DLSN
from dlog.model.sink import SinkBatch

T = TypeVar("T")


class SyncClient:
    """Made by `connect_sync`. Every method is the one of `Client`, and blocks until its answer."""

    def __init__(self, target: str | None, options: ClientOptions) -> None:
        connect(target, options=options)  # a target that cannot be read is told here, not at the first use
        self._target = target
        self._options = options
        self._closed = False
        self._here: _Running | None = None
        self._starting = threading.Lock()
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
        here = self._here if self._pid == os.getpid() else None
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
        """As `Client.append_many`. `payloads` is iterated, and `on_written` called, in the calling thread, between two
        records and at the end: both may use this client. What either raises ends it, and is raised; what was taken is
        still written. Of the records that were iterated, those behind the last one in `error.fates` were not taken.
        """
        running = self._running()
        running.check()
        summary = AppendSummary()

        def written(row: BatchResult) -> None:
            nonlocal summary
            summary = summary.with_row(row)
            if on_written is not None:
                on_written(row)

        running.feed(lambda tell: running.client.pipeline(stream, tell), written).run(payloads)
        return summary

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None = None,
        *,
        follow: bool = False,
        limit: int | None = None,
    ) -> Iterator[Record]:
        for batch in self.read_batches(stream, start, follow=follow, limit=limit):
            yield from batch

    def read_batches(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None = None,
        *,
        follow: bool = False,
        limit: int | None = None,
    ) -> Iterator[RecordBatch]:
        begin = position(start)
        running = self._running()
        batches = running.client.read_batches(stream, begin, follow=follow, limit=limit)
        return self._pull(running, batches)

    # ---- streams ----------------------------------------------------------------------------------------------------

    def create(self, stream: str, **settings: Any) -> None:
        self._ask(lambda client: client.create(stream, **settings))

    def delete(self, stream: str, *, force: bool = False) -> None:
        self._ask(lambda client: client.delete(stream, force=force))

    def life(self, stream: str) -> str:
        return self._ask(lambda client: client.life(stream))

    def take_in(
        self,
        stream: str,
        parts: Sequence[tuple[str, int]],
        batch: SinkBatch | None = None,
        *,
        since: tuple[int, int] | None = None,
        life: str | None = None,
    ) -> dict[str, Any]:
        given = list(parts)
        return self._ask(lambda client: client.take_in(stream, given, batch, since=since, life=life))

    def append_once(
        self,
        stream: str,
        payloads: Sequence[bytes],
        batch: SinkBatch,
        *,
        txid: int | None = None,
        since: tuple[int, int] | None = None,
        life: str | None = None,
    ) -> dict[str, Any]:
        records = list(payloads)
        return self._ask(lambda client: client.append_once(stream, records, batch, txid=txid, since=since, life=life))

    def relocate(
        self,
        stream: str,
        number: int,
        *,
        store: str,
        place: str,
        to_store: str,
        to_place: str,
        life: str | None = None,
    ) -> dict[str, Any]:
        return self._ask(
            lambda client: client.relocate(
                stream, number, store=store, place=place, to_store=to_store, to_place=to_place, life=life
            )
        )

    def truncate(self, stream: str, dlsn: DLSN | str) -> dict[str, Any]:
        return self._ask(lambda client: client.truncate(stream, dlsn))

    def seal(self, stream: str) -> dict[str, Any]:
        return self._ask(lambda client: client.seal(stream))

    def stat(self, stream: str) -> dict[str, Any]:
        return self._ask(lambda client: client.stat(stream))

    def streams(self) -> Iterator[str]:
        running = self._running()
        return self._pull(running, running.client.streams())

    def owner(self, stream: str) -> dict[str, Any]:
        return self._ask(lambda client: client.owner(stream))

    def owners(self) -> list[dict[str, Any]]:
        return self._ask(lambda client: client.owners())

    def release(self, stream: str) -> dict[str, Any]:
        return self._ask(lambda client: client.release(stream))

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        running = self._running()
        return running.wait(question(running.client))

    def _pull(self, running: _Running, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate in this thread what is produced in the client's; a hop of some 50 µs an item."""

        async def following() -> tuple[T, ...]:
            async for item in items:
                return (item,)
            return ()

        try:
            while found := running.wait(following()):
                yield from found
        finally:
            if running.is_here and not running.is_own_thread:  # collected as garbage there, the loop closes it
                running.wait(items.aclose())

    def _running(self) -> _Running:
        if self._closed:
            raise ClosedError("this client is closed")
        if self._pid != os.getpid():  # forked: neither the thread nor its lock came along
            self._pid = os.getpid()
            self._starting = threading.Lock()
            self._here = None
        here = self._here
        if here is None:
            with self._starting:
                if self._here is None:
                    self._here = _Running(connect(self._target, options=self._options))
                here = self._here
        return here


class _Running:
    """A client and the thread that runs its loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dlog client", daemon=True)
        self._thread.start()
        self.wait(self.client.__aenter__())

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def feed(
        self, begin: Callable[[Callable[[BatchResult], None]], Pipeline], on_written: Callable[[BatchResult], None]
    ) -> Feed:
        return Feed(self._loop, begin, on_written)

    def check(self) -> None:
        """Raises ClosedError, InvalidRequestError: nobody can wait for an answer here."""
        if not self.is_here:
            raise ClosedError("this client is closed, or was opened by the process that forked this one")
        check_thread(self._thread)

    @property
    def is_here(self) -> bool:
        return self._pid == os.getpid() and self._thread.is_alive() and not self._loop.is_closed()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the client's loop and block until it is done. An interrupt cancels it."""
        try:
            self.check()
        except DLogError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("this client was closed by another thread", outcome_unknown=True) from None
        except BaseException:
            future.cancel()
            raise

    def stop(self, orderly: bool) -> None:
        if self.is_here:
            self.wait(self.client.close(orderly=orderly))
            self.wait(_end_others())
            self.wait(self._loop.shutdown_asyncgens())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _end_others() -> None:
    """Cancel what other threads still wait for, so that none waits for a loop that has ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


def connect_sync(target: str | None = None, *, options: ClientOptions | None = None, **changes: Any) -> SyncClient:
    """A synchronous client of the cluster at `dlog://host:port[,host:port]`; see `connect`."""
    client = connect(target, options=options, **changes)
    return SyncClient(target, client.options)
