"""A query whose processes are killed at planned points (killing.py) and which is restarted, and the check of its
result."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dlog.io.children import die_with_parent
from tests.integration.spark.deaths import environment
from tests.integration.spark.killing import Arguments
from tests.integration.spark.lake import Lake
from tests.integration.spark.test_sink import stages, values

PATIENCE_S = 240
STAGED, APPENDED = "1", "256k"


class Ordeal:
    """One query, restarted until it completes."""

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
        """Run it once, until it ends or is killed; returns the exit code."""
        arguments = replace(self.arguments, **changed)
        with self.printed.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark.killing", json.dumps(asdict(arguments))],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
                env=environment(),
            )
            code = process.wait(PATIENCE_S)
        self.killed = len(list(self.plans.glob("*.done")))
        return code

    def judge(self) -> None:
        assert values(self.lake, self.arguments.to) == self.expected, self.printed.read_text()[-2000:]
        assert not list(self.plans.glob("*.json")), "somebody was to die, and was not"
        assert stages(self.lake, self.arguments.to) == []
