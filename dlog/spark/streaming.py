"""`spark.readStream.format("dlog")`: the same streams, micro-batch after micro-batch.

The law of this file: a batch is the records between two offsets, for ever the same; what cannot be had any more is an
error unless its loss is to be borne, and never silence. Spark compares offsets as text and polls without rest, so a
place has one spelling, and the cluster is asked again only after a while.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from dlog.errors import ConfigError, StreamNotFoundError, TruncatedError
from dlog.spark import readers
from dlog.spark.options import Kind, SourceOptions
from dlog.spark.places import BEGINNING, Place, offsets_json, offsets_of
from dlog.spark.planning import Range, StreamView, advance, advance_segments, amount, check_kept, span
from dlog.spark.plans import ask, bear, check_named, starting_place, tasks
from dlog.spark.reach import Cluster
from dlog.spark.reading import batches
from dlog.spark.source_partitions import Task
from dlog.spark.views import Seen, Views


class StreamsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One of these lives in the driver's planner; another, that knows options and schema only, reads in tasks."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._views = Views()
        self._seen: dict[str, Seen] = {}
        self._seen_s = float("-inf")
        self._target: dict[str, Place] | None = None  # of Trigger.AvailableNow
        self._waits_since_s: float | None = None  # for minOffsetsPerTrigger

    # ---- where it begins --------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Asked twice before the first batch, and again after a restart before it was done: always the same."""
        return offsets_json(ask(self._options, self._begin))

    async def _begin(self, cluster: Cluster) -> dict[str, Place]:
        options = self._options
        found = await self._views.look(cluster, options)
        check_named(options, found)
        start = {}
        for name, seen in found.items():
            bound = options.starting.of(name)
            if bound.kind is Kind.EARLIEST:
                start[name] = BEGINNING
            else:
                start[name] = await starting_place(cluster, seen, bound, options.starting_strategy)
        if not options.reader_id:
            return start
        kept = await readers.begin(cluster, options.namespace, options.reader_id, start)
        for name in kept:
            if not options.selects(name):
                raise ConfigError(
                    f"the reader of this name reads other streams: readerId={options.reader_id} stream={name}"
                )
        return kept

    # ---- how far it goes --------------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.offsets_per_trigger_max:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.segments_per_trigger_max:
            return ReadMaxFiles(options.segments_per_trigger_max)
        if options.offsets_per_trigger_min:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {name: seen.view.latest for name, seen in self._look(fresh=True).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` if there is nothing, or not enough yet."""
        begun = offsets_of(start, "offsets of the batch before")
        found = self._look()
        self._check_there(begun, found)
        starts = {name: begun.get(name, BEGINNING) for name in found}
        ends = {name: self._latest(seen, starts[name]) for name, seen in found.items()}
        ends = self._limited({name: seen.view for name, seen in found.items()}, starts, ends, limit)
        is_told_how_much = not isinstance(limit, ReadAllAvailable) and self._target is None
        if is_told_how_much and self._is_too_little(found, starts, ends):
            return offsets_json(begun)
        new = {name: end for name, end in ends.items() if name in begun or end != BEGINNING}
        return offsets_json({**begun, **new})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return offsets_json({name: seen.view.latest for name, seen in self._look().items()})

    def _latest(self, seen: Seen, begun: Place) -> Place:
        """Never before where the last batch ended, but in a stream that was made again."""
        latest = seen.view.latest_after(begun)
        if begun > latest:
            return latest
        if self._target is not None:
            return max(begun, min(latest, self._target.get(seen.view.name, BEGINNING)))
        return latest

    def _limited(
        self,
        views: Mapping[str, StreamView],
        starts: Mapping[str, Place],
        ends: Mapping[str, Place],
        limit: ReadLimit,
    ) -> dict[str, Place]:
        """Of each stream its share of the bound: each stream's backlog counts as much as it holds."""
        if isinstance(limit, ReadMaxFiles):
            return {n: advance_segments(views[n], starts[n], ends[n], limit.max_files) for n in ends}
        if not isinstance(limit, ReadMaxRows | ReadMaxBytes):
            return dict(ends)
        backlog = [amount(views[n], starts[n], ends[n]) for n in ends]
        if isinstance(limit, ReadMaxRows):
            whole, most = sum(one.records for one in backlog), limit.max_rows
        else:
            whole, most = sum(one.bytes for one in backlog), limit.max_bytes
        if whole <= most:
            return dict(ends)
        return {n: advance(views[n], starts[n], ends[n], most / whole) for n in ends}

    def _is_too_little(self, found: Mapping[str, Seen], starts: Mapping[str, Place], ends: Mapping[str, Place]) -> bool:
        """Whether to wait for more records. Not for longer than maxTriggerDelay since there are any."""
        least = self._options.offsets_per_trigger_min
        if not least or starts == ends:
            return False
        now_s = time.monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        there = sum(amount(seen.view, starts[name], ends[name]).records for name, seen in found.items())
        if there < least and now_s - self._waits_since_s < self._options.trigger_delay_max_s:
            return True
        self._waits_since_s = None
        return False

    # ---- what a batch is --------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = offsets_of(start, "start of a batch"), offsets_of(end, "end of a batch")
        found = self._look()
        if any(name not in found or found[name].view.latest < place for name, place in ended.items()):
            found = self._look(fresh=True)
        self._check_there(ended, found)
        ranges: list[Range] = []
        for name, stop in ended.items():
            if name not in found:
                continue  # its loss is borne
            ranges += self._span(found[name].view, begun.get(name, BEGINNING), stop)
        return tasks(self._options, ranges)

    def _span(self, view: StreamView, start: Place, stop: Place) -> list[Range]:
        bear(self._options, partial(_check_order, view, start, stop))
        if start > stop:
            start = BEGINNING
        bear(self._options, partial(check_kept, view, start))
        bear(self._options, partial(_check_end, view, stop))
        return span(view, start, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(partition.ranges if isinstance(partition, Task) else (), self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """What lies before `end` was dealt with: told to who asks for the lag."""
        options = self._options
        if options.reader_id:
            done = offsets_of(end, "offsets that were committed")
            ask(options, lambda cluster: readers.commit(cluster, options.namespace, options.reader_id, done))

    def stop(self) -> None:
        """Spark does not always say so; nothing is held that would have to be given back."""

    # ---- what is there ----------------------------------------------------------------------------------------------

    def _look(self, *, fresh: bool = False) -> dict[str, Seen]:
        now_s = time.monotonic()
        if fresh or now_s - self._seen_s >= self._options.poll_interval_min_s:
            self._seen = ask(self._options, lambda cluster: self._views.look(cluster, self._options))
            self._seen_s = time.monotonic()
        return self._seen

    def _check_there(self, known: Mapping[str, Place], found: Mapping[str, Seen]) -> None:
        for name, place in known.items():
            seen = found.get(name)
            if seen is None:
                bear(self._options, partial(_tell_gone, name))
            else:
                bear(self._options, partial(_check_end, seen.view, place))


def _tell_gone(name: str) -> None:
    raise StreamNotFoundError(f"the stream was deleted; option failOnDataLoss=false goes on without it: stream={name}")


def _check_end(view: StreamView, place: Place) -> None:
    """Raises TruncatedError if the stream ends before a place that it had reached."""
    if place > view.latest:
        raise TruncatedError(
            f"the stream ends before what was read of it, it is another of the same name: stream={view.name} "
            f"wanted={place} available={view.latest}; option failOnDataLoss=false reads that one from its first record"
        )


def _check_order(view: StreamView, start: Place, stop: Place) -> None:
    """Raises TruncatedError for a batch that ends before it begins."""
    if start > stop:
        raise TruncatedError(f"a batch ends before it begins: stream={view.name} start={start} end={stop}")
