"""Records from the thread that makes them to the loop that sends them, and what is told of them back.

The law of this file: what the user wrote (the iterable, the listener) runs in the user's thread only, so that it may
use any client, this one too. A record is on its way as soon as it is made: nothing waits for a chunk to be full. The
maker waits while more than HANDED_BYTES_MAX are handed over and not taken.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar

from dlog.client.batch import SLOT_BYTES, BatchResult
from dlog.client.check import checked_payload

HANDED_BYTES_MAX = 1024 * 1024

T = TypeVar("T")


class Feed:
    """One use of `run`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_written: Callable[[BatchResult], None] | None) -> None:
        self._loop = loop
        self._on_written = on_written
        self._waiting: deque[bytes | None] = deque()  # None: there are no more
        self._handed_bytes = 0  # counted by the maker
        self._taken_bytes = 0  # counted by the loop
        self._is_asleep = False  # the loop waits for more
        self._more = asyncio.Event()
        self._news: SimpleQueue[BatchResult | None] = SimpleQueue()  # rows; None: look again

    def run(
        self,
        payloads: Iterable[bytes],
        consume: Callable[[AsyncGenerator[bytes, None], Callable[[BatchResult], None]], Coroutine[Any, Any, T]],
    ) -> T:
        """Give `payloads` to `consume`, which runs in the loop with a listener for rows.

        Iterates `payloads` in the calling thread, and tells it the rows between records. Returns or raises what
        `consume` does, or raises what the user's code does: then no more is handed over, and what was taken is still
        written.
        """
        running = asyncio.run_coroutine_threadsafe(consume(self._arriving(), self._news.put), self._loop)
        running.add_done_callback(lambda _: self._news.put(None))
        try:
            for given in payloads:
                if running.done():
                    break
                payload = given if type(given) is bytes else checked_payload(given)
                self._hand(payload)
                self._handed_bytes += len(payload) + SLOT_BYTES
                self._tell(running)
            self._hand(None)
            while not running.done():
                self._hear()
            while not self._news.empty():
                self._hear()
            return running.result()
        except BaseException:
            running.cancel()
            raise

    # ---- in the maker's thread --------------------------------------------------------------------------------------

    def _hand(self, payload: bytes | None) -> None:
        self._waiting.append(payload)
        if self._is_asleep:
            self._is_asleep = False
            self._loop.call_soon_threadsafe(self._more.set)

    def _tell(self, running: concurrent.futures.Future[T]) -> None:
        """Tell the rows that came; wait for some while too much is handed over."""
        while not self._news.empty():
            self._hear()
        while self._handed_bytes - self._taken_bytes > HANDED_BYTES_MAX and not running.done():
            self._hear()

    def _hear(self) -> None:
        row = self._news.get()
        if row is not None and self._on_written is not None:
            self._on_written(row)

    # ---- in the loop ------------------------------------------------------------------------------------------------

    async def _arriving(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self._waiting:
                payload = self._waiting.popleft()
                if payload is None:
                    return
                yield payload
                self._taken_bytes += len(payload) + SLOT_BYTES
            self._news.put(None)
            self._more.clear()
            self._is_asleep = True
            if not self._waiting:  # what came before we slept woke nobody
                await self._more.wait()
            self._is_asleep = False
