"""Passes records from a user's thread to the client's event loop, and results back.

Invariants:
- the user's code (iterable, `on_written`) runs only in the user's thread, so it may use any client, this one included;
- each record is passed on at once, never held back to fill a chunk;
- the user's thread waits while more than HANDED_BYTES_MAX bytes are passed on but not yet appended;
- an exception of the user's code is raised when the outcome of every record passed on is known;
- a child process that is forked by the user's code passes nothing on: the call goes on in the parent only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from dlog.client import forks
from dlog.client.batch import SLOT_BYTES, BatchResult
from dlog.client.check import checked_payload
from dlog.client.fate import Fate, Outcome, failure_of
from dlog.client.pipeline import Pipeline, finish_after
from dlog.errors import ClosedError, DLogError

HANDED_BYTES_MAX = 1024 * 1024


class Feed:
    """Supports one call of `run`. begin: makes the pipeline, in the loop, with this `on_written`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[Callable[[BatchResult], None]], Pipeline],
        on_written: Callable[[BatchResult], None],
    ) -> None:
        self._forks = forks.count
        self._loop = loop
        self._begin = begin
        self._on_written = on_written
        self._waiting: deque[bytes | None] = deque()  # None: the end
        self._handed_bytes = 0  # written by the user's thread
        self._taken_bytes = 0  # written by the loop
        self._is_asleep = False  # the loop waits for records
        self._is_over = False  # the loop has ended
        self._more = asyncio.Event()
        self._news: SimpleQueue[BatchResult | None] = SimpleQueue()  # None: check the counters again
        self._reported = 0  # records passed to `on_written`
        self._listener_error: Exception | None = None  # what `on_written` raised: it is not called any more
        self._unreported: list[BatchResult] = []  # written, but not passed to `on_written`

    def run(self, payloads: Iterable[bytes]) -> None:
        """Append `payloads`, and wait until all are durable.

        Iterates `payloads`, and calls `on_written` between records, in the calling thread. Raises the pipeline's error
        or the user's exception: then no more records are passed on, and those passed on before are still written.
        """
        running = asyncio.run_coroutine_threadsafe(self._take(), self._loop)
        try:
            try:
                self._pass_on(payloads)
            except Exception as error:  # of `payloads`, or about one of them
                self._finish(running)
                failure = failure_of(error, self._reported, ())
                if failure is not error:
                    raise failure from error
                raise
            self._finish(running)
        except BaseException:
            if self._forks == forks.count:
                running.cancel()
            raise
        finally:
            self._listener_error = None  # breaks a reference cycle: it refers to frames that refer to this object

    # ---- in the user's thread ---------------------------------------------------------------------------------------

    def _pass_on(self, payloads: Iterable[bytes]) -> None:
        """Pass records on until the iterable ends, a record fails or `on_written` raises."""
        hand_over, has_no_news = self._waiting.append, self._news.empty
        for given in payloads:
            if self._forks != forks.count:
                break
            payload = given if type(given) is bytes else checked_payload(given)
            hand_over(payload)
            self._handed_bytes += len(payload) + SLOT_BYTES
            if self._is_asleep:
                self._wake()
            while not has_no_news():
                self._call_listener()
            while self._handed_bytes - self._taken_bytes > HANDED_BYTES_MAX and not self._is_over:
                self._call_listener()
            if self._is_over or self._listener_error is not None:
                break

    def _finish(self, running: concurrent.futures.Future[None]) -> None:
        """Wait until the outcome of every record passed on is known. Raises the failure of a record, or what
        `on_written` raised."""
        self._waiting.append(None)
        self._wake()
        while not self._is_over or not self._news.empty():
            self._call_listener()
        fates = [Fate(row.index, row.count, Outcome.WRITTEN, row) for row in self._unreported]
        try:
            running.result()
        except DLogError as failure:
            if self._listener_error is None:
                raise
            fates += failure.fates
        except concurrent.futures.CancelledError as cancelled:
            error = ClosedError("this client was closed by another thread; open another", outcome_unknown=True)
            raise error from self._listener_error or cancelled.__context__
        if self._listener_error is not None:
            raise failure_of(self._listener_error, self._reported, fates)

    def _check_process(self) -> None:
        if self._forks != forks.count:
            raise ClosedError(
                "the process was forked during append_many, which goes on in the parent only; call it again in the "
                "child, for records of the child",
                outcome_unknown=True,
            )

    def _wake(self) -> None:
        self._check_process()
        self._is_asleep = False
        try:
            self._loop.call_soon_threadsafe(self._more.set)
        except RuntimeError:  # the loop is closed
            raise ClosedError("this client was closed by another thread; open another", outcome_unknown=True) from None

    def _call_listener(self) -> None:
        self._check_process()
        row = self._news.get()
        if row is None:
            return
        if self._listener_error is not None:
            self._unreported.append(row)
            return
        self._reported += row.count
        try:
            self._on_written(row)
        except Exception as error:  # noqa: BLE001 - of the user's callback; `_finish` raises it
            self._listener_error = error

    # ---- in the loop ------------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        try:
            pipeline = self._begin(self._news.put)
            try:
                await self._append_all(pipeline)
            except Exception as error:  # about a record, or the pipeline's
                await finish_after(error, pipeline)
                raise
        finally:
            self._is_over = True
            self._news.put(None)

    async def _append_all(self, pipeline: Pipeline) -> None:
        next_one = self._waiting.popleft
        while True:
            while self._waiting:
                payload = next_one()
                if payload is None:
                    await pipeline.drain()
                    return
                while not pipeline.append_nowait(payload):
                    self._news.put(None)
                    await pipeline.room()
                self._taken_bytes += len(payload) + SLOT_BYTES
            self._news.put(None)
            self._more.clear()
            self._is_asleep = True
            if not self._waiting:  # records that came before `_is_asleep` was set did not wake us
                await self._more.wait()
            self._is_asleep = False
