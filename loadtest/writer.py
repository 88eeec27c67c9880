"""A client whose tasks await each append, for measurements within one process, and the reading back of its records."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import dlog
from dlog.errors import DLogError
from loadtest.checker import Checker
from loadtest.payload import PayloadMaker

RECORD_BYTES = 100
ACKS_BETWEEN = 50  # of each writer, before a disturbance
PATIENCE_S = 90.0


async def read_back(client: dlog.Client, stream: str, checker: Checker) -> None:
    """Pass all records of the stream to the checker."""
    async with aclosing(client.read_batches(stream, start=dlog.START, follow=False)) as batches:
        async for batch in batches:
            checker.given("read-back", batch.dlsn, batch.payloads)


class Writer:
    """A client with some tasks, each of which awaits every append.

    pause_s: pause of a task between two appends. longest_s: the longest append so far.
    """

    def __init__(self, number: int, stream: str, client: dlog.Client, checker: Checker, pause_s: float = 0.0) -> None:
        self.failed: list[str] = []
        self.gap_s = 0.0
        self.longest_s = 0.0
        self.acks = 0
        self._number = number
        self._stream = stream
        self._client = client
        self._checker = checker
        self._maker = PayloadMaker(number, RECORD_BYTES)
        self._pause_s = pause_s
        self._next = 0
        self._last_s = time.monotonic()
        self._stopping = False
        self._news = asyncio.Event()

    async def run(self, tasks: int) -> None:
        """Append until `stop`."""
        async with asyncio.TaskGroup() as group:
            for i in range(tasks):
                group.create_task(self._append(), name=f"writer {self._number} task {i}")

    def stop(self) -> None:
        self._stopping = True

    def mark(self) -> float:
        """Return the longest gap since the last call, and start anew."""
        gap_s, self.gap_s = self.gap_s, 0.0
        return gap_s

    async def acknowledged(self, more: int) -> None:
        """Wait for `more` acknowledgements."""
        wanted = self.acks + more
        async with asyncio.timeout(PATIENCE_S):
            while self.acks < wanted:
                self._news.clear()
                await self._news.wait()

    async def _append(self) -> None:
        while not self._stopping:
            sequence, self._next = self._next, self._next + 1
            self._checker.sent(self._number, sequence, 1)
            begin_s = time.monotonic()
            try:
                dlsn = await self._client.append(self._stream, *self._maker.make(sequence, 1, 0))
            except DLogError as error:
                self.failed.append(f"writer {self._number} record {sequence}: {error}")
                continue
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - begin_s)
            self.gap_s = max(self.gap_s, now_s - self._last_s)
            self._last_s = now_s
            self.acks += 1
            self._checker.acknowledged(self._number, sequence, 1, dlsn)
            self._news.set()
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
