"""What an application holds.

    async with dlog.connect("dlog://127.0.0.1:7400") as client:
        place = await client.append("orders", b"...")
        async for record in client.read("orders", start=place):
            ...

The law of this file: it is a face. Batches and their fate are producer.py, reads are reader.py, who serves what is
routing.py. An error says by its `remedy` what to do, and by `outcome_unknown` whether the record may still appear.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

from dlog.client.address import target_addresses
from dlog.client.batch import BatchResult
from dlog.client.check import check_txid, checked_batch, checked_payload
from dlog.client.lifetime import Lifetime
from dlog.client.options import ClientOptions
from dlog.client.pipeline import Pipeline
from dlog.client.position import Position, position
from dlog.client.producer import Producer
from dlog.client.reader import Reader
from dlog.client.record import Record, RecordBatch
from dlog.client.routing import WRITE, Router
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
from dlog.model.ids import stream_name
from dlog.model.sink import SinkBatch
from dlog.wire import proxy
from dlog.wire.digest import crc32c
from dlog.wire.entry import build_record_set

LIST_LIMIT = 1000
PRODUCERS_MAX = 1000  # of streams that nothing is being appended to; more are let go, and cost nothing until used again
_forks = 0  # how often this process was forked off, counted from the first that loaded this


@dataclass(frozen=True, slots=True)
class AppendSummary:
    """What `append_many` wrote. Where each record lies was told to its `on_written`."""

    count: int = 0
    first: DLSN | None = None  # place of the first record; None if there was none
    last: DLSN | None = None  # place of the last one

    def with_row(self, row: BatchResult) -> AppendSummary:
        """The same, after one more row in order."""
        return AppendSummary(self.count + row.count, self.first or row.first, row.last)


class Client:
    """Any number of streams of one cluster. Made by `connect`; belongs to one event loop and one process."""

    def __init__(self, addresses: tuple[str, ...], options: ClientOptions) -> None:
        self.addresses = addresses
        self.options = options
        self._forks = _forks
        self._router: Router | None = None
        self._producers: dict[str, Producer] = {}
        self._resting: WeakValueDictionary[str, Producer] = WeakValueDictionary()  # let go; a pipeline may hold them
        self._producers_max = PRODUCERS_MAX
        self._life: Lifetime | None = None
        self._broken: DLogError | None = None

    async def __aenter__(self) -> Client:
        self._life = Lifetime("dlog client", self._on_defect)
        await self._life.start()
        self._router = Router(self.addresses, self.options, random.Random(os.urandom(8)), self._life.spawn)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(orderly=kind is None)

    async def close(self, *, orderly: bool = True) -> None:
        """Wait for batches under way (at most `close_deadline_s`, and only if `orderly`), then let go. Idempotent.

        Appends that are still unanswered fail with ClosedError, which says for each whether its outcome is unknown.
        """
        if self._life is None or self._router is None:
            return
        if orderly and self._broken is None:
            try:
                async with asyncio.timeout(self.options.close_deadline_s):
                    for producer in (*self._producers.values(), *self._resting.values()):
                        await producer.wait_idle()
            except TimeoutError:
                pass  # each append that is left over says so itself
        self._broken = self._broken or ClosedError("this client is closed")
        self._close_producers()
        self._router.close()
        await self._life.stop()

    async def reach(self, patience_s: float = 3.0) -> None:
        """Return once some proxy answers, so that a wrong address is told soon and as such.

        No other call needs this before it. Raises UnavailableError naming what was tried, after `patience_s`.
        """
        router = self._check(None)
        try:
            async with asyncio.timeout(patience_s):
                await router.reach()
        except TimeoutError:
            await router.connect_any(WRITE)

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def append(self, stream: str, payload: bytes, *, txid: int | None = None) -> DLSN:
        """Append one record; return its place once it is durable on an ack quorum.

        payload: at most RECORD_BYTES_MAX bytes. txid: not below the stream's last one; None lets the owner take the
        time in ms. Appends of concurrent tasks travel together; records awaited one by one in a single task do not.
        Raises RecordTooLargeError, TxidOutOfOrderError, StreamNotFoundError, EndOfStreamError (not written);
        RequestTimeoutError, ProducerUnknownError, ClosedError, which say by `outcome_unknown` if it may be. Then append
        another record with this client: when that is acknowledged, this one lies before it or never will be written.
        Cancelling forgets the waiter only: a record that was taken is still written.
        """
        producer = self._producers.get(stream)
        if producer is None or self._forks != _forks:
            producer = self._producer(stream)
        if type(payload) is not bytes:
            payload = checked_payload(payload)
        place = producer.singles.add(payload, txid)
        if place is None:
            await producer.wait_room()
            place = producer.singles.begin(payload, txid)
        try:
            return await place
        finally:
            del place  # if it raises, the error holds this frame, and this would hold the error

    async def append_batch(self, stream: str, payloads: Sequence[bytes], *, txid: int | None = None) -> BatchResult:
        """Append records as one: all or none, in consecutive slots of one entry, under one txid.

        Together at most RECORD_BYTES_MAX bytes, counting 4 more for each. Raises as `append` does, and
        InvalidRequestError for an empty batch. Cancelling forgets the waiter only.
        """
        producer = self._producer(stream)
        records = checked_batch(payloads)
        check_txid(txid)
        if not producer.has_room:
            await producer.wait_room()
        return await producer.add_batch(records, txid)

    async def append_many(
        self,
        stream: str,
        payloads: Iterable[bytes] | AsyncIterable[bytes],
        *,
        on_written: Callable[[BatchResult], None] | None = None,
    ) -> AppendSummary:
        """Append any number of records in order, as batches that follow each other closely; also without end: what is
        held does not grow.

        on_written: told of each batch, in order, as it becomes durable, and of where its records lie. The first failure
        ends it: nothing behind the record that failed is sent any more. It is raised when the fate of every record
        taken is known, and tells it: `error.fates` says of each run of records that `on_written` was not told of
        whether they are written (and where), certainly not written, or unknown (see dlog.Fate; `index` counts
        `payloads` from 0). If the error's `outcome_unknown` is False, all of them are certainly not written, and may be
        sent again. Cancelling stops taking records; those taken are still written.
        """
        summary = AppendSummary()

        def written(batch: BatchResult) -> None:
            nonlocal summary
            summary = summary.with_row(batch)
            if on_written is not None:
                on_written(batch)

        pipeline = self.pipeline(stream, written)
        if isinstance(payloads, AsyncIterable):
            async for payload in payloads:
                while not pipeline.append(payload):
                    await pipeline.room()
        else:
            for payload in payloads:
                while not pipeline.append(payload):
                    await pipeline.room()
        await pipeline.drain()
        return summary

    def pipeline(self, stream: str, on_written: Callable[[BatchResult], None] | None = None) -> Pipeline:
        """Append without waiting for each answer: record by record (`append`) or batch by batch (`put`).

        The fast way for many small records: see dlog.client.pipeline. on_written: told, in order, of each row of
        records as it becomes durable: how many of this pipeline's came before it, how many they are, where they lie.
        It is called in the loop and must not block; what it raises ends the pipeline, whose next call raises it. A
        pipeline whose record failed sends nothing behind it; its error tells the fate of each record (`error.fates`).
        """
        return Pipeline(self._producer(stream), on_written)

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def read(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None = None,
        *,
        follow: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Records in order from `start` on (see dlog.client.position), each once.

        Ends at the tail as of now; with follow it waits there for more. A sealed stream ends either way. limit: at most
        this many records. Raises StreamNotFoundError, TruncatedError, DamagedError; RequestTimeoutError when nobody has
        served the read for `read_deadline_s`. A proxy's death in between is not seen. Cancelling loses nothing.
        """
        batches = self.read_batches(stream, start, follow=follow, limit=limit)
        try:
            async for batch in batches:
                for record in batch:
                    yield record
        finally:
            await batches.aclose()

    async def read_batches(
        self,
        stream: str,
        start: Position | DLSN | str | datetime | None = None,
        *,
        follow: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[RecordBatch, None]:
        """As `read`, in the batches the records came in: the fast way for many small records."""
        router = self._check(stream)
        if limit is not None and limit < 1:
            if limit < 0:
                raise InvalidRequestError(f"a limit is not negative: limit={limit}")
            return
        left = limit
        reader = Reader(stream, position(start), follow=follow, router=router, options=self.options)
        batches = reader.batches()
        try:
            async for batch in batches:
                if left is not None:
                    batch = batch.first_n(left)
                    left -= len(batch)
                yield batch
                if left == 0:
                    return
        finally:
            await batches.aclose()

    # ---- streams ----------------------------------------------------------------------------------------------------

    async def create(self, stream: str, **settings: Any) -> None:
        """Create a stream.

        settings: store, ensemble, write_quorum, ack_quorum, segment_bytes, segment_age_s, retention_s.
        Raises StreamExistsError, InvalidStreamNameError, InvalidRequestError (a setting); RequestTimeoutError, when it
        may have been made. However often that is tried, it is made once: not again after somebody has deleted it.
        """
        router = self._check(stream)
        life, unknown = os.urandom(12).hex(), False
        while True:
            told = await router.ask(lambda request: proxy.Life(request, stream))
            if told["life"] == life:
                break
            if told["life"] is not None and not told["deleted"]:
                raise StreamExistsError(f"a stream of that name exists: stream={stream}")
            if unknown:
                raise RequestTimeoutError(
                    "whether the stream was made is unknown: it is not there now, and streams were deleted meanwhile; "
                    f"look whether it is missed, and create it again: stream={stream}"
                )
            make = partial(_create, stream=stream, life=life, deletions=told["deletions"], settings=settings)
            try:
                await router.ask(make)
                break
            except StaleRequestError as error:
                unknown = error.outcome_unknown
        self._stream_changed(stream)

    async def delete(self, stream: str, *, force: bool = False) -> None:
        """Delete a stream and all its records. What is appended afterwards is not acknowledged by any owner.

        What is deleted is the stream that has the name when this is called, never the next one of that name. force:
        delete it also if its last segment cannot be ended, since too few of its bookies are left; an owner that is cut
        off may then acknowledge records that nobody will read. With force a store that does not answer keeps what it
        holds; otherwise that is deleted once it answers. The segments of a stream with more than 1,000 are deleted
        after this has returned; until then `create` of the name waits.

        Raises StreamNotFoundError, SegmentNotEndedError.
        """
        router = self._check(stream)
        told = await router.ask(lambda request: proxy.Life(request, stream))
        life = told["life"]
        if life is None:
            raise StreamNotFoundError(f"no such stream: stream={stream}")
        is_marked = bool(told["deleted"])
        if not is_marked:
            try:
                await router.ask(lambda request: proxy.Delete(request, stream, life, force), stream=stream)
            except StreamNotFoundError:
                is_marked = True  # nobody owns it, and any proxy finishes it
        if is_marked:
            await router.ask(lambda request: proxy.Delete(request, stream, life, force))
        self._stream_changed(stream)
        router.forget_stream(stream)
        self._let_go_of(stream)

    def _stream_changed(self, stream: str) -> None:
        producer = self._producers.get(stream) or self._resting.get(stream)
        if producer is not None:
            producer.stream_changed()

    def _let_go_of(self, stream: str) -> None:
        """Keep the stream's producer no longer, unless an append is under way; a pipeline may hold it on."""
        producer = self._producers.get(stream)
        if producer is not None and producer.rest():
            self._resting[stream] = self._producers.pop(stream)

    async def life(self, stream: str) -> str:
        """Which stream has this name now: another one for each that is made under it. Raises StreamNotFoundError.

        For who plans something now and does it later, by `take_in`, `append_once` or `relocate`: a stream that was
        deleted meanwhile is missed by name, and the next one is not touched.
        """
        told = await self._check(stream).ask(lambda request: proxy.Life(request, stream))
        if told["life"] is None or told["deleted"]:
            raise StreamNotFoundError(f"no such stream: stream={stream}")
        return str(told["life"])

    async def truncate(self, stream: str, dlsn: DLSN | str) -> dict[str, Any]:
        """Let records before `dlsn` go: they are not read any more, and deleted by whole segments. The point only moves
        forward; the answer names it (`first`). Raises PositionBeyondEndError for a point behind the last record."""
        router = self._check(stream)
        place = parse(dlsn) if isinstance(dlsn, str) else dlsn
        life = await self.life(stream)
        return await router.ask(lambda request: proxy.Truncate(request, stream, life, (*place,)), stream=stream)

    async def seal(self, stream: str) -> dict[str, Any]:
        """End a stream for good after what is acknowledged now. Idempotent."""
        router = self._check(stream)
        life = await self.life(stream)
        return await router.ask(lambda request: proxy.Seal(request, stream, life), stream=stream)

    async def take_in(
        self,
        stream: str,
        parts: Sequence[tuple[str, int]],
        batch: SinkBatch | None = None,
        *,
        since: tuple[int, int] | None = None,
        life: str | None = None,
    ) -> dict[str, Any]:
        """Let closed ledgers that were written for this stream (dlog/stores/contract.py, STAGE) become its next
        segments, in this order, all of them or none: no byte moves. parts: place and last entry of each, at most 1000.
        A batch without parts is remembered, and shuts out who wrote for this sink under a lower epoch.

        batch: whose batch it is; one that is repeated is not taken in again ({"duplicate": True}). None: what is in the
        list already is not taken again. Raises TxidOutOfOrderError (`last`: what txids must not be below), and
        InvalidRequestError: no such stage, or a program of another query or of a higher epoch writes for this sink;
        ProducerUnknownError: the batch was to be appended before, and whether it was must be read in the log, up to
        the error's `since`; if it is not there, ask again with that `since`. Repeating it is harmless. life: which
        stream of this name they were written for (`life`); None: the one that is there now.
        """
        router = self._check(stream)
        of_life = life or await self.life(stream)
        b = batch or SinkBatch("", 0, "", 0)
        told = tuple((place, int(last)) for place, last in parts)
        return await router.ask(
            lambda request: proxy.TakeIn(
                request, stream, of_life, b.sink, b.epoch, b.query, b.batch, _place(since), told
            ),
            stream=stream,
        )

    async def append_once(
        self,
        stream: str,
        payloads: Sequence[bytes],
        batch: SinkBatch,
        *,
        txid: int | None = None,
        since: tuple[int, int] | None = None,
        life: str | None = None,
    ) -> dict[str, Any]:
        """Append a sink's batch as one record set; the same batch is appended once, however often it is repeated, also
        by another process ({"duplicate": True}). Raises as `append_batch`, and InvalidRequestError if a program of
        another query or of a higher epoch writes for this sink; ProducerUnknownError as of `take_in`. life: as of
        `take_in`."""
        router = self._check(stream)
        records = checked_batch(payloads)
        check_txid(txid)
        body = build_record_set(records)
        crc, b = crc32c(body), batch
        of_life = life or await self.life(stream)
        return await router.ask(
            lambda request: proxy.SinkWrite(
                *(request, stream, of_life, b.sink, b.epoch, b.query, b.batch, _place(since)),
                *(len(records), txid, crc, body),
            ),
            stream=stream,
        )

    async def relocate(
        self,
        stream: str,
        number: int,
        *,
        store: str,
        place: str,
        to_store: str,
        to_place: str,
        life: str | None = None,
    ) -> dict[str, Any]:
        """Let completed segment `number`, which lies at `place` of `store`, lie at `to_place` of `to_store` from now
        on: the same entries under the same ids, put there before. What lies at `place` is left alone. Idempotent.
        Raises InvalidRequestError, TruncatedError. life: as of `take_in`."""
        router = self._check(stream)
        of_life = life or await self.life(stream)
        return await router.ask(
            lambda request: proxy.Relocate(request, stream, of_life, number, store, place, to_store, to_place),
            stream=stream,
        )

    async def stat(self, stream: str) -> dict[str, Any]:
        """What is known of a stream (docs/protocol.md, Stat)."""
        router = self._check(stream)
        return await router.ask(lambda request: proxy.Stat(request, stream), stream=stream)

    async def streams(self) -> AsyncGenerator[str, None]:
        """Names of all streams, in order."""
        router = self._check(None)
        after = ""
        listing: str | None = None
        while True:
            page = await router.ask(partial(_list, after=after, listing=listing))
            names = [str(name) for name in page.get("streams", ())]
            listing = page.get("listing")
            for name in names:
                yield name
            if len(names) < LIST_LIMIT:
                return
            after = names[-1]

    async def owner(self, stream: str) -> dict[str, Any]:
        """Who writes a stream: {"location": "host:port", "epoch": n}; somebody is asked to if nobody does."""
        router = self._check(stream)
        return await router.ask(lambda request: proxy.GetOwner(request, stream, None))

    async def owners(self) -> list[dict[str, Any]]:
        """Every stream that is owned now, as the write proxies we know say: stream, epoch, state, location."""
        return await self._check(None).owned()

    async def release(self, stream: str) -> dict[str, Any]:
        """Ask the owner to hand the stream back, at a good place; the next append finds another.

        Idempotent: of a stream that nobody owns there is nothing to hand back.

        Raises StreamNotFoundError, RequestTimeoutError (it may or may not be handed back) when that
        is not done in time, as without ZooKeeper.
        """
        router = self._check(stream)
        life = await self.life(stream)
        return await router.ask(lambda request: proxy.Release(request, stream, life), stream=stream)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _check(self, stream: str | None) -> Router:
        if self._broken is not None:
            raise to_raise(self._broken)
        if self._router is None:
            raise ClosedError("open the client first: async with dlog.connect(...) as client")
        if self._forks != _forks:
            raise ClosedError("this client was opened by the process that forked this one; open another here")
        if stream is not None:
            stream_name(stream)
        return self._router

    def _producer(self, stream: str) -> Producer:
        producer = self._producers.get(stream)
        if producer is None or self._forks != _forks:
            router = self._check(stream)
            if len(self._producers) >= self._producers_max:
                self._let_go()
            producer = self._resting.pop(stream, None) or Producer(stream, router, self.options)
            self._producers[stream] = producer
        return producer

    def _let_go(self) -> None:
        """Keep producers of streams that are written; of the others those that whoever holds a pipeline holds."""
        for stream in tuple(self._producers):
            self._let_go_of(stream)
        self._producers_max = max(PRODUCERS_MAX, 2 * len(self._producers))

    def _on_defect(self, error: BaseException) -> None:
        """Something inside failed that never should: nobody may wait for ever."""
        self._broken = ClosedError(f"this client failed inside and is closed: {error!r}", outcome_unknown=True)
        self._broken.__cause__ = error
        self._close_producers()

    def _close_producers(self) -> None:
        for producer in (*self._producers.values(), *self._resting.values()):
            producer.close()
        self._producers.clear()  # so that whoever appends looks at what is broken
        self._resting.clear()


def connect(target: str | None = None, *, options: ClientOptions | None = None, **changes: Any) -> Client:
    """A client of the cluster at `dlog://host:port[,host:port]` (None: DLOG_CONNECT), to be used as `async with`.

    Addresses are of write or read proxies, a few of each are enough; the rest is found through them. changes: fields of
    ClientOptions. Nothing is connected before the first use. Raises InvalidRequestError.
    """
    try:
        chosen = options if options is not None else ClientOptions(**changes)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"not an option of a client, {error}") from error
    return Client(target_addresses(target), chosen)


def _place(since: tuple[int, int] | None) -> tuple[int, int, int] | None:
    return None if since is None else (*since, 0)


def _create(request: int, *, stream: str, life: str, deletions: int, settings: dict[str, Any]) -> proxy.Create:
    return proxy.Create(request, stream, life, deletions, settings)


def _list(request: int, after: str, listing: str | None) -> proxy.List:
    return proxy.List(request, after, LIST_LIMIT, listing)


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)
