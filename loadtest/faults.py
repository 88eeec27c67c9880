"""Measures what clients see when a stream's owner is killed, is frozen or hands over, in rounds under load.

Invariants:
- the gap of a round is the longest time without an acknowledgement to one writer, over all writers, from the fault
  until each writer has had ACKS_BETWEEN more acknowledgements;
- a round begins when every proxy accepts connections and every writer gets acknowledgements;
- a failed append makes the run not green.

Source of the goals: the reliability notes, "Owners".
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dlog
from dlog.cli.discovery import RunningCluster, RunningPart, read_run_file
from dlog.errors import ClosedError, DLogError
from dlog.hostport import split_host_port
from loadtest.checker import Checker, Verdict
from loadtest.records import RecordMaker

ACKS_BETWEEN = 50  # of each writer, before a fault and after it
PATIENCE_S = 90.0
STEP_S = 0.02  # interval of polling the run file


@dataclass(frozen=True, slots=True)
class Goal:
    """Upper bound for one figure over all rounds."""

    figure: str  # "p50_ms" or "max_ms"
    at_most: float


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to change the owner of a stream."""

    name: str
    rounds: int
    goals: tuple[Goal, ...]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("failover", 20, (Goal("p50_ms", 400.0), Goal("max_ms", 1500.0))),
        Kind("freeze", 5, (Goal("max_ms", 3000.0),)),
        Kind("handover", 20, (Goal("max_ms", 100.0),)),
    )
}


@dataclass(slots=True)
class Figures:
    """Result of all rounds."""

    verdict: Verdict
    gaps_ms: list[float]
    steady_ms: list[float]  # longest time without an acknowledgement before each round's fault
    failed: list[str]

    @property
    def is_green(self) -> bool:
        return self.verdict.is_green and not self.failed

    def of(self, figure: str) -> float:
        return max(self.gaps_ms) if figure == "max_ms" else statistics.median(self.gaps_ms)

    def as_json(self, kind: Kind) -> dict[str, Any]:
        told: dict[str, Any] = {
            "fault": kind.name,
            "green": self.is_green,
            "verdict": self.verdict.as_json(),
            "failed": self.failed[:10],
        }
        if self.is_green:
            told |= {
                "rounds": len(self.gaps_ms),
                "p50_ms": round(self.of("p50_ms"), 1),
                "max_ms": round(self.of("max_ms"), 1),
                "gaps_ms": [round(gap, 1) for gap in self.gaps_ms],
                "steady_max_ms": round(max(self.steady_ms), 1),
                "load_average": round(os.getloadavg()[0], 2),
                "cpus": os.cpu_count(),
                "goals": {
                    goal.figure: {"at_most": goal.at_most, "met": self.of(goal.figure) <= goal.at_most}
                    for goal in kind.goals
                },
            }
        return told


async def read_back(client: dlog.Client, stream: str, checker: Checker) -> None:
    """Pass all records of the stream to the checker."""
    async with aclosing(client.read_batches(stream, start=dlog.START, follow=False)) as batches:
        async for batch in batches:
            checker.given("read-back", batch.dlsn, batch.payloads)


class Writer:
    """A client with some tasks, each of which awaits every append.

    pause_s: pause of a task between two appends. longest_s: the longest append so far.
    """

    def __init__(
        self,
        number: int,
        stream: str,
        client: dlog.Client,
        checker: Checker,
        record_bytes: int,
        pause_s: float = 0.0,
    ) -> None:
        self.failed: list[str] = []
        self.gap_s = 0.0
        self.longest_s = 0.0
        self.acks = 0
        self._number = number
        self._stream = stream
        self._client = client
        self._checker = checker
        self._make = RecordMaker(number, record_bytes).make
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
                dlsn = await self._client.append(self._stream, self._make(sequence))
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


