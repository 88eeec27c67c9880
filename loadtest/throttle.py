"""Gives each of some processes a few percent of a CPU.

Each process is stopped and continued in turn (SIGSTOP, SIGCONT), so that it runs for its share of each period. This
needs no privileges and looks to a process like the CPU quota of a control group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from dlog.io.children import die_with_parent

SHARE = 0.05
PERIOD_S = 1.0


@asynccontextmanager
async def throttled(pids: Sequence[int], share: float = SHARE) -> AsyncIterator[None]:
    """Let each process run for `share` of the time inside this context; the shares sum to at most 1."""
    command = [sys.executable, "-m", "loadtest.throttle", str(share), *map(str, pids)]
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
