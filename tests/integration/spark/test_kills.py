"""Kills of a Python worker or of an executor: before, during and after each step of a batch.

After any number of kills at any point, a reader of the copy finds each record once and in order, and no stage is left.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.spark.killing import IN_TASKS
from tests.integration.spark.lake import Lake
from tests.integration.spark.ordeals import APPENDED, STAGED, Ordeal

pytestmark = pytest.mark.long
BATCHES = len(IN_TASKS) + 1  # a kill in each but the last


@pytest.mark.parametrize("append_bytes", [STAGED, APPENDED], ids=["staged", "appended"])
def test_workers_are_killed_wherever_they_are(lake: Lake, tmp_path: Path, append_bytes: str) -> None:
    ordeal = Ordeal(lake, tmp_path, BATCHES, append_bytes=append_bytes)
    for batch, point in enumerate(IN_TASKS):
        ordeal.plan(batch, point, "worker")
    assert ordeal.run() == 0, ordeal.printed.read_text()[-3000:]
    ordeal.judge()
    assert ordeal.killed == len(IN_TASKS)


def test_executors_are_killed_wherever_they_are(lake: Lake, tmp_path: Path) -> None:
    ordeal = Ordeal(lake, tmp_path, BATCHES, master="local-cluster[2,1,1024]", append_bytes=STAGED)
    for batch, point in enumerate(IN_TASKS):
        ordeal.plan(batch, point, "executor")
    assert ordeal.run() == 0, ordeal.printed.read_text()[-3000:]
    ordeal.judge()
    assert ordeal.killed == len(IN_TASKS)
