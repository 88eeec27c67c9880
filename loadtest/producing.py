"""The load of one producer: when it hands which records to the client.

Closed loops (window, await) measure maxima.

Invariants:
- in an open loop only the schedule decides when a record is due; a record handed over late keeps its due time, so that
  latencies include every stall.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from loadtest.history import HistoryWriter
from loadtest.lines import Orders, say
from loadtest.payload import PayloadMaker
from loadtest.systems.base import Acked, Client, Refused, Writer
from loadtest.tally import Flow, Tally

SLOT_S = 0.001
TICK_S = 0.05
TOUCHES = 64  # logs opened concurrently
CHUNK_RECORDS = 2048  # records handed over in one call, at most


class Producing:
    """One producer on its logs. job: see loadtest/systems/base.py."""

    def __init__(self, job: Mapping[str, Any], client: Client, orders: Orders) -> None:
        self._job = job
        self._client = client
        self._orders = orders
        self._number = int(job["producer"])
        self._history = HistoryWriter(job["history"])
        self._tally = Tally(self._number, self._history)
        self._maker = PayloadMaker(self._number, int(job["record_bytes"]), int(job.get("seed", 0)))
        self._flows = [Flow(i) for i in range(len(job["logs"]))]
        self._writers: list[Writer] = []
        self._answered = asyncio.Event()
        self._batch = max(1, int(job.get("batch_records", 1)))
        self._choices = self._draws()
        self._records = int(job.get("records", 0))

    async def run(self) -> dict[str, Any]:
        """Open the logs, produce; the result."""
        job, tally = self._job, self._tally
        for flow, log in zip(self._flows, job["logs"], strict=True):
            self._writers.append(await self._client.writer(log, partial(self._on_answer, flow)))
        await self._touch_all()
        say("ready")
        start_ns = await self._orders.start_ns
        tally.begin(start_ns, job["warmup_s"], job["seconds"])
        async with self._ticking() as cpu:
            await self._until_ns(start_ns)
            match job["mode"]:
                case "window":
                    await self._window()
                case "await":
                    await self._awaiting()
                case "open":
                    await self._open()
                case mode:
                    raise ValueError(f"mode must be window, await or open: {mode}")
            await self._flush()
        for flow in self._flows:
            self._history.sent(flow.log, self._number, flow.sent)
        for writer in self._writers:
            await writer.close()
        self._history.close()
        return tally.result(cpu())

    # ---- the loops --------------------------------------------------------------------------------------------------

    async def _window(self) -> None:
        window = max(int(self._job["window"]), self._batch)
        few = self._batch if self._batch > 1 else max(1, window // 8)
        while not self._is_over() and (left := self._left) > 0:
            room = min(window - self._tally.under_way, left)
            if room < min(few, left):
                self._answered.clear()
                await self._or_stop(self._answered)
                continue
            count = min(room, CHUNK_RECORDS if self._batch == 1 else self._batch)
            await self._hand_over(self._pick(), count, time.monotonic_ns(), 0.0)
            await asyncio.sleep(0)

    async def _awaiting(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for i in range(int(self._job["tasks"])):
                tasks.create_task(self._await_each(self._flows[i % len(self._flows)]), name=f"task {i}")

    async def _await_each(self, flow: Flow) -> None:
        writer, tally = self._writers[flow.log], self._tally
        while not self._is_over():
            await self._append(flow, writer, tally)

    async def _append(self, flow: Flow, writer: Writer, tally: Tally) -> None:
        now, sequence = time.monotonic_ns(), flow.sent
        (record,) = self._maker.make(sequence, 1, now)
        tally.handed(flow, 1, now, 0.0, now)
        try:
            position = await writer.append(record)
        except Exception as error:  # noqa: BLE001 - any error of a peer's client is a failed append
            unknown = bool(getattr(error, "outcome_unknown", True))
            tally.answered(flow, Refused(sequence, 1, f"{type(error).__name__}: {error}", unknown))
            await asyncio.sleep(SLOT_S)
            return
        tally.answered(flow, Acked(sequence, 1, position))

    async def _open(self) -> None:
        rate = float(self._job["rate"])
        start_ns, end_ns = self._tally.start_ns, self._tally.to_ns
        step_ns = 1e9 / rate
        done = 0
        while not self._orders.stop.is_set():
            now = min(time.monotonic_ns(), end_ns)
            due = int((now - start_ns) / step_ns)
            while done < due and not self._orders.stop.is_set():
                count = min(due - done, CHUNK_RECORDS)
                await self._hand_over_due(count, start_ns + int(done * step_ns), step_ns)
                done += count
            if now >= end_ns:
                return
            await asyncio.sleep(SLOT_S)

    async def _hand_over_due(self, count: int, due_ns: int, step_ns: float) -> None:
        if len(self._flows) == 1:
            await self._hand_over(self._flows[0], count, due_ns, step_ns)
            return
        for index, many in Counter(next(self._choices) for _ in range(count)).items():
            await self._hand_over(self._flows[index], many, due_ns, 0.0)

    async def _hand_over(self, flow: Flow, count: int, due_ns: int, step_ns: float) -> None:
        writer = self._writers[flow.log]
        records = self._maker.make(flow.sent, count, due_ns, step_ns)
        self._tally.handed(flow, count, due_ns, step_ns, time.monotonic_ns())
        if self._batch > 1:
            await writer.hand_over_batch(records)
        else:
            await writer.hand_over(records)

    # ---- helpers of the loops ---------------------------------------------------------------------------------------

    def _pick(self) -> Flow:
        return self._flows[0] if len(self._flows) == 1 else self._flows[next(self._choices)]

    def _draws(self) -> Iterator[int]:
        """The log of each record: the n-th heaviest has weight 1/n^zipf; the order of logs is random."""
        rng = random.Random(f"{self._job.get('seed', 0)} {self._number}")
        logs = list(range(len(self._flows)))
        rng.shuffle(logs)
        zipf = float(self._job.get("zipf", 0.0))
        cumulative = list(itertools.accumulate(1 / (n + 1) ** zipf for n in range(len(logs))))
        while True:
            yield from rng.choices(logs, cum_weights=cumulative, k=4096)

    @property
    def _left(self) -> int:
        """Records that may still be handed over."""
        return self._records - self._tally.sent if self._records else 1 << 62

    def _on_answer(self, flow: Flow, answer: Acked | Refused) -> None:
        self._tally.answered(flow, answer)
        self._answered.set()

    def _is_over(self) -> bool:
        return self._orders.stop.is_set() or time.monotonic_ns() >= self._tally.to_ns

    async def _or_stop(self, event: asyncio.Event) -> None:
        """Wait for the event, at most TICK_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                await event.wait()

    async def _touch_all(self) -> None:
        """Append one record to each log, so that all are open when the load begins."""
        todo = iter(self._flows)

        async def some() -> None:
            for flow in todo:
                await self._append(flow, self._writers[flow.log], self._tally)

        async with asyncio.TaskGroup() as tasks:
            for i in range(TOUCHES):
                tasks.create_task(some(), name=f"touch {i}")

    async def _flush(self) -> None:
        """Wait for acknowledgements; records still pending after `patience_s` count as failed."""

        async def one(writer: Writer) -> None:
            try:
                await writer.flush()
            except Exception as error:  # noqa: BLE001 - any error of a peer's client
                self._tally.note_error(f"flush: {type(error).__name__}: {error}")

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(self._job.get("patience_s", 30.0))), asyncio.TaskGroup() as tasks:
                for writer, flow in zip(self._writers, self._flows, strict=True):
                    if flow.chunks:
                        tasks.create_task(one(writer), name="flush")

    @asynccontextmanager
    async def _ticking(self) -> AsyncIterator[Callable[[], float]]:
        """Report progress, and measure this process's CPU seconds over the measured time."""
        marks: list[float] = []

        async def tick() -> None:
            acked = -1
            while True:
                if self._tally.acked != acked:
                    acked = self._tally.acked
                    say("tick", acked=acked, last_ack_ns=self._tally.last_ack_ns)
                await asyncio.sleep(TICK_S)

        async def mark() -> None:
            for instant in (self._tally.from_ns, self._tally.to_ns):
                await self._until_ns(instant)
                marks.append(time.process_time())

        def cpu() -> float:
            return (marks[1] if len(marks) > 1 else time.process_time()) - (marks[0] if marks else 0.0)

        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(tick(), name="tick"), tasks.create_task(mark(), name="cpu")]
            try:
                yield cpu
            finally:
                for task in both:
                    task.cancel()

    @staticmethod
    async def _until_ns(instant: int) -> None:
        await asyncio.sleep(max(0.0, (instant - time.monotonic_ns()) / 1e9))
