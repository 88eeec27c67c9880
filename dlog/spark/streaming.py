"""Implements `spark.readStream.format("dlog")`: streams, micro-batch after micro-batch.

Invariants:
- a batch is the records between two offsets, the same for ever;
- what cannot be read any more is an error, or with failOnDataLoss=false reported, never silence;
- a position has one spelling, since Spark compares offsets as text;
- the cluster is asked at most once in `minPollIntervalMs`, since Spark polls without pause.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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

from dlog.errors import ConfigError, DLogError, StreamNotFoundError, TruncatedError
from dlog.spark import readers
from dlog.spark.cluster_connection import Cluster
from dlog.spark.losses import is_another, lost, offset_at
from dlog.spark.offsets import BEGINNING, StreamOffset, StreamPosition, offsets_as_json, parse_offsets
from dlog.spark.options import Kind, SourceOptions
from dlog.spark.planning import Range, StreamView, advance, advance_segments, amount, span
from dlog.spark.plans import LossReporter, ask, check_named, starting_position, tasks
from dlog.spark.reading import batches
from dlog.spark.skipped_records import check_location
from dlog.spark.source_partitions import Task
from dlog.spark.views import Seen, StreamViewer


class StreamsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance plans on the driver; another, with options and schema only, reads in tasks."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._views = StreamViewer()
        self._losses = LossReporter(options)
        self._seen: dict[str, Seen] = {}
        self._seen_s = float("-inf")
        self._target: dict[str, StreamPosition] | None = None  # set by Trigger.AvailableNow
        self._waits_since_s: float | None = None  # for minOffsetsPerTrigger

    # ---- beginning --------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Called twice before the first batch, and again after a restart before it was done: always the same."""
        return offsets_as_json(ask(self._options, self._begin))

    async def _begin(self, cluster: Cluster) -> dict[str, StreamOffset]:
        options = self._options
        if options.left_out_to:
            await check_location(cluster, options.left_out_to)
        found = await self._views.look(cluster, options)
        check_named(options, found)
        start = {}
        for name, seen in found.items():
            bound = options.starting.of(name)
            if bound.kind is Kind.EARLIEST:
                start[name] = StreamOffset(BEGINNING)
            else:
                position = await starting_position(cluster, seen, bound, options.starting_strategy)
                start[name] = offset_at(seen.view, position)
        if not options.reader_id:
            return start
        kept = await readers.begin(cluster, options.namespace, options.reader_id, start)
        for name in kept:
            if not options.selects(name):
                raise ConfigError(
                    f"the readerId belongs to a reader of other streams: readerId={options.reader_id} stream={name}"
                )
        return kept

    # ---- end of the next batch --------------------------------------------------------------------------------------

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
        """The end of the next batch; `start` if there are no records, or not enough yet."""
        begun = parse_offsets(start, "offsets of the batch before")
        found = self._look()
        self._check_there(begun, found)
        starts = {name: _position_in(seen.view, begun.get(name)) for name, seen in found.items()}
        ends = {name: self._latest(seen, starts[name], begun.get(name)) for name, seen in found.items()}
        ends = self._limited({name: seen.view for name, seen in found.items()}, starts, ends, limit)
        may_wait = not isinstance(limit, ReadAllAvailable) and self._target is None
        if may_wait and self._is_too_little(found, starts, ends):
            return start
        marks = {name: offset_at(found[name].view, end, begun.get(name)) for name, end in ends.items()}
        new = {name: mark for name, mark in marks.items() if name in begun or mark.position != BEGINNING}
        end = {**begun, **new}
        return start if end == begun else offsets_as_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        views = {name: seen.view for name, seen in self._look().items()}
        return offsets_as_json({name: offset_at(view, view.latest) for name, view in views.items()})

    def _latest(self, seen: Seen, begun: StreamPosition, mark: StreamOffset | None) -> StreamPosition:
        """The latest position of a stream. Never before the end of the last batch, unless the stream was re-created;
        exactly there while nothing follows."""
        view = seen.view
        latest = view.latest_after(begun)
        if begun > latest:
            return latest
        if mark is not None and BEGINNING < begun == mark.position and not span(view, begun, latest):
            return begun if lost(view, mark).most == 0 else latest
        if self._target is not None:
            return max(begun, min(latest, self._target.get(view.name, BEGINNING)))
        return latest

    def _limited(
        self,
        views: Mapping[str, StreamView],
        starts: Mapping[str, StreamPosition],
        ends: Mapping[str, StreamPosition],
        limit: ReadLimit,
    ) -> dict[str, StreamPosition]:
        """Apply the limit of a batch: streams share it in proportion to their backlogs."""
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

    def _is_too_little(
        self, found: Mapping[str, Seen], starts: Mapping[str, StreamPosition], ends: Mapping[str, StreamPosition]
    ) -> bool:
        """Whether to wait for more records, at most maxTriggerDelay from when there are any."""
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

    # ---- contents of a batch ----------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = parse_offsets(start, "start of a batch"), parse_offsets(end, "end of a batch")
        found = self._look()
        if any(name not in found or _is_beyond(found[name].view, mark) for name, mark in ended.items()):
            found = self._look(fresh=True)
        self._check_there(ended, found)
        ranges: list[Range] = []
        for name, stop in ended.items():
            if name not in found or is_another(found[name].view, stop):
                continue  # reported as lost
            ranges += self._span(found[name], begun.get(name, StreamOffset(BEGINNING)), stop)
        return tasks(self._options, ranges)

    def _span(self, seen: Seen, begun: StreamOffset, stop: StreamOffset) -> list[Range]:
        view = seen.view
        if is_another(view, begun):
            self._check_there({view.name: begun}, {view.name: seen})
            begun = StreamOffset(BEGINNING)
        if begun.position > stop.position:
            self._report(_order_error(view, begun, stop), view.name, begun)
            begun = StreamOffset(BEGINNING)
        if lost(view, begun).most != 0:
            ask(self._options, lambda cluster: self._losses.check_kept(cluster, seen, begun, stop))
        return span(view, begun.position, stop.position)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(partition.ranges if isinstance(partition, Task) else (), self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Record that everything before `end` was processed, to show the lag."""
        options = self._options
        if options.reader_id:
            done = parse_offsets(end, "offsets that were committed")
            ask(options, lambda cluster: readers.commit(cluster, options.namespace, options.reader_id, done))

    def stop(self) -> None:
        """Does nothing, since nothing is held. Spark does not always call it."""

    # ---- state of the cluster ---------------------------------------------------------------------------------------

    def _look(self, *, fresh: bool = False) -> dict[str, Seen]:
        now_s = time.monotonic()
        if fresh or now_s - self._seen_s >= self._options.poll_interval_min_s:
            self._seen = ask(self._options, lambda cluster: self._views.look(cluster, self._options))
            self._seen_s = time.monotonic()
        return self._seen

    def _check_there(self, known: Mapping[str, StreamOffset], found: Mapping[str, Seen]) -> None:
        """Raise or report streams that were deleted or re-created since they were read."""
        for name, mark in known.items():
            error = _gone_error(name) if name not in found else _recreated_error(found[name].view, mark)
            if error is not None:
                self._report(error, name, mark)

    def _report(self, error: DLogError, stream: str, mark: StreamOffset) -> None:
        ask(self._options, lambda cluster: self._losses.report(cluster, error, stream, mark))


def _position_in(view: StreamView, mark: StreamOffset | None) -> StreamPosition:
    return BEGINNING if mark is None or is_another(view, mark) else mark.position


def _is_beyond(view: StreamView, mark: StreamOffset) -> bool:
    return view.latest < mark.position or is_another(view, mark)


def _gone_error(name: str) -> DLogError:
    return StreamNotFoundError(
        f"the stream was deleted; option failOnDataLoss=false continues without it: stream={name}"
    )


def _recreated_error(view: StreamView, mark: StreamOffset) -> DLogError | None:
    """The error if a stream was re-created: it has another incarnation, or ends before a position that was reached.
    Else None."""
    if not _is_beyond(view, mark):
        return None
    wanted, latest = f"stream={view.name} wanted={mark.position}", f"available={view.latest}"
    borne = "option failOnDataLoss=false reads the new stream from its first record"
    if is_another(view, mark):
        return TruncatedError(
            f"the stream was deleted and created again under the same name: {wanted} incarnation={mark.incarnation} "
            f"{latest} incarnation={view.incarnation}; {borne}"
        )
    what = (
        "its metadata went back"
        if mark.incarnation and view.incarnation
        else "deleted and created again under the same name"
    )
    return TruncatedError(f"the stream ends before the position already read, {what}: {wanted} {latest}; {borne}")


def _order_error(view: StreamView, start: StreamOffset, stop: StreamOffset) -> DLogError:
    return TruncatedError(
        f"a batch ends before it begins: stream={view.name} start={start.position} end={stop.position}; option "
        f"failOnDataLoss=false reads that stream from its first record"
    )
