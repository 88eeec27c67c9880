"""From options to a plan: which entries of which streams a batch reads; and what streaming reads share with that.

The law of this file: a loss is an error, or, where it is to be borne, it is said.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dlog.errors import ConfigError, DLogError, StreamNotFoundError, TruncatedError
from dlog.io.clock import unix_ms
from dlog.spark.leavings import Line, check_place, leave, loss_name
from dlog.spark.losses import UNKNOWN, Loss, check_kept, lost
from dlog.spark.options import Bound, Kind, SourceOptions
from dlog.spark.places import Mark, Place
from dlog.spark.planning import Range, partitions, span
from dlog.spark.pruning import Pruning
from dlog.spark.reach import Cluster, Work, reach
from dlog.spark.source_partitions import Task
from dlog.spark.views import Seen, Views, records_before, resolve

T = TypeVar("T")


def ask(options: SourceOptions, work: Work[T]) -> T:
    """Do this with the cluster that is meant, as patiently as was asked for."""
    return reach(options.zookeeper, options.namespace, options.cold).ask(
        work, retries=options.fetch_retries, timeout_s=options.fetch_timeout_s
    )


def tasks(options: SourceOptions, ranges: Sequence[Range]) -> list[Task]:
    """Who reads what."""
    packed = partitions(
        ranges,
        split_bytes=options.split_bytes,
        open_cost_bytes=options.open_cost_bytes,
        partitions_min=options.partitions_min,
        records_max=options.records_per_partition_max,
    )
    return [Task(part) for part in packed]


@dataclass(slots=True)
class Losses:
    """Raises a loss, or bears it where that was asked for: it is said once, and left as a line where that was asked
    for."""

    options: SourceOptions
    said: set[str] = field(default_factory=set)

    async def hear(self, cluster: Cluster, error: DLogError, stream: str, mark: Mark, loss: Loss = UNKNOWN) -> None:
        if self.options.fail_on_data_loss:
            raise error
        if error.message in self.said:
            return
        print(f"dlog: loss borne: {error.message}", file=sys.stderr)  # noqa: T201 - Spark shows it in the driver's log
        if self.options.left_out_to:
            segment, entry, _ = mark.place
            line = Line("lost", stream, segment, entry, error.message, loss, unix_ms())
            await leave(cluster, self.options.left_out_to, loss_name(stream, mark), [line])
        self.said.add(error.message)

    async def check_kept(self, cluster: Cluster, seen: Seen, mark: Mark, stop: Mark | None = None) -> None:
        """Hear of what is gone behind `mark`, up to `stop` at most. What metadata cannot tell the entries at both ends
        do, as far as they are still there."""
        view = seen.view
        is_short = stop is not None and stop.place < view.earliest
        to = stop.place if stop is not None and is_short else view.earliest
        head = stop.read if stop is not None and is_short else -1
        loss = lost(view, mark, to, head=head)
        if not loss.is_exact:
            head = head if head >= 0 else await records_before(cluster, seen, to)
            loss = lost(view, mark, to, head=head, read=await records_before(cluster, seen, mark.place))
        try:
            check_kept(view, mark, loss)
        except TruncatedError as error:
            await self.hear(cluster, error, view.name, mark, loss)


def check_named(options: SourceOptions, found: Iterable[str]) -> None:
    """Raises StreamNotFoundError for a stream that was named and is not there."""
    for name in options.streams:
        if name not in found:
            raise StreamNotFoundError(f"no such stream: stream={name} namespace={options.namespace}")


async def plan_batch(cluster: Cluster, *, options: SourceOptions, pruning: Pruning) -> list[Range]:
    """In the order of each stream, stream after stream.

    Raises StreamNotFoundError; ConfigError for a pattern that nothing matches, and for a start that nothing is as late
    as; TruncatedError.
    """
    if options.left_out_to:
        await check_place(cluster, options.left_out_to)
    losses = Losses(options)
    found = await Views().look(cluster, options)
    check_named(options, found)
    if not found:
        raise ConfigError(f"no stream matches: streamsPattern={options.pattern[:60]!r}")
    ranges: list[Range] = []
    for name, seen in found.items():
        if not pruning.admits_stream(name):
            continue
        start = await starting_place(cluster, seen, options.starting.of(name), options.starting_strategy)
        end = await _end(cluster, seen, options.ending.of(name))
        await losses.check_kept(cluster, seen, Mark(start), Mark(end))
        ranges += [r for r in span(seen.view, start, end) if pruning.admits(r, seen.view.segment(r.segment))]
    return ranges


async def starting_place(cluster: Cluster, seen: Seen, bound: Bound, strategy: str) -> Place:
    """Where to begin. Raises ConfigError if nothing is as late as that, and that is not to be borne."""
    place = await resolve(cluster, seen, bound)
    if place is not None:
        return place
    if strategy == "latest":
        return seen.view.latest
    what = "txid" if bound.kind is Kind.TXID else "time in unix milliseconds"
    raise ConfigError(
        f"nothing is as late as the start that was asked for; startingStrategy=latest begins behind all there is: "
        f"stream={seen.view.name} {what}={bound.value}"
    )


async def _end(cluster: Cluster, seen: Seen, bound: Bound) -> Place:
    place = await resolve(cluster, seen, bound)
    return seen.view.latest if place is None else min(place, seen.view.latest)
