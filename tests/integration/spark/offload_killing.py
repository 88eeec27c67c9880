"""`offload` as a program whose driver, worker or executor is killed at planned points.

    python -m tests.integration.spark.offload_killing ARGUMENTS   arguments: a JSON object, see `Arguments`

A plan is a file in a directory, named after the point, that names the process to kill there; it is removed before the
kill, so that each kill happens once.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.spark.archive import java_options
from tests.integration.spark.deaths import kill

AMID_COPY, BEHIND_COPY = "amid the copy", "behind the copy"  # in a worker
BEHIND_RECORD = "behind the record"  # in the driver
PLANS = "DLOG_TEST_PLANS"


@dataclass(frozen=True, slots=True)
class Arguments:
    """plans: directory of the planned kills."""

    zookeeper: str
    namespace: str
    stream: str
    to: str
    plans: str
    master: str = "local[2,4]"


def pass_by(point: str) -> None:
    """Kill the process if a plan names it for this point."""
    plan = Path(os.environ[PLANS], point)
    try:
        who = plan.read_text()
        plan.rename(plan.with_suffix(".done"))  # of two tasks one gets it
    except FileNotFoundError:
        return
    kill(who, os.getpgrp())


def copy_segments(errand: Any) -> Any:
    """Replaces the job's function of this name in a worker."""
    offload_copy: Any = importlib.import_module("dlog.spark.jobs.offload_copy")
    pour, read_back = offload_copy._pour, offload_copy._read_back

    async def watched_pour(reader: Any, builder: Any, write: Callable[[Sequence[bytes]], Awaitable[None]]) -> None:
        async def watched(parts: Sequence[bytes]) -> None:
            await write(parts)
            pass_by(AMID_COPY)

        await pour(reader, builder, watched)

    def watched_read_back(*given: Any) -> Any:
        pass_by(BEHIND_COPY)
        return read_back(*given)

    offload_copy._pour, offload_copy._read_back = watched_pour, watched_read_back
    try:
        return offload_copy.copy_segments(errand)
    finally:
        offload_copy._pour, offload_copy._read_back = pour, read_back


def main() -> None:
    arguments = Arguments(**json.loads(sys.argv[1]))
    os.environ[PLANS] = arguments.plans
    from dlog.spark import session
    from dlog.spark.jobs.frame import Selection
    from dlog.spark.jobs.offload_work import OffloadOptions

    spark = session(
        "killed",
        **{
            "spark.master": arguments.master,
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.ui.showConsoleProgress": "false",
            "spark.executor.extraJavaOptions": java_options(),
        },
    )
    spark.sparkContext.environment[PLANS] = arguments.plans
    job: Any = importlib.import_module("dlog.spark.jobs.offload")
    steps: Any = importlib.import_module("dlog.spark.jobs.offload_settle")
    job.copy_segments = copy_segments
    job.packed = lambda things, size: [(thing,) for thing in things]  # a task each
    move = steps._move_to_object

    async def watched_move(*given: Any) -> None:
        pass_by(BEHIND_RECORD)
        await move(*given)

    steps._move_to_object = watched_move
    place = Selection(zookeeper=arguments.zookeeper, namespace=arguments.namespace, streams=(arguments.stream,))
    report = job.offload(spark, place, OffloadOptions(to=arguments.to, older_than_s=0.0))
    print("report", json.dumps(report.as_map(), default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
