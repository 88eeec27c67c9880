"""Records from the thread that makes them to the loop that sends them, and what is told of them back.

The law of this file: what the user wrote (the iterable, the listener) runs in the user's thread only, so that it may
use any client, this one too. A record is on its way as soon as it is made: nothing waits for a chunk to be full. The
maker waits while more than HANDED_BYTES_MAX are handed over and not taken.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from dlog.client.batch import SLOT_BYTES, BatchResult
from dlog.client.check import checked_payload
from dlog.client.pipeline import Pipeline
from dlog.errors import ClosedError

HANDED_BYTES_MAX = 1024 * 1024


class Feed:
    """One use of `run`. begin: makes the pipeline, in the loop, with a listener for its rows."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[Callable[[BatchResult], None]], Pipeline],
        on_written: Callable[[BatchResult], None],
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._on_written = on_written
        self._waiting: deque[bytes | None] = deque()  # None: there are no more
        self._handed_bytes = 0  # counted by the maker
        self._taken_bytes = 0  # counted by the loop
        self._is_asleep = False  # the loop waits for more
        self._is_over = False  # the loop takes no more
        self._more = asyncio.Event()
        self._news: SimpleQueue[BatchResult | None] = SimpleQueue()  # rows; None: look again

    def run(self, payloads: Iterable[bytes]) -> None:
        """Append `payloads`, and wait until all are durable.

        Iterates `payloads` in the calling thread, and tells it the rows between records. Raises what the pipeline
        does, or what the user's code does: then no more is handed over, and what was taken is still written.
        """
        running = asyncio.run_coroutine_threadsafe(self._take(), self._loop)
        hand_over, has_no_news = self._waiting.append, self._news.empty
        try:
            for given in payloads:
                payload = given if type(given) is bytes else checked_payload(given)
                hand_over(payload)
                self._handed_bytes += len(payload) + SLOT_BYTES
                if self._is_asleep:
                    self._wake()
                while not has_no_news():
                    self._hear()
                while self._handed_bytes - self._taken_bytes > HANDED_BYTES_MAX and not self._is_over:
                    self._hear()
                if self._is_over:
                    break
            hand_over(None)
            self._wake()
            while not self._is_over or not has_no_news():
                self._hear()
            running.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("this client was closed by another thread", outcome_unknown=True) from None
        except BaseException:
            running.cancel()
            raise

    # ---- in the maker's thread --------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._is_asleep = False
        try:
            self._loop.call_soon_threadsafe(self._more.set)
        except RuntimeError:  # the loop is closed
            raise ClosedError("this client was closed by another thread", outcome_unknown=True) from None

    def _hear(self) -> None:
        row = self._news.get()
        if row is not None:
            self._on_written(row)

    # ---- in the loop ------------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        try:
            await self._append_all(self._begin(self._news.put))
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
                while not pipeline.append(payload):
                    self._news.put(None)
                    await pipeline.room()
                self._taken_bytes += len(payload) + SLOT_BYTES
            self._news.put(None)
            self._more.clear()
            self._is_asleep = True
            if not self._waiting:  # what came before we slept woke nobody
                await self._more.wait()
            self._is_asleep = False
