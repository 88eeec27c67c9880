"""Runs in a Spark task: reads entries from the segment store, ahead of use, into Arrow batches.

Invariants:
- everything that a plan names is delivered in order, or the task fails and names the entry;
- a damaged entry is left out only with onCorruption=skip-entry, and is reported with its number of records
  (skipped_records.py); a read that fails for now is retried.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from dlog.errors import DamagedError, DLogError, MetadataUnavailableError, Remedy
from dlog.machine import OutcomeUnknown, Versioned
from dlog.model.ids import EntryId, SegmentNumber, StreamName
from dlog.model.segment import StreamKey, StreamMetadata
from dlog.spark.cluster_connection import Cluster, ClusterConnection, reach, with_retries
from dlog.spark.columns import Batches, Run, runs_of
from dlog.spark.options import SourceOptions
from dlog.spark.planning import Range
from dlog.spark.skipped_records import SkippedEntries, attempt_name, leave
from dlog.spark.workers import prepare_worker
from dlog.stores.contract import Buffer, SegmentCorruptError, SegmentReader, SegmentRef

EXTENT_BYTES = 8 << 20  # of one read from the store


class EntrySource(Protocol):
    """Source of a segment's entries."""

    async def read(self, first: int, last: int) -> Sequence[Buffer]:
        """Entries from `first` on, at least one."""
        ...


@dataclass(frozen=True, slots=True)
class Damaged:
    """Takes the place of an entry that is left out."""

    why: str


Extent = tuple[Range, int, list[Buffer | Damaged]]  # range, number of the first entry, entries
OnSkipped = Callable[[str], None]


def _say(text: str) -> None:
    print(f"dlog: {text}", file=sys.stderr)  # noqa: T201 - a task has no other log


def batches(
    ranges: Sequence[Range], options: SourceOptions, schema: pa.Schema, *, on_skipped: OnSkipped = _say
) -> Iterator[pa.RecordBatch]:
    """The records of these ranges as record batches of `schema`. on_skipped: called for each entry that is left out.

    Raises DamagedError; UnavailableError after `fetch_retries`; LedgerNotFoundError where a segment is gone;
    MisconfiguredError, StoreUnavailableError if the list of what was left out cannot be written.
    """
    prepare_worker()
    left = SkippedEntries()
    of_cluster = reach(options.zookeeper, options.namespace, options.stores)
    try:
        yield from _batches(of_cluster, ranges, options, schema, left, on_skipped)
    except GeneratorExit:
        _leave(of_cluster, options, left)  # the consumer stopped early
        raise
    _leave(of_cluster, options, left)


def _batches(
    of_cluster: ClusterConnection,
    ranges: Sequence[Range],
    options: SourceOptions,
    schema: pa.Schema,
    left: SkippedEntries,
    on_skipped: OnSkipped,
) -> Iterator[pa.RecordBatch]:
    gathered = Batches(schema)
    for of, first, payloads in of_cluster.pump(
        lambda cluster: extents(cluster, ranges, options, on_skipped=on_skipped)
    ):
        for entry, payload in enumerate(payloads, first):
            if isinstance(payload, Damaged):
                left.skipped(of, entry, payload.why)
                continue
            for run in _runs(of, entry, payload, options, left, on_skipped):
                batch = gathered.add(of, run)
                if batch is not None:
                    yield batch
    batch = gathered.take()
    if batch is not None:
        yield batch


def _runs(
    of: Range, entry: int, payload: Buffer, options: SourceOptions, left: SkippedEntries, on_skipped: OnSkipped
) -> Iterator[Run]:
    try:
        runs = runs_of(payload, entry, is_enveloped=of.is_enveloped, verify=options.verify)
    except DamagedError as error:
        left.skipped(of, entry, _damaged(of, entry, error, options, on_skipped).why)
        return
    first_slot = of.first_slot if entry == of.first else 0
    end_slot = of.end_slot if entry == of.last else 0
    for run in runs:
        left.passed(of, run)
        cut = run.cut(first_slot, end_slot) if first_slot or end_slot else run
        if cut is not None:
            yield cut


