"""Aimed kills: of the driver, an executor, a Python worker; before, amid and behind each step of a batch.

However often and wherever, a reader of the copy finds each record once and in order, and no stage is left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlog.cli.parts import die_with_parent
from dlog.client.sync import SyncClient
from tests.integration.cli.up import Up
from tests.integration.spark.killing import IN_DRIVER, IN_TASKS, Arguments
from tests.integration.spark.test_sink import stages, values
from tests.integration.spark.test_source import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 240
STAGED, APPENDED = "1", "256k"


@pytest.fixture(scope="module")
def lake(cluster: Up, client: SyncClient, spark: SparkSession) -> Lake:
    return Lake(cluster, client, spark)


class Ordeal:
    """One query, started again until it is through."""

    def __init__(self, lake: Lake, directory: Path, batches: int, **given: Any) -> None:
        self.lake = lake
        self.plans = directory / "plans"
        self.plans.mkdir()
        self.printed = directory / "printed"
        source, to = lake.create(), lake.create()
        self.expected = [b"%06d" % number for number in range(batches * 6)]
        for first in range(0, len(self.expected), 3):
            lake.client.append_batch(source, self.expected[first : first + 3])
        self.arguments = Arguments(
            lake.zookeeper,
            lake.namespace,
            source,
            to,
            str(directory / "checkpoint"),
            str(self.plans),
            limit=6,
            **given,
        )
        self.killed = 0

    def plan(self, batch: int, at: str, who: str) -> None:
        (self.plans / f"{batch}.json").write_text(json.dumps({"at": at, "who": who}))

    def run(self, **changed: Any) -> int:
        """Once, to its end or its death; returns the exit code."""
        arguments = replace(self.arguments, **changed)
        with self.printed.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark.killing", json.dumps(asdict(arguments))],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
                env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])},
            )
            code = process.wait(PATIENCE_S)
        self.killed = len(list(self.plans.glob("*.done")))
        return code

    def judge(self) -> None:
        assert values(self.lake, self.arguments.to) == self.expected, self.printed.read_text()[-2000:]
        assert not list(self.plans.glob("*.json")), "somebody was to die, and was not"
        assert stages(self.lake) == []


@pytest.mark.parametrize("append_bytes", [STAGED, APPENDED], ids=["staged", "appended"])
def test_workers_are_killed_wherever_they_are(lake: Lake, tmp_path: Path, append_bytes: str) -> None:
    ordeal = Ordeal(lake, tmp_path, 8, append_bytes=append_bytes)
    for batch, point in enumerate((*IN_TASKS, *IN_TASKS)):
        ordeal.plan(batch, point, "worker")
    assert ordeal.run() == 0, ordeal.printed.read_text()[-3000:]
    ordeal.judge()
    assert ordeal.killed == 6


def test_executors_are_killed_wherever_they_are(lake: Lake, tmp_path: Path) -> None:
    ordeal = Ordeal(lake, tmp_path, 8, master="local-cluster[2,1,1024]", append_bytes=STAGED)
    for batch, point in enumerate((*IN_TASKS, *IN_TASKS)):
        ordeal.plan(batch, point, "executor")
    assert ordeal.run() == 0, ordeal.printed.read_text()[-3000:]
    ordeal.judge()
    assert ordeal.killed == 6


def test_drivers_are_killed_wherever_they_are(lake: Lake, tmp_path: Path) -> None:
    """Each time it is started again with another number of partitions, and another way to publish."""
    ordeal = Ordeal(lake, tmp_path, 13)
    points = (*IN_DRIVER, "behind the stage", "amid the publish", "behind the publish") * 2
    for batch, point in enumerate(points):
        ordeal.plan(batch, point, "driver")
    for died in range(len(points)):
        changed = {"partitions": 1 + died % 3, "append_bytes": (STAGED, APPENDED)[died // 3 % 2]}
        assert ordeal.run(**changed) != 0, "it was to die"
        assert ordeal.killed == died + 1
    assert ordeal.run() == 0, ordeal.printed.read_text()[-3000:]
    ordeal.judge()
