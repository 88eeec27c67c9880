"""Implements `df.write.format("dlog")` and `writeStream`: rows into streams, each batch once.

Invariants:
- tasks write where no reader looks, and the driver has the streams import it: what a task wrote before it was retried,
  or before its driver died, is never visible;
- the streams' owners decide in commit; abort decides nothing, since it may follow a commit that took effect.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from dlog.errors import ConfigError
from dlog.io.clock import unix_ms
from dlog.log.staging import StagedSet
from dlog.model.sink import SinkBatch
from dlog.spark.cluster_connection import Cluster, Feed, reach
from dlog.spark.proxies import proxies_of
from dlog.spark.publishing import TaskOutput, publish
from dlog.spark.sink_options import AT_LEAST_ONCE, SinkOptions
from dlog.spark.sink_rows import ENTRY_BYTES, Cutter, Row, rows_of
from dlog.spark.stages import UNNUMBERED, Staged, Stager, stream_of, txid_of
from dlog.wire.entry import SET_RECORD_OVERHEAD

BATCH = "batch"  # the query name of a numbered batch write
_UNDER_WAY_MAX = 8  # pending batches


@dataclass
class Message(WriterCommitMessage):
    """A task's result."""

    piece: TaskOutput


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame, under a random name if it has no batch number."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = f"write-{uuid.uuid4().hex}"
        self._begun_ms = unix_ms()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self._options
        is_numbered = options.batch_id >= 0
        number = options.batch_id if is_numbered else 0
        sink, query = (options.sink_id, BATCH) if is_numbered else (UNNUMBERED, self._run)
        batch = SinkBatch(sink, options.sink_epoch, query, number)
        return _write(options, batch, iterator, self._begun_ms)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, once=self._options.batch_id >= 0)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Does nothing: stages are swept later."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query. One instance writes in a task, another commits."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "write runs in a Spark task"
        query = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        if query is None or number is None:
            raise ConfigError("Spark does not pass the numbers of query and batch; use PySpark 4.2 or later")
        options = self._options
        batch = SinkBatch(options.sink_id or f"query-{query}", options.sink_epoch, query, int(number))
        return _write(options, batch, iterator, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, messages, once=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: it may follow a commit that took effect."""


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, once: bool) -> None:
    pieces = [cast(Message, message).piece for message in messages if message is not None]
    if options.guarantee == AT_LEAST_ONCE or not pieces:
        return
    of_cluster = reach(options.zookeeper, options.namespace, options.stores)
    retries = options.fetch_retries if once else 0  # a batch without a number must not be published twice
    of_cluster.ask(lambda cluster: publish(cluster, options, pieces, once=once), retries=retries, timeout_s=None)


# ---- in a task ------------------------------------------------------------------------------------------------------


def _write(
    options: SinkOptions, batch: SinkBatch, iterator: Iterator[pa.RecordBatch], txid: int | None
) -> WriterCommitMessage:
    context = TaskContext.get()
    piece = TaskOutput(context.partitionId() if context is not None else 0, batch)
    if options.guarantee == AT_LEAST_ONCE:
        _append_all(options, iterator)
        return Message(piece)
    gathered = _Gathered(options, piece, txid)
    try:
        for rows in iterator:
            for stream, some in rows_of(rows, options.stream):
                gathered.add(stream, some)
        gathered.finish()
    except BaseException:
        gathered.abandon()
        raise
    return Message(piece)


Entry = tuple[str, list[StagedSet], bool]  # stream, its sets, whether its rows brought their own txids


class _Gathered:
    """Rows of one task: kept in memory while they are few, then staged."""

    def __init__(self, options: SinkOptions, piece: TaskOutput, txid: int | None) -> None:
        self._options = options
        self._piece = piece
        self._given_txid = txid
        self._bytes = 0
        self._cutters: dict[str, Cutter] = {}
        self._feed: Feed[Entry, list[Staged]] | None = None

    def add(self, stream: str, rows: list[Row]) -> None:
        self._bytes += sum(len(row.value) + SET_RECORD_OVERHEAD for row in rows)
        if self._feed is None and self._bytes <= self._options.append_bytes:
            self._piece.inline.setdefault(stream, []).extend(rows)
            return
        if self._feed is None:
            self._begin(stream)
        self._cut(stream, rows)

    def finish(self) -> None:
        if self._feed is None:
            return
        for stream, cutter in self._cutters.items():
            sets = cutter.cut()
            if sets:
                self._feed.put((stream, sets, cutter.has_own))
        self._piece.staged = self._feed.finish()

    def abandon(self) -> None:
        if self._feed is not None:
            self._feed.abandon()

    def _begin(self, stream: str) -> None:
        options, piece = self._options, self._piece
        of_cluster = reach(options.zookeeper, options.namespace, options.stores)
        chosen = self._given_txid
        if chosen is None:
            chosen = of_cluster.ask(
                partial(_chosen_txid, options, piece.batch, stream),
                retries=options.fetch_retries,
                timeout_s=options.fetch_timeout_s,
            )
        piece.txid = chosen
        self._feed = of_cluster.feed(partial(_staging, options, piece.batch))
        kept, piece.inline = piece.inline, {}
        for name, rows in kept.items():
            self._cut(name, rows)

    def _cut(self, stream: str, rows: list[Row]) -> None:
        assert self._feed is not None
        cutter = self._cutters.get(stream)
        if cutter is None:
            cutter = self._cutters[stream] = Cutter(stream, self._piece.txid)
        for sets in cutter.add(rows):
            self._feed.put((stream, sets, cutter.has_own))


async def _chosen_txid(options: SinkOptions, batch: SinkBatch, stream: str, cluster: Cluster) -> int:
    value = await stream_of(cluster, stream)
    return await txid_of(cluster, options.namespace, batch, max(0, value.max_txid) if not value.is_sealed else 0)


async def _staging(
    options: SinkOptions, batch: SinkBatch, cluster: Cluster, entries: AsyncIterator[Entry]
) -> list[Staged]:
    stager = Stager(cluster, options.namespace, batch)
    try:
        async for stream, sets, has_own in entries:
            await stager.entry(stream, sets, has_own_txids=has_own)
        return await stager.finish()
    except BaseException:
        await stager.abandon()
        raise


# ---- at least once --------------------------------------------------------------------------------------------------


def _append_all(options: SinkOptions, iterator: Iterator[pa.RecordBatch]) -> None:
    """Append rows through the proxies; a task that is retried writes its rows twice."""
    feed = reach(options.zookeeper, options.namespace, options.stores).feed(partial(_appending, options))
    try:
        for rows in iterator:
            for stream, some in rows_of(rows, options.stream):
                feed.put((stream, some))
        feed.finish()
    except BaseException:
        feed.abandon()
        raise


async def _appending(options: SinkOptions, cluster: Cluster, given: AsyncIterator[tuple[str, list[Row]]]) -> None:
    room = asyncio.Semaphore(_UNDER_WAY_MAX)

    async def append(stream: str, values: list[bytes], txid: int | None) -> None:
        try:
            await client.append_batch(stream, values, txid=txid)
        finally:
            room.release()

    async with await proxies_of(cluster, options.fetch_timeout_s) as client:
        try:
            async with asyncio.TaskGroup() as tasks:
                async for stream, rows in given:
                    for txid, values in _batches(rows):
                        await room.acquire()
                        tasks.create_task(append(stream, values, txid), name=f"append {stream}")
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None


def _batches(rows: list[Row]) -> Iterator[tuple[int | None, list[bytes]]]:
    """Group rows that may be appended together."""
    for txid, some in itertools.groupby(rows, key=lambda row: row.txid):
        values: list[bytes] = []
        size = 0
        for row in some:
            if values and size + len(row.value) > ENTRY_BYTES:
                yield txid, values
                values, size = [], 0
            values.append(row.value)
            size += len(row.value) + SET_RECORD_OVERHEAD
        yield txid, values
