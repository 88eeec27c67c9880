"""The readers of one generator process.

Invariants:
- every record is verified and written to the history;
- delivery latency starts when the record was due.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from loadtest.histogram import Histogram
from loadtest.history import HistoryWriter, after
from loadtest.lines import Orders, say
from loadtest.payload import PAYLOAD_BYTES_MIN, due_ns, spans
from loadtest.systems.base import Client, Position

TICK_S = 0.05
AT_ONCE = 16  # logs read concurrently, if not following
_SAMPLES = 4  # latencies measured per delivery, at most


class _Copy:
    """One reader of all logs."""

    def __init__(self, path: str, logs: int) -> None:
        self.history = HistoryWriter(path)
        self.read = [0] * logs
        self.open = set(range(logs))


class Reading:
    """All readers of one generator."""

    def __init__(self, job: Mapping[str, Any], client: Client, orders: Orders) -> None:
        self._job = job
        self._client = client
        self._orders = orders
        self._logs: list[str] = list(job["logs"])
        self._follow = bool(job["follow"])
        copies = int(job.get("copies", 1))
        paths = [job["history"] if copies == 1 else f"{job['history']}.{i}" for i in range(copies)]
        self._copies = [_Copy(path, len(self._logs)) for path in paths]
        self._delivery = Histogram()
        self._from_ns = self._to_ns = 0
        self._read = self._bytes = self._measured = self._measured_bytes = 0
        self._first_ns = self._last_ns = 0
        self._errors: list[str] = []
        self._changed = asyncio.Event()
        self._cpu_begin = 0.0

    async def run(self) -> dict[str, Any]:
        """Read until done; the result."""
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._tick(), name="tick"),
                group.create_task(self._window(), name="window"),
            ]
            if self._follow:
                reads = [
                    group.create_task(self._one(copy, log), name=f"reader of {name}")
                    for copy in self._copies
                    for log, name in enumerate(self._logs)
                ]
                say("ready")
                await self._all_read(reads)
                for task in reads:
                    task.cancel()
                ended = self._has_all()
            else:
                say("ready")
                await self._orders.start_ns
                self._cpu_begin = time.process_time()
                todo = [(copy, log) for log in range(len(self._logs)) for copy in self._copies]
                whole = group.create_task(self._all_of(todo), name="readers")
                stop = group.create_task(self._orders.stop.wait(), name="stop")
                await asyncio.wait((whole, stop), return_when=asyncio.FIRST_COMPLETED)
                ended = whole.done() and not self._errors
                whole.cancel()
                stop.cancel()
            for task in background:
                task.cancel()
        for copy in self._copies:
            copy.history.close()
        return self._result(ended)

    async def _all_of(self, todo: list[tuple[_Copy, int]]) -> None:
        async with asyncio.TaskGroup() as some:
            for i in range(AT_ONCE):
                some.create_task(self._some(todo), name=f"reader {i}")

    async def _some(self, todo: list[tuple[_Copy, int]]) -> None:
        while todo:
            await self._one(*todo.pop(0))

    async def _one(self, copy: _Copy, log: int) -> None:
        try:
            async with aclosing(
                self._client.read(self._logs[log], tail=self._job["start"] == "tail", follow=self._follow)
            ) as batches:
                async for position, payloads in batches:
                    if payloads:
                        self._take(copy, log, position, payloads)
            if not self._follow:
                copy.history.end(log)
        except Exception as error:  # noqa: BLE001 - any error of a peer's client ends this reader and is reported
            self._errors.append(f"{self._logs[log]}: {type(error).__name__}: {error}"[:300])
        copy.open.discard(log)
        self._changed.set()

    def _take(self, copy: _Copy, log: int, position: Position, payloads: Sequence[bytes]) -> None:
        now = time.monotonic_ns()
        history = copy.history
        for at, producer, first, many in spans(payloads):
            if many:
                history.read(log, producer, first, many, after(position, at), now)
            else:
                history.broken(log, after(position, at), payloads[at])
        count = len(payloads)
        size = sum(map(len, payloads))
        self._first_ns = self._first_ns or now
        self._last_ns = now
        self._read += count
        self._bytes += size
        copy.read[log] += count
        if self._from_ns <= now < self._to_ns:
            self._measured += count
            self._measured_bytes += size
        step = -(-count // _SAMPLES)
        for i in range(0, count, step):
            if len(payloads[i]) >= PAYLOAD_BYTES_MIN:
                due = due_ns(payloads[i])
                if self._from_ns <= due < self._to_ns:
                    self._delivery.record((now - due) / 1000, min(step, count - i))
        if self._orders.until is not None:
            self._changed.set()

    # ---- end of reading ---------------------------------------------------------------------------------------------

    async def _all_read(self, reads: Sequence[asyncio.Task[None]]) -> None:
        """Wait until the records of `until` are read, for stop, or until all readers have ended."""
        while not (self._orders.stop.is_set() or self._has_all() or all(task.done() for task in reads)):
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._changed.wait()

    def _has_all(self) -> bool:
        until = self._orders.until
        return until is not None and all(
            copy.read[log] >= until.get(name, 0) for copy in self._copies for log, name in enumerate(self._logs)
        )

    async def _tick(self) -> None:
        reported = -1
        while True:
            if self._read != reported:
                reported = self._read
                say("tick", read=reported, last_ns=self._last_ns)
            await asyncio.sleep(TICK_S)

    async def _window(self) -> None:
        start_ns = await self._orders.start_ns
        self._from_ns = start_ns + int(float(self._job["warmup_s"]) * 1e9)
        self._to_ns = self._from_ns + int(float(self._job["seconds"]) * 1e9)
        await asyncio.sleep(max(0.0, (self._from_ns - time.monotonic_ns()) / 1e9))
        self._cpu_begin = self._cpu_begin or time.process_time()

    def _result(self, ended: bool) -> dict[str, Any]:
        end_ns = min(self._to_ns, time.monotonic_ns()) if self._follow else self._last_ns
        begin_ns = self._from_ns if self._follow else self._first_ns
        return {
            "read": self._read,
            "read_bytes": self._bytes,
            "errors": self._errors[:10],
            "measured": self._measured if self._follow else self._read,
            "measured_bytes": self._measured_bytes if self._follow else self._bytes,
            "measured_s": max(1e-9, (end_ns - begin_ns) / 1e9),
            "first_ns": self._first_ns,
            "last_ns": self._last_ns,
            "delivery": self._delivery.as_json(),
            "cpu_s": time.process_time() - self._cpu_begin,
            "rss_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "ended": ended,
        }
