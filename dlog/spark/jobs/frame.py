"""Common frame of jobs: options, a report, and work that is distributed over Spark's workers.

Invariants:
- a job that was killed can be run again and does what is left;
- a failed task does not fail the others, and the report shows it;
- `dry_run` changes nothing anywhere.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from dlog.spark.options import NAMESPACE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_LOOK_S = 0.2


class Verdict(IntEnum):
    """Exit codes of `dlog pipeline`. 1 is for commands that were used wrongly and did not begin."""

    OK = 0
    FINDINGS = 2
    FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects streams of a cluster: by `streams`; else by `pattern`, a regular expression of whole names; else all.
    zookeeper: host:port,host:port."""

    zookeeper: str
    namespace: str = NAMESPACE
    streams: tuple[str, ...] = ()
    pattern: str = ""

    def options(self) -> dict[str, str]:
        """These as options of `spark.read.format("dlog")`."""
        given = {"zookeeper": self.zookeeper, "namespace": self.namespace}
        if self.streams:
            return {**given, "streams": ",".join(self.streams)}
        return {**given, "streamsPattern": self.pattern or ".*"}


@dataclass(slots=True, kw_only=True)
class Report:
    """What a job did, or with `dry_run` would do. counts: numbers by name. items: its actions, a row each. findings:
    faults in what it examined. failures: what could not be done; each says what to do."""

    job: str
    dry_run: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def verdict(self) -> Verdict:
        return Verdict.FAILED if self.failures else Verdict.FINDINGS if self.findings else Verdict.OK

    def add(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def as_map(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "dry_run": self.dry_run,
            "verdict": self.verdict.name.lower(),
            "counts": self.counts,
            "items": self.items,
            "findings": self.findings,
            "failures": self.failures,
            "took_s": round(self.took_s, 3),
        }

    def as_json(self) -> str:
        """The same fields in every case, keys sorted."""
        return json.dumps(self.as_map(), indent=1, sort_keys=True, default=str) + "\n"


@contextmanager
def reporting(job: str, *, dry_run: bool) -> Iterator[Report]:
    """A report that measures the job's time."""
    report = Report(job=job, dry_run=dry_run)
    begun_s = time.monotonic()
    try:
        yield report
    finally:
        report.took_s = time.monotonic() - begun_s


class Progress(Protocol):
    """Receives the progress of a job. For display only."""

    def step(self, what: str, done: int, whole: int) -> None: ...


class Silent:
    """Ignores progress."""

    def step(self, what: str, done: int, whole: int) -> None: ...


def scatter(
    spark: SparkSession,
    tasks: Sequence[T],
    work: Callable[[T], R],
    *,
    what: str,
    progress: Progress | None = None,
) -> list[R]:
    """Run `work` on each task, each in a Spark task of its own; returns the results in order. Tasks and results are
    pickled.

    Raises what Spark raises once a task has failed too often: `work` catches what is to fail alone.
    """
    if not tasks:
        return []
    context = spark.sparkContext
    group = f"dlog {what} {time.monotonic_ns()}"
    over = threading.Event()
    progress = progress or Silent()
    progress.step(what, 0, len(tasks))

    def watch() -> None:
        tracker = context.statusTracker()
        while not over.wait(_LOOK_S):
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
                progress.step(what, sum(stage.numCompletedTasks for stage in stages if stage), len(tasks))

    watcher = threading.Thread(target=watch, name=group, daemon=True)
    watcher.start()
    context.setJobGroup(group, f"dlog: {what}", interruptOnCancel=True)
    try:
        done: list[R] = context.parallelize(list(tasks), len(tasks)).map(work).collect()
    finally:
        over.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", cast(Any, None))  # None removes it
    progress.step(what, len(tasks), len(tasks))
    return done
