"""Measures the longest time without an acknowledgement while each process gets a few percent of a CPU.

Each process is stopped and continued in turn (SIGSTOP, SIGCONT), so that it runs for its share of each period. This
needs no privileges and looks to a process like the CPU quota of a control group. Figures are reported only if every
acknowledged record is read back exactly once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import dlog
from dlog.cli.discovery import RunningCluster
from dlog.client.options import ClientOptions
from dlog.io.children import die_with_parent
from loadtest.checker import Checker
from loadtest.faults import ACKS_BETWEEN, Writer, read_back
from loadtest.outages import judge

SHARE = 0.05
PERIOD_S = 1.0
SECONDS = 60.0
WRITERS, TASKS = 2, 4
DEADLINE_S = 600.0  # of an append: long, so that a silence is measured instead of failing the append


class Starved:
    """Writers that await each record, on a `dlog up` whose processes get `share` of a CPU each for `seconds`."""

    def __init__(
        self,
        running: RunningCluster,
        seconds: float,
        share: float = SHARE,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._running = running
        self._seconds = seconds
        self._share = share
        self._tell = tell
        self._checker = Checker()

    async def go(self, stream: str) -> dict[str, Any]:
        """Run; the report. Raises DLogError, TimeoutError; processes run freely afterwards in any case."""
        options = ClientOptions(append_deadline_s=DEADLINE_S, request_deadline_s=DEADLINE_S)
        async with AsyncExitStack() as clients:
            client = await clients.enter_async_context(dlog.connect(self._running.connect, options=options))
            await client.create(stream)
            writers = []
            for number in range(WRITERS):
                own = await clients.enter_async_context(dlog.connect(self._running.connect, options=options))
                writers.append(Writer(number, stream, own, self._checker, record_bytes=100))
            epoch = (await client.owner(stream)).epoch
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(writer.run(TASKS), name="writer")
                for writer in writers:
                    await writer.acknowledged(ACKS_BETWEEN)
                    writer.mark()
                acks = sum(writer.acks for writer in writers)
                async with throttled([part.pid for part in self._running.parts if part.pid], self._share):
                    await asyncio.sleep(self._seconds)
                    for writer in writers:
                        await writer.acknowledged(1)
                    longest_s = max(writer.mark() for writer in writers)
                acks = sum(writer.acks for writer in writers) - acks
                self._tell(f"longest_s={longest_s:.1f} acks={acks}")
                for writer in writers:
                    writer.stop()
            takes = (await client.owner(stream)).epoch - epoch
            await read_back(client, stream, self._checker)
            await client.delete(stream)
        return self._report(longest_s, acks, takes, [text for writer in writers for text in writer.failed])

    def _report(self, longest_s: float, acks: int, takes: int, failed: list[str]) -> dict[str, Any]:
        verdict = self._checker.finish()
        report: dict[str, Any] = {
            "fault": "starved",
            "green": verdict.is_green and not failed,
            "verdict": verdict.as_json(),
            "failed": failed[:10],
        }
        if report["green"]:
            report |= {
                "rounds": 1,
                "seconds": self._seconds,
                "max_ms": round(longest_s * 1000, 1),
                "acks": acks,
                "takes": takes,
                "said": f"{self._share:.0%} of a CPU for each process, {self._seconds:,.0f} s: {acks:,} acknowledged, "
                f"{takes} changes of owner",
            }
            judge(report)
        return report


@asynccontextmanager
async def throttled(pids: Sequence[int], share: float) -> AsyncIterator[None]:
    """Let each process run for `share` of the time inside this context; the shares sum to at most 1."""
    command = [sys.executable, "-m", "loadtest.starved", str(share), *map(str, pids)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, preexec_fn=die_with_parent()
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()
        for pid in pids:
            _signal(pid, signal.SIGCONT)


def _throttle(pids: Sequence[int], share: float) -> None:
    """Let one process after the other run; never returns."""
    run_s = PERIOD_S * share
    rest_s = max(0.0, PERIOD_S - run_s * len(pids)) / len(pids)
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    while True:
        for pid in pids:
            _signal(pid, signal.SIGCONT)
            time.sleep(run_s)
            _signal(pid, signal.SIGSTOP)
            time.sleep(rest_s)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    _throttle([int(pid) for pid in sys.argv[2:]], float(sys.argv[1]))