def _damaged(of: Range, entry: int, error: DLogError, options: SourceOptions, on_skipped: OnSkipped) -> Damaged:
    """Raise the error with its position, or report the entry as left out."""
    text = f"{error.message}: stream={of.stream} segment={of.segment} entry={entry}"
    if options.on_corruption == "fail":
        raise DamagedError(f"{text}; option onCorruption=skip-entry leaves such entries out") from error
    on_skipped(f"entry left out: {text}")
    return Damaged(error.message)


def _leave(of_cluster: ClusterConnection, options: SourceOptions, left: SkippedEntries) -> None:
    lines = left.finish()
    if not lines:
        return
    _say(f"left out: entries={len(lines)}; records lost: {left.total}")
    if options.left_out_to:
        of_cluster.ask(
            partial(leave, location=options.left_out_to, name=attempt_name(), lines=lines),
            retries=options.fetch_retries,
            timeout_s=options.fetch_timeout_s,
        )


async def extents(
    cluster: Cluster, ranges: Sequence[Range], options: SourceOptions, *, on_skipped: OnSkipped = _say
) -> AsyncGenerator[Extent, None]:
    """Read these ranges from the store, in order. Raises as `batches` does."""
    for of in ranges:
        async with _RangeReader(cluster, of) as source:
            entry = of.first
            while entry <= of.last:
                payloads = await _read(source, of, entry, options, on_skipped)
                yield of, entry, payloads
                entry += len(payloads)


class _RangeReader:
    """Reads the segment of a range. After a failure it opens a new reader; if the segment was moved to another store
    since the plan was made, it continues there."""

    def __init__(self, cluster: Cluster, of: Range) -> None:
        self._cluster = cluster
        self._of = of
        self._reader: SegmentReader | None = None

    async def __aenter__(self) -> _RangeReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    async def read(self, first: int, last: int) -> Sequence[Buffer]:
        try:
            return await self._read(first, last)
        except DLogError as error:
            if error.remedy not in (Remedy.STOP, Remedy.REPORT) or not await self._has_moved():
                raise
        return await self._read(first, last)

    async def _has_moved(self) -> bool:
        """Whether metadata, read now, names another location of this segment; later reads go there.

        Raises MetadataUnavailableError.
        """
        of = self._of
        if not of.incarnation:
            return False
        outcome = await self._cluster.metadata.read(StreamKey(StreamName(of.stream)))
        if isinstance(outcome, OutcomeUnknown):
            raise MetadataUnavailableError(f"metadata cannot be read now, retry later: stream={of.stream}")
        value = outcome.value if isinstance(outcome, Versioned) else None
        now = (
            value.segment(of.segment)
            if isinstance(value, StreamMetadata) and value.incarnation == of.incarnation
            else None
        )
        if now is None or not now.completed or (now.store, now.name) == (of.store, of.name):
            return False
        self._of = replace(of, store=now.store, name=now.name)
        return True

    async def _read(self, first: int, last: int) -> Sequence[Buffer]:
        if self._reader is None:
            of = self._of
            ref = SegmentRef(StreamName(of.stream), SegmentNumber(of.segment), of.name)
            self._reader = await self._cluster.store(of.store).open_reader(ref)
            self._reader.learn_lac(EntryId(of.last))
        try:
            return await self._reader.read_views(EntryId(first), EntryId(last), EXTENT_BYTES)
        except BaseException:
            await self._leave()
            raise

    async def _leave(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()


async def _read(
    source: EntrySource, of: Range, entry: int, options: SourceOptions, on_skipped: OnSkipped = _say
) -> list[Buffer | Damaged]:
    """Read entries from `entry` on, at least one."""

    async def once(last: int) -> Sequence[Buffer]:
        async with asyncio.timeout(options.fetch_timeout_s):
            return await source.read(entry, last)

    try:
        return list(await with_retries(partial(once, of.last), options.fetch_retries))
    except SegmentCorruptError:
        pass  # one of several is damaged: read the first alone
    try:
        return list(await with_retries(partial(once, entry), options.fetch_retries))
    except SegmentCorruptError as error:
        return [_damaged(of, entry, error, options, on_skipped)]
