"""Runs tests again that depend on real seconds, such as sessions that end after one or two of silence.

What was run again is listed at the end of the run (tests/conftest.py).

Invariants:
- A failure of a test with `@pytest.mark.real_time` is void if, for longer than STILL_S during the test, this process
  did not run or the disk took no byte. Then the test is run again with new fixtures, at most RUNS times in all.
- A failure while the machine ran is a failure.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from _pytest.runner import runtestprotocol

STILL_S = 0.4
RUNS = 4
VOID = "void run"  # the property of a report that says why it is not the first
_LOOK_S = 0.02


class Standstill:
    """The longest time for which the machine stood still."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def looked(self, since_s: float, expected_s: float) -> None:
        self.longest_s = max(self.longest_s, time.monotonic() - since_s - expected_s)


@contextmanager
def watched() -> Iterator[Standstill]:
    """Watch clock and disk, each from a thread of its own, while the scope lasts."""
    seen, over = Standstill(), threading.Event()

    def clock() -> None:
        since_s = time.monotonic()
        while not over.wait(_LOOK_S):
            seen.looked(since_s, _LOOK_S)
            since_s = time.monotonic()

    def disk() -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            while not over.wait(_LOOK_S * 10):
                since_s = time.monotonic()
                file.write(b".")
                os.fdatasync(file.fileno())
                seen.looked(since_s, 0.0)

    threads = [threading.Thread(target=look, daemon=True) for look in (clock, disk)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()


def run(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Implement pytest_runtest_protocol for a test of real time; None leaves it to pytest."""
    if item.get_closest_marker("real_time") is None:
        return None
    void: list[tuple[str, object]] = []
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(RUNS)):
        with watched() as seen:
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not left or seen.longest_s < STILL_S or not any(report.failed for report in reports):
            break
        void.append((VOID, f"the machine stood still for {seen.longest_s:.1f} s"))
        item._initrequest()  # type: ignore[attr-defined]  # fixtures anew
    for report in reports:
        if report.when == "setup":
            report.user_properties += void
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