@dataclass(slots=True, kw_only=True)
class Ordeal:
    """Rounds of one kind against a `dlog up`, which restarts killed processes.

    frozen_s: how long a frozen owner stays frozen after another has taken over. tell: called after each round.
    """

    kind: Kind
    running: RunningCluster
    rounds: int
    writers: int = 2
    tasks: int = 16
    record_bytes: int = 100
    frozen_s: float = 0.5
    tell: Callable[[str], None] = lambda _: None
    _checker: Checker = field(default_factory=Checker)
    _gaps_ms: list[float] = field(default_factory=list)
    _steady_ms: list[float] = field(default_factory=list)

    async def go(self, stream: str) -> Figures:
        """Create a stream and change its owner in each round. Raises DLogError, TimeoutError without recovery."""
        async with AsyncExitStack() as clients:
            client = await clients.enter_async_context(dlog.connect(self.running.connect))
            await client.create(stream)
            writers = [
                Writer(
                    number,
                    stream,
                    await clients.enter_async_context(dlog.connect(self.running.connect)),
                    self._checker,
                    self.record_bytes,
                )
                for number in range(self.writers)
            ]
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(writer.run(self.tasks), name="writer")
                try:
                    for number in range(self.rounds):
                        await self._round(client, stream, writers, number)
                finally:
                    for writer in writers:
                        writer.stop()
            await read_back(client, stream, self._checker)
            await client.delete(stream)
        failed = [text for writer in writers for text in writer.failed]
        return Figures(self._checker.finish(), self._gaps_ms, self._steady_ms, failed)

    async def _round(self, client: dlog.Client, stream: str, writers: list[Writer], number: int) -> None:
        await self._whole()
        for writer in writers:
            await writer.acknowledged(ACKS_BETWEEN)
            writer.mark()
        for writer in writers:
            await writer.acknowledged(ACKS_BETWEEN)
        self._steady_ms.append(max(writer.mark() for writer in writers) * 1000)
        owner = self._part((await client.owner(stream)).location)
        await self._hurt(client, stream, owner, writers)
        gap_ms = max(writer.mark() for writer in writers) * 1000
        self._gaps_ms.append(gap_ms)
        self.tell(f"{self.kind.name} {number + 1}/{self.rounds}: {owner.id} gap_ms={gap_ms:.0f}")

    async def _hurt(self, client: dlog.Client, stream: str, owner: RunningPart, writers: list[Writer]) -> None:
        async def answered() -> None:
            for writer in writers:
                await writer.acknowledged(ACKS_BETWEEN)

        match self.kind.name:
            case "failover":
                os.kill(owner.pid, signal.SIGKILL)
                await answered()
            case "freeze":
                os.kill(owner.pid, signal.SIGSTOP)
                try:
                    await answered()
                    await asyncio.sleep(self.frozen_s)
                finally:
                    os.kill(owner.pid, signal.SIGCONT)
                await answered()
            case "handover":
                await client.release(stream)
                await answered()

    async def _whole(self) -> None:
        """Wait until every proxy accepts connections."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                now = read_run_file(Path(self.running.directory))
                if now is None:
                    raise ClosedError(f"the `dlog up` under test has ended: dir={self.running.directory}")
                self.running = now
                if all(part.pid and _greets(part) for part in now.parts if part.role in ("write", "read")):
                    return
                await asyncio.sleep(STEP_S)

    def _part(self, address: str) -> RunningPart:
        return next(part for part in self.running.parts if part.role == "write" and part.address == address)


def _greets(part: RunningPart) -> bool:
    """Whether this process accepts connections."""
    host, port = split_host_port(part.address)
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def as_text(result: dict[str, Any]) -> str:
    """As text: the verdict, then each figure beside its goal."""
    counts = " ".join(f"{k}={v}" for k, v in result["verdict"].items() if k != "examples")
    if not result["green"]:
        return "\n".join([f"NOT GREEN, so no figures: {counts}", *result["verdict"]["examples"], *result["failed"]])
    lines = [f"green: {counts}"]
    for figure, goal in result["goals"].items():
        met = "met" if goal["met"] else "MISSED"
        lines.append(f"{result['fault']} {figure}={result[figure]} goal<={goal['at_most']:g} {met}")
    lines.append(
        f"p50_ms={result['p50_ms']} max_ms={result['max_ms']} rounds={result['rounds']} "
        f"undisturbed_max_ms={result['steady_max_ms']} load_average={result['load_average']} cpus={result['cpus']}"
    )
    return "\n".join(lines)
