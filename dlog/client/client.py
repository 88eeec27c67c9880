"""The asyncio client: `connect` and `Client`, the entry point of the public API.

    async with dlog.connect("dlog://127.0.0.1:7400") as client:
        dlsn = await client.append("orders", b"...")
        async for record in client.read("orders", start=dlsn):
            ...

Batching is in batch_queue.py, sending in producer.py, reading in reader.py, finding owners in routing.py, all other
requests are in asking.py. The `remedy` of an error says what to do; `outcome_unknown` says whether the record may still
appear in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Unpack
from weakref import WeakValueDictionary

from dlog.client import forks
from dlog.client.address import REGION, target_addresses
from dlog.client.asking import ask, list_owned
from dlog.client.background_tasks import BackgroundTasks
from dlog.client.batch import BatchResult
from dlog.client.check import check_loop, check_txid, checked_batch, checked_payload
from dlog.client.options import ClientOptions
from dlog.client.pipeline import Pipeline, finish_after, until_failure
from dlog.client.position import Position, begin_of
from dlog.client.producer import Producer
from dlog.client.reader import Reader, ReadProgress, ReadSession, iterate_batches, iterate_records
from dlog.client.record import Record, RecordBatch
from dlog.client.routing import WRITE, Router
from dlog.client.safe_log import SafeLog
from dlog.client.stream_info import (
    ImportResult,
    Owner,
    SettingsChanges,
    StreamInfo,
    StreamSettings,
    decode_appended,
    decode_first_kept,
    decode_import,
    decode_new_stream,
    decode_owner,
    decode_settings,
    decode_stream,
)
from dlog.errors import (
    ClosedError,
    DLogError,
    InvalidRequestError,
    RequestTimeoutError,
    StaleRequestError,
    StreamExistsError,
    StreamNotFoundError,
    to_raise,
)
from dlog.model.dlsn import DLSN, parse
from dlog.model.ids import stream_name, user_stream_name
from dlog.model.segment import LEDGER
from dlog.model.sink import SinkBatch
from dlog.wire import proxy
from dlog.wire.digest import crc32c
from dlog.wire.entry import build_record_set

_log = SafeLog(logging.getLogger(__name__))

LIST_LIMIT = 1000
PRODUCERS_MAX = 1000  # kept for idle streams; beyond it idle ones are dropped, and made again when used


@dataclass(frozen=True, slots=True)
class AppendSummary:
    """What `append_many` wrote in total. The DLSN of each record was passed to `on_written`."""

    count: int = 0
    first: DLSN | None = None  # DLSN of the first record; None if there was none
    last: DLSN | None = None  # DLSN of the last record

    def with_row(self, row: BatchResult) -> AppendSummary:
        """The summary with the next result added."""
        return AppendSummary(self.count + row.count, self.first or row.first, row.last)


class Client:
    """Writes, reads and manages a cluster's streams. Made by `connect`; bound to one event loop and one process.

    A call in another event loop raises InvalidRequestError, one in a forked child ClosedError.
    """

    def __init__(self, addresses: tuple[str, ...], options: ClientOptions) -> None:
        self.addresses = addresses
        self.options = options
        self._forks = forks.count
        self._loop: asyncio.AbstractEventLoop | None = None  # that the client was opened in
        self._router: Router | None = None
        self._producers: dict[str, Producer] = {}
        self._resting: WeakValueDictionary[str, Producer] = WeakValueDictionary()  # dropped, if a pipeline uses them
        self._producers_max = PRODUCERS_MAX
        self._incarnation: BackgroundTasks | None = None
        self._broken: DLogError | None = None

    async def __aenter__(self) -> Client:
        self._loop = asyncio.get_running_loop()
        self._incarnation = BackgroundTasks("dlog client", self._on_defect)
        await self._incarnation.start()
        self._router = Router(self.addresses, self.options, random.Random(os.urandom(8)), self._incarnation.spawn)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(orderly=kind is None)

    async def close(self, *, orderly: bool = True) -> None:
        """Wait for pending batches (if `orderly`, for at most `close_deadline_s`), then close. Idempotent.

        Appends that are still unanswered fail with ClosedError, whose `outcome_unknown` says if one may be written.
        Cancelling ends the wait for pending batches: the client is closed at once.
        """
        if self._incarnation is None or self._router is None:
            return
        check_loop(self._loop)
        try:
            if orderly and self._broken is None:
                async with asyncio.timeout(self.options.close_deadline_s):
                    for producer in (*self._producers.values(), *self._resting.values()):
                        await producer.queue.wait_empty()
        except TimeoutError:
            pass  # each pending append fails below with its own error
        finally:  # also when the wait is cancelled
            self._broken = self._broken or ClosedError("this client is closed; open another one with dlog.connect")
            self._close_producers()
            self._router.pool.close()
            await self._incarnation.stop()

    async def reach(self, patience_s: float = 3.0) -> None:
        """Check the address: wait until any proxy answers. Optional before other calls.

        Raises UnavailableError, which names the addresses tried, after `patience_s`.
        """
        router = self._check(None)
        try:
            async with asyncio.timeout(patience_s):
                await router.reach()
        except TimeoutError:
            await router.pool.connect_any(WRITE)

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def append(self, stream: str, payload: bytes, *, txid: int | None = None) -> DLSN:
        """Append one record; return its DLSN once an ack quorum has made it durable.

        payload: at most RECORD_BYTES_MAX bytes. txid: not below the stream's last one; with None the owner uses its
        clock, in ms. Appends of concurrent tasks share batches; a task that awaits each append sends single records.
        Raises RecordTooLargeError, TxidOutOfOrderError, StreamNotFoundError, EndOfStreamError (not written);
        RequestTimeoutError, ProducerUnknownError, ClosedError (may be written if `outcome_unknown`). Then append
        another record with this client: once that is acknowledged, the first one is in the log before it or never
        will be. Cancelling stops the wait only: a record already buffered is still written.
        """
        producer = self._producers.get(stream)
        if producer is None or self._forks != forks.count or asyncio.get_running_loop() is not self._loop:
            producer = self._producer(stream)
        if type(payload) is not bytes:
            payload = checked_payload(payload)
        waiter = producer.singles.add(payload, txid)
        if waiter is None:
            await producer.queue.room.wait()
            waiter = producer.singles.begin(payload, txid)
        try:
            return await waiter
        finally:
            del waiter  # breaks a reference cycle: a raised error refers to this frame, which refers to the future

    async def append_batch(self, stream: str, payloads: Sequence[bytes], *, txid: int | None = None) -> BatchResult:
        """Append records atomically: all or none, in consecutive slots of one entry, with one txid.

        Together at most RECORD_BYTES_MAX bytes, where each record counts 4 bytes extra. Raises as `append` does, and
        InvalidRequestError for an empty batch. Cancelling stops the wait only.
        """
        producer = self._producer(stream)
        records = checked_batch(payloads)
        check_txid(txid)
        if not producer.queue.has_room:
            await producer.queue.room.wait()
        return await producer.add_batch(records, txid)

    async def append_many(
        self,
        stream: str,
        payloads: Iterable[bytes] | AsyncIterable[bytes],
        *,
        on_written: Callable[[BatchResult], None] | None = None,
    ) -> AppendSummary:
        """Append any number of records in order, in pipelined batches. The iterable may be endless: memory is bounded.

        on_written: called with each run of records, in order, as it becomes durable. The first failure ends the call:
        later records are not sent any more, and the error is raised when the outcome of every record taken is known.
        An asynchronous iterable that is waiting for its next record then is cancelled.
        `error.fates` lists, for the records not passed to `on_written`, whether they are written (and where), not
        written, or unknown (see dlog.Fate; `index` counts `payloads` from 0). If `error.outcome_unknown` is False, none
        of these is in the log, and all may be sent again.

        After an exception of `payloads`, or a record that is refused (RecordTooLargeError, InvalidRequestError), the
        records before it are still written, then it is raised; if one of these fails, that error is raised instead. An
        exception of `payloads` or `on_written` that is no DLogError is raised unchanged, with a note of how many
        records are written (a pipeline has their `fates` then, too). Cancelling stops taking records; those taken are
        still written.
        """
        summary = AppendSummary()

        def written(batch: BatchResult) -> None:
            nonlocal summary
            summary = summary.with_row(batch)
            if on_written is not None:
                on_written(batch)

        pipeline = self.pipeline(stream, written)
        try:
            if isinstance(payloads, AsyncIterable):
                async with until_failure(pipeline):
                    async for payload in payloads:
                        while not pipeline.append_nowait(payload):
                            await pipeline.room()
            else:
                for payload in payloads:
                    while not pipeline.append_nowait(payload):
                        await pipeline.room()
        except Exception as error:  # of `payloads`, about one of them, or the pipeline's
            await finish_after(error, pipeline)
            raise
        await pipeline.drain()
        return summary

    def pipeline(self, stream: str, on_written: Callable[[BatchResult], None] | None = None) -> Pipeline:
        """Append without waiting for each acknowledgement: record by record (`append`) or batch by batch (`put`).

            async with client.pipeline("orders") as pipeline:
                await pipeline.append(b"...")

        Fastest for many small records; see dlog.Pipeline. on_written: called, in order, with each run of records
        that became durable (BatchResult: `index` of its first record in this pipeline, count, DLSNs). It runs in the
        event loop and must not block; an exception that it raises, of any class, ends the pipeline and is raised by
        the next call. After a record fails, no later one is sent; `error.fates` has the outcome of each.
        """
        return Pipeline(self._producer(stream), on_written)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None = None,
        *,
        after: Position | DLSN | str | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> Reader[Record]:
        """Read records in order, each once, from `start` on (default: the first one; see dlog.Position): iterate over
        the result with `async for`.

        after: begin after this record instead: its DLSN, its `position`, or the text of either. Ends at the tail as of
        the start of the read; with `follow` it waits there for new records. At the end of a sealed stream it ends
        either way. limit: most records to yield. Raises InvalidRequestError for a wrong argument; the iteration raises
        StreamNotFoundError, StreamRecreatedError, PositionBeyondEndError, TruncatedError, DamagedError;
        RequestTimeoutError if no proxy served the read for `read_deadline_s`. The read goes on at another proxy if one
        dies. After a cancellation, read on after the last record.
        """
        begin, progress = self._begin_read(stream, start, after, follow=follow, limit=limit), ReadProgress()
        return Reader(iterate_records(begin, limit, progress), progress)

    def read_batches(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None = None,
        *,
        after: Position | DLSN | str | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> Reader[RecordBatch]:
        """As `read`, but yield whole batches: fastest for many small records."""
        begin, progress = self._begin_read(stream, start, after, follow=follow, limit=limit), ReadProgress()
        return Reader(iterate_batches(begin, limit, progress), progress)

    def _begin_read(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None,
        after: Position | DLSN | str | None,
        *,
        follow: bool,
        limit: int | None,
    ) -> Callable[[], ReadSession]:
        if limit is not None and limit < 0:
            raise InvalidRequestError(f"limit must be 0 or more: limit={limit}")
        position = begin_of(start, after)
        return lambda: ReadSession(stream, position, follow=follow, router=self._check(stream), options=self.options)

    # ---- streams ----------------------------------------------------------------------------------------------------

    async def create(self, stream: str, *, exist_ok: bool = False, **settings: Unpack[SettingsChanges]) -> StreamInfo:
        """Create a stream; the settings that are not given have their defaults.

        exist_ok: return the stream if it exists already, provided that it has every setting given here; those not given
        may have any value. Raises StreamExistsError, which names each setting that differs; InvalidStreamNameError,
        InvalidRequestError (a setting); RequestTimeoutError (the stream may exist). Retries inside this call create it
        at most once: not again after another client deleted it. After a cancellation the stream may exist.
        """
        router = self._check_changed(stream)
        incarnation, unknown = os.urandom(12).hex(), False
        while True:
            reply = await ask(router, lambda request: proxy.GetIncarnation(request, stream))
            if reply["incarnation"] == incarnation:
                break
            if reply["incarnation"] is not None and not reply["deleted"]:
                _check_exists_as_wanted(stream, reply, settings, exist_ok=exist_ok)
                try:
                    return await self.stat(stream)
                except StreamNotFoundError:
                    continue  # it was deleted meanwhile
            if unknown:
                raise RequestTimeoutError(
                    "unknown whether the stream was created: it does not exist, and streams were deleted meanwhile; "
                    f"create it again if another client did not delete it on purpose: stream={stream}"
                )
            make = partial(
                _create, stream=stream, incarnation=incarnation, deletions=reply["deletions"], settings=settings
            )
            try:
                reply = await ask(router, make)
                break
            except StaleRequestError as error:
                unknown = error.outcome_unknown
            except StreamExistsError:
                if not exist_ok:
                    raise
        self._stream_changed(stream)
        return decode_new_stream(stream, incarnation, reply)

    async def alter(self, stream: str, **settings: Unpack[SettingsChanges]) -> StreamSettings:
        """Change the settings given, while the stream is written; returns all of them as they are now.

        They are checked as those of `create`; with another store, its settings that are not given have their defaults.
        The retention applies at once, the others from the next segment on (a segment that is created in advance keeps
        that store's settings; in another store, it is deleted). Retries inside this call never undo what another client
        altered meanwhile.
        Raises StreamNotFoundError, InvalidRequestError (a setting, or none given); RequestTimeoutError (they may be
        altered). After a cancellation they may be altered.
        """
        router = self._check_changed(stream)
        if not settings:
            raise InvalidRequestError(f"no setting to alter, name at least one: stream={stream}")
        incarnation: str | None = None
        while True:
            reply = await ask(router, lambda request: proxy.GetIncarnation(request, stream))
            if reply["incarnation"] is None or reply["deleted"] or incarnation not in (None, reply["incarnation"]):
                raise StreamNotFoundError(f"no such stream, or it was deleted meanwhile: stream={stream}")
            incarnation = reply["incarnation"]
            alter = partial(
                _alter, stream=stream, incarnation=incarnation, version=reply["settings_version"], settings=settings
            )
            try:
                return decode_settings((await ask(router, alter, stream=stream))["settings"])
            except StaleRequestError as error:
                if error.outcome_unknown:
                    raise RequestTimeoutError(
                        "unknown whether the settings were altered: another client altered them meanwhile; look at "
                        f"them, and alter them again if needed: stream={stream}"
                    ) from error

    async def delete(self, stream: str, *, force: bool = False) -> None:
        """Delete a stream and all its records. No owner acknowledges an append to it afterwards.

        Only the stream that has the name when this is called is deleted, never a later one of that name. force: delete
        it even if its last segment cannot be closed because too few of its bookies are left; an owner that is cut off
        may then acknowledge records that can never be read. With `force` a store that does not answer keeps its
        segments; otherwise they are deleted once it answers. The segments of a stream with more than 1,000 are deleted
        after this has returned; until then `create` of that name waits.

        Raises StreamNotFoundError, SegmentNotEndedError.
        """
        router = self._check_changed(stream)
        reply = await ask(router, lambda request: proxy.GetIncarnation(request, stream))
        incarnation = reply["incarnation"]
        if incarnation is None:
            raise StreamNotFoundError(f"no such stream: stream={stream}")
        is_marked = bool(reply["deleted"])
        if not is_marked:
            try:
                await ask(router, lambda request: proxy.Delete(request, stream, incarnation, force), stream=stream)
            except StreamNotFoundError:
                is_marked = True  # it is marked as deleted and has no owner: any proxy can finish the deletion
        if is_marked:
            await ask(router, lambda request: proxy.Delete(request, stream, incarnation, force))
        self._stream_changed(stream)
        router.forget_stream(stream)
        self._drop_producer(stream)

    def _stream_changed(self, stream: str) -> None:
        producer = self._producers.get(stream) or self._resting.get(stream)
        if producer is not None:
            producer.stream_changed()

    def _drop_producer(self, stream: str) -> None:
        """Drop the stream's producer, unless work is pending; a pipeline may keep it alive."""
        producer = self._producers.get(stream)
        if producer is not None and producer.rest():
            self._resting[stream] = self._producers.pop(stream)

    async def incarnation(self, stream: str) -> str:
        """The incarnation id of the stream: a stream re-created under the name has another. Raises StreamNotFoundError.

        Pass it to a later `import_segments`, `append_once` or `move_segment`: if the stream was deleted meanwhile,
        that call fails with StreamNotFoundError and does not touch the next stream of the name.
        """
        reply = await ask(self._check(stream), lambda request: proxy.GetIncarnation(request, stream))
        if reply["incarnation"] is None or reply["deleted"]:
            raise StreamNotFoundError(f"no such stream: stream={stream}")
        return str(reply["incarnation"])

    async def truncate(self, stream: str, dlsn: DLSN | str) -> DLSN:
        """Truncate the stream before `dlsn`: earlier records can no longer be read; whole segments of them are deleted.
        The truncation point only moves forward; returns the first position kept. Raises StreamNotFoundError,
        PositionBeyondEndError for a point behind the last record."""
        router = self._check_changed(stream)
        point = parse(dlsn) if isinstance(dlsn, str) else dlsn
        incarnation = await self.incarnation(stream)
        reply = await ask(
            router, lambda request: proxy.Truncate(request, stream, incarnation, (*point,)), stream=stream
        )
        return decode_first_kept(reply)

    async def seal(self, stream: str) -> None:
        """Seal the stream for good after its last acknowledged record. Idempotent. Raises StreamNotFoundError."""
        router = self._check_changed(stream)
        incarnation = await self.incarnation(stream)
        await ask(router, lambda request: proxy.Seal(request, stream, incarnation), stream=stream)

    async def import_segments(
        self,
        stream: str,
        parts: Sequence[tuple[str, int]],
        batch: SinkBatch | None = None,
        *,
        since: tuple[int, int] | None = None,
        incarnation: str | None = None,
        store: str = LEDGER,
    ) -> ImportResult:
        """Import closed segments staged for this stream (STAGE in dlog/stores/contract.py) as its next segments, in
        this order, all or none, without copying. parts: location and last entry of each, at most 1000, all in `store`.
        A batch without parts is still recorded, and fences programs that write for its sink under a lower epoch.

        batch: the sink batch; a repeated one is not imported again (`duplicate`). None: stages already in
        the segment list are not imported again. Raises TxidOutOfOrderError (`last`: the lowest txid allowed);
        InvalidRequestError (no such stage, or a program of another query or a higher epoch writes for this sink);
        ProducerUnknownError: an earlier attempt may have appended the batch. Look for it in the log, up to the error's
        `since`; if it is not there, call again with that `since`. Repeating a call is harmless.

        incarnation: that of the stream which the stages were written for (see `incarnation`); None: the present one.
        """
        router = self._check_changed(stream)
        of_incarnation = incarnation or await self.incarnation(stream)
        b = batch or SinkBatch("", 0, "", 0)
        pairs = tuple((location, last) for location, last in parts)
        name = None if store == LEDGER else store
        done = await ask(
            router,
            lambda request: proxy.ImportSegments(
                request, stream, of_incarnation, b.sink, b.epoch, b.query, b.batch, _since_dlsn(since), name, pairs
            ),
            stream=stream,
        )
        return decode_import(done)

    async def append_once(
        self,
        stream: str,
        payloads: Sequence[bytes],
        batch: SinkBatch,
        *,
        txid: int | None = None,
        since: tuple[int, int] | None = None,
        incarnation: str | None = None,
    ) -> BatchResult:
        """Append a sink's batch as one record set, exactly once: a repetition, also by another process, appends nothing
        (`duplicate`). Raises as `append_batch`, and InvalidRequestError if a program of another query or of a
        higher epoch writes for this sink; ProducerUnknownError as `import_segments` does. incarnation: as there."""
        router = self._check_changed(stream)
        records = checked_batch(payloads)
        check_txid(txid)
        body = build_record_set(records)
        crc, b = crc32c(body), batch
        of_incarnation = incarnation or await self.incarnation(stream)
        done = await ask(
            router,
            lambda request: proxy.SinkWrite(
                *(request, stream, of_incarnation, b.sink, b.epoch, b.query, b.batch, _since_dlsn(since)),
                *(len(records), txid, crc, body),
            ),
            stream=stream,
        )
        return decode_appended(done)

    async def move_segment(
        self,
        stream: str,
        number: int,
        *,
        store: str,
        location: str,
        to_store: str,
        to_location: str,
        incarnation: str | None = None,
    ) -> None:
        """Move completed segment `number` from `location` in `store` to `to_location` in `to_store`, where a copy with
        the same entry ids must exist already. The data at `location` is left alone. Idempotent.

        Raises InvalidRequestError, TruncatedError. incarnation: as in `import_segments`."""
        router = self._check_changed(stream)
        of_incarnation = incarnation or await self.incarnation(stream)
        await ask(
            router,
            lambda request: proxy.MoveSegment(
                request, stream, of_incarnation, number, store, location, to_store, to_location
            ),
            stream=stream,
        )

    async def stat(self, stream: str) -> StreamInfo:
        """Settings, owner and segments of a stream. Raises StreamNotFoundError."""
        router = self._check(stream)
        return decode_stream(await ask(router, lambda request: proxy.Stat(request, stream), stream=stream))

    async def streams(self) -> AsyncGenerator[str, None]:
        """Yield the names of all streams, sorted."""
        router = self._check(None)
        after = ""
        listing: str | None = None
        while True:
            page = await ask(router, partial(_list, after=after, listing=listing))
            names = [str(name) for name in page.get("streams", ())]
            listing = page.get("listing")
            for name in names:
                yield name
            if len(names) < LIST_LIMIT:
                return
            after = names[-1]

    async def owner(self, stream: str) -> Owner:
        """The stream's owner. For a stream without one: the proxy that takes it over at the first append, with the
        epoch of the last claim. Raises StreamNotFoundError."""
        router = self._check(stream)
        return decode_owner(stream, await ask(router, lambda request: proxy.GetOwner(request, stream, None)))

    async def owners(self) -> list[Owner]:
        """The owner of every stream that has one, by name of the stream, as reported by the known write proxies."""
        return [decode_owner(row["stream"], row) for row in await list_owned(self._check(None))]

    async def hand_over(self, stream: str) -> None:
        """Have the owner complete the segment and give up its claim; the next append finds another owner.

        Idempotent: nothing happens to a stream without an owner. Raises StreamNotFoundError; RequestTimeoutError
        (it may be released), for example while ZooKeeper is unreachable.
        """
        router = self._check_changed(stream)
        incarnation = await self.incarnation(stream)
        await ask(router, lambda request: proxy.HandOver(request, stream, incarnation), stream=stream)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _check_changed(self, stream: str) -> Router:
        """`_check` for a request that changes the stream."""
        router = self._check(stream)
        user_stream_name(stream)
        return router

    def _check(self, stream: str | None) -> Router:
        if self._broken is not None:
            raise to_raise(self._broken)
        if self._router is None:
            raise ClosedError("open the client first: async with dlog.connect(...) as client")
        forks.check(self._forks)
        check_loop(self._loop)
        if stream is not None:
            stream_name(stream)
        return self._router

    def _producer(self, stream: str) -> Producer:
        producer = self._producers.get(stream)
        if producer is None or self._forks != forks.count:
            router = self._check_changed(stream)
            if len(self._producers) >= self._producers_max:
                self._let_go()
            producer = self._resting.pop(stream, None) or Producer(stream, router, self.options)
            self._producers[stream] = producer
        else:
            check_loop(self._loop)
        return producer

    def _let_go(self) -> None:
        """Drop the producers of idle streams; one that a pipeline uses lives on in `_resting`."""
        for stream in tuple(self._producers):
            self._drop_producer(stream)
        self._producers_max = max(PRODUCERS_MAX, 2 * len(self._producers))

    def _on_defect(self, error: BaseException) -> None:
        """After an internal error, fail every pending and later call."""
        self._broken = ClosedError(
            f"internal error, the client is closed; open another one and report this: {error!r}", outcome_unknown=True
        )
        self._broken.__cause__ = error
        self._close_producers()
        _log.error("internal error, the client is closed", exc_info=error)

    def _close_producers(self) -> None:
        for producer in (*self._producers.values(), *self._resting.values()):
            producer.close()
        self._producers.clear()  # so that the next append goes through `_check` and raises
        self._resting.clear()


def connect(target: str | None = None, *, options: ClientOptions | None = None, **changes: Any) -> Client:
    """A client of the cluster at `dlog://host:port[,host:port]`, for use in `async with`.

    target: addresses of a few write or read proxies, through which all others are found; None: the value of
    DLOG_CONNECT. changes: fields of ClientOptions, if `options` is None. Connects at the first use.
    Raises InvalidRequestError.
    """
    try:
        chosen = options if options is not None else ClientOptions(**changes)
        if not chosen.region:
            chosen = replace(chosen, region=os.environ.get(REGION, ""))
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"invalid client option, see dlog.ClientOptions: {error}") from error
    return Client(target_addresses(target), chosen)


