"""Workloads of the quick measurement (append, await, fan), and one run through the public client."""

from __future__ import annotations

import asyncio
import time
import tomllib
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dlog
from dlog.errors import ConfigError, DLogError
from dlog.options import build
from loadtest.checker import Checker, Verdict
from loadtest.records import RECORD_BYTES_MIN, RecordMaker

WORKLOADS = Path(__file__).parent / "workloads"
END = b"end"  # payload appended after the last record


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One stream, its producers and its tail readers.

    mode: "pipeline" hands batch_records at a time to the client without waiting; "await" runs `tasks` tasks per
    producer, each of which awaits every append.
    """

    mode: str = "pipeline"
    records: int = 1_000_000  # of all producers
    record_bytes: int = 100
    producers: int = 1
    batch_records: int = 1000
    tasks: int = 256
    tails: int = 0

    def __post_init__(self) -> None:
        if self.mode not in ("pipeline", "await"):
            raise ValueError(f"mode must be pipeline or await: mode={self.mode}")
        if self.record_bytes < RECORD_BYTES_MIN:
            raise ValueError(f"record_bytes must be at least {RECORD_BYTES_MIN}")
        for name in ("records", "producers", "batch_records", "tasks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


def load(name: str, changes: dict[str, Any]) -> Workload:
    """Read a workload by name or path of a TOML file. Raises ConfigError."""
    path = WORKLOADS / f"{name}.toml" if "/" not in name and not name.endswith(".toml") else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in WORKLOADS.glob("*.toml")))
        raise ConfigError(f"no such workload; choose {known}, or give the path of a TOML file: name={name}")
    try:
        values = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"workload file is not readable TOML: file={path} {error}") from error
    return build(Workload, {**values, **changes}, where=str(path))


class Run:
    """One run of a workload against a cluster."""

    def __init__(self, workload: Workload, stream: str) -> None:
        self.workload = workload
        self.stream = stream
        self.checker = Checker()
        self.gap_s = 0.0  # longest time without an acknowledgement
        self.seconds = 0.0  # from the first append to the last acknowledgement
        self.read_seconds = 0.0
        self.failed: list[str] = []
        self._last_ack_s = 0.0
        self._done = asyncio.Event()

    async def go(self, client: dlog.Client) -> Verdict:
        """Write, follow, read all back from the start, check. Raises DLogError if the cluster does not recover."""
        work = self.workload
        following = [asyncio.Event() for _ in range(work.tails)]
        async with asyncio.TaskGroup() as readers:
            for i, ready in enumerate(following):
                readers.create_task(self._tail(client, f"tail-{i}", ready), name=f"tail {i}")
            for ready in following:
                await ready.wait()
            begin = self._last_ack_s = time.monotonic()
            async with asyncio.TaskGroup() as writers:
                for producer in range(work.producers):
                    share = work.records // work.producers + (producer < work.records % work.producers)
                    writers.create_task(self._write(producer, share), name=f"producer {producer}")
            self.seconds = self._last_ack_s - begin
            self._done.set()
            await client.append(self.stream, END)  # ends the tail readers
        begin = time.monotonic()
        await self._read_back(client)
        self.read_seconds = time.monotonic() - begin
        return self.checker.finish()

    async def _write(self, producer: int, count: int) -> None:
        # one client per producer: a client has one producer id
        async with dlog.connect() as client:
            if self.workload.mode == "pipeline":
                await self._write_pipeline(client, producer, count)
            else:
                await self._write_awaiting(client, producer, count)

    async def _write_pipeline(self, client: dlog.Client, producer: int, count: int) -> None:
        make = RecordMaker(producer, self.workload.record_bytes).make
        told = 0

        def written(result: dlog.BatchResult) -> None:
            nonlocal told
            self._note_ack()
            self.checker.acknowledged(producer, told, result.count, result.first)
            told += result.count

        async with client.pipeline(self.stream, written) as pipeline:
            for first in range(0, count, self.workload.batch_records):
                batch = [make(i) for i in range(first, min(count, first + self.workload.batch_records))]
                self.checker.sent(producer, first, len(batch))
                await pipeline.put(batch)

    async def _write_awaiting(self, client: dlog.Client, producer: int, count: int) -> None:
        make = RecordMaker(producer, self.workload.record_bytes).make
        sequences = iter(range(count))

        async def one() -> None:
            for sequence in sequences:
                self.checker.sent(producer, sequence, 1)
                try:
                    dlsn = await client.append(self.stream, make(sequence))
                except DLogError as error:
                    self.failed.append(f"{sequence}: {error}")
                    continue
                self._note_ack()
                self.checker.acknowledged(producer, sequence, 1, dlsn)

        async with asyncio.TaskGroup() as tasks:
            for i in range(self.workload.tasks):
                tasks.create_task(one(), name=f"producer {producer} task {i}")

    def _note_ack(self) -> None:
        now = time.monotonic()
        self.gap_s = max(self.gap_s, now - self._last_ack_s)
        self._last_ack_s = now

    async def _tail(self, client: dlog.Client, name: str, ready: asyncio.Event) -> None:
        async with aclosing(client.read_batches(self.stream, start=dlog.START, follow=True)) as batches:
            ready.set()
            async for batch in batches:
                if batch.payloads == [END]:
                    return
                self.checker.given(name, batch.dlsn, batch.payloads)

    async def _read_back(self, client: dlog.Client) -> None:
        async with aclosing(client.read_batches(self.stream, start=dlog.START, follow=False)) as batches:
            async for batch in batches:
                if batch.payloads != [END]:
                    self.checker.given("read-back", batch.dlsn, batch.payloads)
