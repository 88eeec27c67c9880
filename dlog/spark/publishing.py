"""Publishes a batch: what its tasks wrote becomes part of their streams, of each stream in one step, once.

Invariants:
- every step may be repeated: the stream's owner knows whether it has a batch; what the owner has forgotten is looked up
  in the log;
- stages are swept only after the owner's reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dlog.client.client import Client
from dlog.errors import (
    ConfigError,
    DLogError,
    InvalidRequestError,
    ProducerUnknownError,
    StreamNotFoundError,
    TruncatedError,
    TxidOutOfOrderError,
    UnavailableError,
    to_raise,
)
from dlog.io.clock import unix_ms
from dlog.log.contents import read_contents
from dlog.model.ids import StreamName
from dlog.model.segment import LEDGER, Segment
from dlog.model.sink import SinkBatch
from dlog.spark.cluster_connection import Cluster
from dlog.spark.proxies import proxies_of
from dlog.spark.sink_options import SinkOptions
from dlog.spark.sink_rows import Cutter, Row, uniform_txid
from dlog.spark.stages import Staged, Stager, entries_of, offer, stream_of, sweep, write_again
from dlog.stores.contract import SegmentNotFoundError, SegmentRef
from dlog.wire.entry import SET_RECORD_OVERHEAD
from dlog.wire.proxy_codec import PARTS_MAX

_TRIES = 6
_SWEEP_EVERY = 64  # batches, even if none was staged: a failed task may have left stages
_LEAD_MS = 500  # how far txids are first put ahead of those of other writers


@dataclass(slots=True)
class TaskOutput:
    """What one task wrote. inline: rows by stream, if few; else stages. txid: for rows without one."""

    partition: int
    batch: SinkBatch
    txid: int = 0
    staged: list[Staged] = field(default_factory=list)
    inline: dict[str, list[Row]] = field(default_factory=dict)


async def publish(
    cluster: Cluster, options: SinkOptions, pieces: Sequence[TaskOutput], *, once: bool
) -> dict[str, int]:
    """Write this batch to its streams; returns counts of records by stream, 0 where the stream had it before.

    once: the batch is numbered in its sink, and repeating is harmless; else it belongs to no sink and is never
    repeated. Streams are written one after the other; the first failure ends the call. Raises the error of that stream;
    if other streams have the batch already, a copy of it with outcome_unknown, which names them.
    """
    batch = pieces[0].batch
    if any(piece.batch != batch for piece in pieces):
        raise ConfigError("the tasks of a batch name different batches or queries")
    ordered = sorted(pieces, key=lambda piece: piece.partition)
    streams = sorted({s.stream for p in pieces for s in p.staged} | {n for p in pieces for n in p.inline})
    written: dict[str, int] = {}
    has_staged = any(piece.staged for piece in pieces)
    try:
        if streams:
            async with await proxies_of(cluster, options.fetch_timeout_s) as client:
                for stream in streams:
                    publishing = _Publishing(cluster, client, options, stream, batch if once else None, batch)
                    written[stream] = await publishing.run(ordered)
                    has_staged = has_staged or publishing.has_staged
    except DLogError as error:
        if not once and not error.outcome_unknown:
            with suppress(DLogError):  # the next driver sweeps, and the caller needs the first error
                await sweep(cluster, options.namespace, batch, options.stage_keep_s)  # it is not repeated
        if not written:
            raise
        left = [stream for stream in streams if stream not in written]
        raise _partly_written(error, written, left, once=once) from error
    if has_staged or batch.batch % _SWEEP_EVERY == 0:
        await sweep(cluster, options.namespace, batch, options.stage_keep_s)
    return written


def _partly_written(error: DLogError, written: Iterable[str], left: Sequence[str], *, once: bool) -> DLogError:
    """A copy of the error that ended the batch after the streams `written`. left: the one that failed, and those that
    were not tried."""
    if once:
        step = "mend the cause and write it again with the same number"
    elif error.outcome_unknown:
        step = "check whether the failed stream has its rows, then write only the rows of streams without theirs"
    else:
        step = "write only the rows of the other streams again"
    partly = to_raise(error)
    partly.outcome_unknown = True
    partly.message = (
        f"only some streams of the batch are written, {step}: written={','.join(written)} "
        f"failed={','.join(left[:1])} not_tried={','.join(left[1:])}: {error.message}"
    )
    partly.args = (partly.message,)
    return partly


class _Publishing:
    """One stream's part of a batch. batch: None if it is not numbered. name: of its stages."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        options: SinkOptions,
        stream: str,
        batch: SinkBatch | None,
        name: SinkBatch,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._options = options
        self._stream = stream
        self._batch = batch
        self._name = name
        self.has_staged = False
        self._incarnation = ""  # incarnation of the stream that the batch is for
        self._since: tuple[int, int] | None = None

    async def run(self, pieces: Sequence[TaskOutput]) -> int:
        self._incarnation = await self._client.incarnation(self._stream)
        rows = [row for piece in pieces for row in piece.inline.get(self._stream, ())]
        has_stages = any(s.stream == self._stream for piece in pieces for s in piece.staged)
        if rows and not has_stages:
            is_uniform, txid = uniform_txid(rows)
            size = sum(len(row.value) + SET_RECORD_OVERHEAD for row in rows)
            if is_uniform and size <= self._options.append_bytes:
                return await self._append([row.value for row in rows], txid)
        parts = await self._parts(pieces)
        if len(parts) > PARTS_MAX:
            raise ConfigError(
                f"a batch has at most {PARTS_MAX} parts for a stream, coalesce its partitions: stream={self._stream} "
                f"parts={len(parts)}"
            )
        return await self._import(parts)

    async def _append(self, values: list[bytes], txid: int | None) -> int:
        if self._batch is None:
            return (await self._client.append_batch(self._stream, values, txid=txid)).count
        while True:
            try:
                result = await self._client.append_once(
                    self._stream, values, self._batch, txid=txid, since=self._since, incarnation=self._incarnation
                )
            except ProducerUnknownError as error:
                if await self._is_in_log(error):
                    return 0
                continue
            return 0 if result.duplicate else result.count

    async def _import(self, parts: list[Staged]) -> int:
        for number in range(_TRIES):
            if any(part.incarnation not in ("", self._incarnation) for part in parts):
                raise StreamNotFoundError(
                    f"rows were staged for a stream that was deleted and created again since: stream={self._stream}"
                )
            stores = sorted({part.store for part in parts})
            if len(stores) > 1:
                raise InvalidRequestError(
                    f"the stream's store was changed while rows were staged, write the batch again: "
                    f"stream={self._stream} stores={','.join(stores)}"
                )
            try:
                if self._batch is None:
                    await offer(self._cluster, self._options.namespace, self._name, parts)
                named = [(part.name, part.last_entry) for part in parts]
                result = await self._client.import_segments(
                    self._stream,
                    named,
                    self._batch,
                    since=self._since,
                    incarnation=self._incarnation,
                    store=stores[0] if stores else LEDGER,
                )
            except TxidOutOfOrderError as error:
                if number == _TRIES - 1 or any(part.has_own_txids for part in parts):
                    raise
                parts = await self._ahead_of(parts, error.last, _LEAD_MS * 4**number)
            except ProducerUnknownError as error:
                if await self._is_in_log(error):
                    return 0
            else:
                return 0 if result.duplicate else sum(part.records for part in parts)
        raise UnavailableError(f"other writers are faster than the import, retry later: stream={self._stream}")

    async def _ahead_of(self, parts: Sequence[Staged], last: int, lead_ms: int) -> list[Staged]:
        """Rewrite the parts with a txid above what others have written meanwhile."""
        txid = max(last, unix_ms()) + lead_ms
        return [await write_again(self._cluster, self._options.namespace, self._name, part, txid) for part in parts]

    # ---- parts ------------------------------------------------------------------------------------------------------

    async def _parts(self, pieces: Sequence[TaskOutput]) -> list[Staged]:
        """Stages in the order of partitions; rows that were not staged yet are staged, adjacent ones together."""
        parts: list[Staged] = []
        rows: list[Row] = []
        txid = max((piece.txid for piece in pieces), default=0) or unix_ms()
        for piece in pieces:
            rows += piece.inline.get(self._stream, ())
            staged = [stage for stage in piece.staged if stage.stream == self._stream]
            if staged:
                parts += [*await self._stage(rows, txid), *staged]
                rows = []
        return [*parts, *await self._stage(rows, txid)]

    async def _stage(self, rows: Sequence[Row], txid: int) -> list[Staged]:
        if not rows:
            return []
        self.has_staged = True
        cutter, stager = Cutter(self._stream, txid), Stager(self._cluster, self._options.namespace, self._name)
        try:
            for sets in [*cutter.add(rows), cutter.cut()]:
                await stager.entry(self._stream, sets, has_own_txids=cutter.has_own)
            return await stager.finish()
        except BaseException:
            await stager.abandon()
            raise

    # ---- batches that the owner has forgotten -----------------------------------------------------------------------

    async def _is_in_log(self, unknown: ProducerUnknownError) -> bool:
        """Whether the batch was appended, according to the dedup trailers from where it may begin up to the owner's
        position at its reply, in any store. Segments that are moved meanwhile are looked up again."""
        for _ in range(_TRIES):
            with suppress(SegmentNotFoundError):
                return await self._look_in_log(unknown)
        return await self._look_in_log(unknown)

    async def _look_in_log(self, unknown: ProducerUnknownError) -> bool:
        assert self._batch is not None
        value = await stream_of(self._cluster, self._stream)
        record = value.sink(self._batch.sink)
        if (
            value.incarnation != self._incarnation
            or record is None
            or record.last != self._batch
            or record.since is None
            or unknown.since is None
        ):
            return False  # another batch or another stream: the owner must decide again
        (first, entry), (last, end) = record.since, unknown.since
        for segment in value.segments:
            if not first <= segment.number <= last:
                continue
            low = entry if segment.number == first else 0
            high = end - 1 if segment.number == last else await self._end_of(segment)
            ref = SegmentRef(value.name, segment.number, segment.name)
            async for payload in entries_of(self._cluster, ref, high, low, store=segment.store):
                note = read_contents(payload, enveloped=segment.version >= 4).note
                if note is not None and any(b.producer == self._batch.producer for b in note.batches):
                    return True
        if value.segments and value.segments[0].number <= first:
            self._since = unknown.since
            return False
        raise TruncatedError(
            f"it is unknown whether batch {self._batch.batch} was written, that part of the stream was truncated: "
            f"check whether its rows are there, then continue with a higher sinkEpoch: stream={self._stream}"
        )

    async def _end_of(self, segment: Segment) -> int:
        if segment.completed:
            return int(segment.last_entry)
        ref = SegmentRef(StreamName(self._stream), segment.number, segment.name)
        return int(await self._cluster.store(segment.store).find_tail(ref))