def _since_dlsn(since: tuple[int, int] | None) -> tuple[int, int, int] | None:
    return None if since is None else (*since, 0)


def _create(
    request: int, *, stream: str, incarnation: str, deletions: int, settings: Mapping[str, Any]
) -> proxy.Create:
    return proxy.Create(request, stream, incarnation, deletions, dict(settings))


def _alter(request: int, *, stream: str, incarnation: str, version: int, settings: Mapping[str, Any]) -> proxy.Alter:
    return proxy.Alter(request, stream, incarnation, version, dict(settings))


def _check_exists_as_wanted(
    stream: str, reply: Mapping[str, Any], wanted: Mapping[str, Any], *, exist_ok: bool
) -> None:
    """Raises StreamExistsError unless the existing stream that GetIncarnation found may be returned by `create`."""
    if not exist_ok:
        raise StreamExistsError(f"the stream exists already; use it or choose another name: stream={stream}")
    found = reply["settings"]
    unknown = sorted(name for name in wanted if name not in found)
    if unknown and wanted.get("store", found["store"]) == found["store"]:
        raise InvalidRequestError(
            f"unknown stream setting, known are {sorted(found)}: store={found['store']} setting={unknown[0]}"
        )
    differences = [
        f"{name}={found[name]!r} wanted={value!r}"
        for name, value in wanted.items()
        if name in found and found[name] != value
    ]
    if differences:
        raise StreamExistsError(
            f"the stream exists already with other settings, alter them or choose another name: stream={stream} "
            + "; ".join(differences)
        )


def _list(request: int, after: str, listing: str | None) -> proxy.List:
    return proxy.List(request, after, LIST_LIMIT, listing)
