"""Tests what a process of the service sets for itself at its start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_POLICY = (
    "import os; from dlog.io import process; {first}; process.use_batch_scheduling(); print(os.sched_getscheduler(0))"
)


def _policy_after(first: str) -> int:
    told = subprocess.run(
        [sys.executable, "-c", _POLICY.format(first=first)], stdout=subprocess.PIPE, check=True, timeout=60
    )
    return int(told.stdout)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="policies of Linux")
def test_a_process_that_gives_way_is_batch_unless_somebody_chose_otherwise() -> None:
    ordinary = "os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))"
    assert _policy_after(ordinary) == os.SCHED_BATCH
    assert _policy_after(ordinary.replace("OTHER", "IDLE")) == os.SCHED_IDLE
    refused = "os.sched_setscheduler = lambda *_: (_ for _ in ()).throw(PermissionError())"
    assert _policy_after(f"{ordinary}; {refused}") == os.SCHED_OTHER


_SERVES = """
import asyncio, gc, weakref
from dlog.io import process
from dlog.io.cycle_collector import LOOK_S

class Cycle:
    def __init__(self):
        self.itself = self

async def main():
    process.ready("proxy", "p", "p:1")
    cycle, freed, held = Cycle(), asyncio.Event(), []
    weakref.finalize(cycle, freed.set)
    gc.collect()
    assert cycle in gc.get_objects(generation=2)
    del cycle
    for _ in range(10):
        while not freed.is_set() and len(gc.get_objects(generation=1)) < 20_000:
            held += [[] for _ in range(1_000)]
        looked = asyncio.Event()
        asyncio.get_running_loop().call_later(LOOK_S, looked.set)  # behind the collector's own
        await looked.wait()
        if freed.is_set():
            return 7
    return 8

raise SystemExit(process.run(main))
"""


def test_a_process_that_serves_frees_cycles_that_have_grown_old() -> None:
    done = subprocess.run([sys.executable, "-c", _SERVES], check=False, timeout=90, capture_output=True)
    assert (done.returncode, done.stderr) == (7, b"")
