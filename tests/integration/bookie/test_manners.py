"""How a bookie's process treats other processes on its machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import packet

pytestmark = pytest.mark.zookeeper


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="policies of Linux")
def test_no_thread_of_a_bookie_takes_the_processor_from_who_wakes_it(make_bookie: Callable[..., BookieProcess]) -> None:
    bookie = make_bookie()
    bookie.start()
    with bookie.connect() as raw:
        assert raw.add(1, 0) == 0  # the journal's thread has worked
        assert raw.read(1, 0) == (0, packet(1, 0, b""))
    threads = [int(task.name) for task in Path(f"/proc/{bookie.pid}/task").iterdir()]
    assert len(threads) > 1
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}
