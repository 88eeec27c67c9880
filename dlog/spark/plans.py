"""Plans which entries a batch reads. Streaming reads share parts of it.

Invariants:
- a loss of records raises an error or, with failOnDataLoss=false, is reported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dlog.errors import ConfigError, DLogError, StreamNotFoundError, TruncatedError
from dlog.io.clock import unix_ms
from dlog.spark.cluster_connection import Cluster, Work, reach
from dlog.spark.losses import UNKNOWN, Loss, check_kept, lost
from dlog.spark.offsets import StreamOffset, StreamPosition
from dlog.spark.options import Bound, Kind, SourceOptions
from dlog.spark.planning import Range, partitions, span
from dlog.spark.pruning import Pruning
from dlog.spark.skipped_records import Line, check_location, leave, loss_name
from dlog.spark.source_partitions import Task
from dlog.spark.views import Seen, StreamViewer, records_before, resolve

T = TypeVar("T")


def ask(options: SourceOptions, work: Work[T]) -> T:
    """Run `work` with the cluster, retries and timeout of these options."""
    return reach(options.zookeeper, options.namespace, options.stores).ask(
        work, retries=options.fetch_retries, timeout_s=options.fetch_timeout_s
    )


def tasks(options: SourceOptions, ranges: Sequence[Range]) -> list[Task]:
    """Divide ranges into Spark tasks."""
    packed = partitions(
        ranges,
        split_bytes=options.split_bytes,
        open_cost_bytes=options.open_cost_bytes,
        partitions_min=options.partitions_min,
        records_max=options.records_per_partition_max,
    )
    return [Task(part) for part in packed]


@dataclass(slots=True)
class LossReporter:
    """Raises losses, or with failOnDataLoss=false reports each once: in the driver's log, and in `leftOutTo` if set."""

    options: SourceOptions
    reported: set[str] = field(default_factory=set)

    async def report(
        self, cluster: Cluster, error: DLogError, stream: str, mark: StreamOffset, loss: Loss = UNKNOWN
    ) -> None:
        if self.options.fail_on_data_loss:
            raise error
        if error.message in self.reported:
            return
        print(f"dlog: records lost: {error.message}", file=sys.stderr)  # noqa: T201 - Spark shows it in the driver's log
        if self.options.left_out_to:
            segment, entry, _ = mark.position
            line = Line("lost", stream, segment, entry, error.message, loss, unix_ms())
            await leave(cluster, self.options.left_out_to, loss_name(stream, mark), [line])
        self.reported.add(error.message)

    async def check_kept(
        self, cluster: Cluster, seen: Seen, mark: StreamOffset, stop: StreamOffset | None = None
    ) -> None:
        """Raise or report what is gone after `mark`, up to `stop` at most. What metadata does not show is read from
        the entries at both ends, if they still exist."""
        view = seen.view
        is_short = stop is not None and stop.position < view.earliest
        to = stop.position if stop is not None and is_short else view.earliest
        head = stop.read if stop is not None and is_short else -1
        loss = lost(view, mark, to, head=head)
        if not loss.is_exact:
            head = head if head >= 0 else await records_before(cluster, seen, to)
            loss = lost(view, mark, to, head=head, read=await records_before(cluster, seen, mark.position))
        try:
            check_kept(view, mark, loss)
        except TruncatedError as error:
            await self.report(cluster, error, view.name, mark, loss)


def check_named(options: SourceOptions, found: Iterable[str]) -> None:
    """Raises StreamNotFoundError for a named stream that does not exist."""
    for name in options.streams:
        if name not in found:
            raise StreamNotFoundError(f"no such stream: stream={name} namespace={options.namespace}")


async def plan_batch(cluster: Cluster, *, options: SourceOptions, pruning: Pruning) -> list[Range]:
    """Ranges to read, in the order of each stream, stream after stream.

    Raises StreamNotFoundError; ConfigError for a pattern that matches nothing, and for a start later than every record;
    TruncatedError.
    """
    if options.left_out_to:
        await check_location(cluster, options.left_out_to)
    losses = LossReporter(options)
    found = await StreamViewer().look(cluster, options)
    check_named(options, found)
    if not found:
        raise ConfigError(f"no stream matches; `dlog ls` lists streams: streamsPattern={options.pattern[:60]!r}")
    ranges: list[Range] = []
    for name, seen in found.items():
        if not pruning.admits_stream(name):
            continue
        start = await starting_position(cluster, seen, options.starting.of(name), options.starting_strategy)
        end = await _end(cluster, seen, options.ending.of(name))
        await losses.check_kept(cluster, seen, StreamOffset(start), StreamOffset(end))
        ranges += [r for r in span(seen.view, start, end) if pruning.admits(r, seen.view.segment(r.segment))]
    return ranges


async def starting_position(cluster: Cluster, seen: Seen, bound: Bound, strategy: str) -> StreamPosition:
    """Where to begin. Raises ConfigError if no record is as late as `bound`, unless `strategy` is "latest"."""
    position = await resolve(cluster, seen, bound)
    if position is not None:
        return position
    if strategy == "latest":
        return seen.view.latest
    what = "txid" if bound.kind is Kind.TXID else "time in unix milliseconds"
    raise ConfigError(
        f"no record is as late as the requested start; startingStrategy=latest begins after the last record: "
        f"stream={seen.view.name} {what}={bound.value}"
    )


async def _end(cluster: Cluster, seen: Seen, bound: Bound) -> StreamPosition:
    position = await resolve(cluster, seen, bound)
    return seen.view.latest if position is None else min(position, seen.view.latest)
