"""What every job is: options in, a report out, and work that is spread over Spark's workers.

The law of this file: a job that was killed can be run again, and does what is left; a task that fails fails alone, and
the report says so. `dry_run` changes nothing anywhere.
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
    """Exit codes of `dlog pipeline`; 1 is left to commands that were misused and never began."""

    OK = 0
    FINDINGS = 2
    FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which streams of which cluster. streams: by name; else `pattern`, a regular expression of whole names; else all.
    zookeeper: host:port,host:port."""

    zookeeper: str
    namespace: str = NAMESPACE
    streams: tuple[str, ...] = ()
    pattern: str = ""

    def options(self) -> dict[str, str]:
        """The same as options of `spark.read.format("dlog")`."""
        given = {"zookeeper": self.zookeeper, "namespace": self.namespace}
        if self.streams:
            return {**given, "streams": ",".join(self.streams)}
        return {**given, "streamsPattern": self.pattern or ".*"}


@dataclass(slots=True, kw_only=True)
class Report:
    """What a job did, or with `dry_run` would do. counts: numbers by name. items: what it did to what, a row each.
    findings: what is wrong in what was looked at. failures: what could not be done; each says what to do."""

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
        """The same fields whatever came of it, keys sorted."""
        return json.dumps(self.as_map(), indent=1, sort_keys=True, default=str) + "\n"


@contextmanager
def reporting(job: str, *, dry_run: bool) -> Iterator[Report]:
    """A report, and how long it took."""
    report = Report(job=job, dry_run=dry_run)
    begun_s = time.monotonic()
    try:
        yield report
    finally:
        report.took_s = time.monotonic() - begun_s


class Progress(Protocol):
    """Told how far a job is; nothing rests on it."""

    def step(self, what: str, done: int, whole: int) -> None: ...


class Silent:
    """Nobody watches."""

    def step(self, what: str, done: int, whole: int) -> None: ...


def scatter(
    spark: SparkSession,
    tasks: Sequence[T],
    work: Callable[[T], R],
    *,
    what: str,
    progress: Progress | None = None,
) -> list[R]:
    """What `work` makes of each of these, in their order, each a Spark task of its own; tasks and results are pickled.

    Raises what Spark raises once a task has failed too often: what is to fail alone is caught in `work`.
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
                told = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(stage) for stage in (told.stageIds if told else ())]
                progress.step(what, sum(stage.numCompletedTasks for stage in stages if stage), len(tasks))

    watcher = threading.Thread(target=watch, name=group, daemon=True)
    watcher.start()
    context.setJobGroup(group, f"dlog: {what}", interruptOnCancel=True)
    try:
        done: list[R] = context.parallelize(list(tasks), len(tasks)).map(work).collect()
    finally:
        over.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", cast(Any, None))  # None takes it away
    progress.step(what, len(tasks), len(tasks))
    return done
