"""One read of one stream, with credit-based flow control, reconnects, and in-order delivery.

Invariants:
- after the first batch the DLSN of the next record is known at all times. After a lost connection, a redirect or a
  stall the read is opened again there, so no record is delivered twice or left out;
- events about the stream itself (end, truncation, damage, deletion) end the read; the client does not retry them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from dlog.client.backoff import Backoff
from dlog.client.connection import Connection
from dlog.client.decoding import decode_entries
from dlog.client.options import ClientOptions
from dlog.client.position import Position, at_dlsn
from dlog.client.record import Record, RecordBatch
from dlog.client.routing import READ, Router
from dlog.client.safe_log import SafeLog
from dlog.errors import (
    ConnectionLostError,
    DamagedError,
    DLogError,
    OwnedElsewhereError,
    PositionBeyondEndError,
    Remedy,
    RequestTimeoutError,
    StreamNotFoundError,
    StreamRecreatedError,
    TruncatedError,
)
from dlog.model.dlsn import DLSN, of
from dlog.wire import proxy
from dlog.wire.proxy import ReaderEventKind

T = TypeVar("T")
_log = SafeLog(logging.getLogger(__name__))

_MOVES_MAX = 3  # redirects in a row that are followed without back-off; a changing ring may redirect more than once
_BLOCK_BYTES = 16 << 20  # glibc adapts its thresholds to blocks of up to 32 MiB only


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader is behind the end of its stream, as its proxy knew it when it sent records last.

    segments: how many segments follow the one of the last delivered record. entries: how many entries of that segment
    follow the entry of that record (an entry has one batch or several, and may have no record); None if segments
    follow.
    """

    segments: int
    entries: int | None


class ReadSession:
    """One read of one stream. Iterate `batches()` once, in one task."""

    def __init__(self, stream: str, start: Position, *, follow: bool, router: Router, options: ClientOptions) -> None:
        self.stream = stream
        self._left = 0  # batches of the current frame that are not delivered yet
        self._delivered: tuple[int, int] | None = None  # segment and entry of the last delivered record
        self._arrived: tuple[int, int] | None = None  # of the last entry that came over this connection
        self._announced: tuple[int, int | None] | None = None  # what follows the next frame: segments, entries
        self._end: tuple[int, int | None] | None = None  # segment and entry where the stream ends, if known
        self._is_tail_reported = False  # the proxy reported the tail: everything before it came over this connection
        self._start = start
        self._follow = follow
        self._router = router
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._received: deque[proxy.Entries | proxy.ReaderEvent | DLogError] = deque()
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._request = 0
        self._owed = 0  # bytes consumed for which no new credit was sent yet
        self._next: DLSN | None = None  # DLSN of the next record to deliver, once known
        self._incarnation = start.incarnation  # incarnation id of the stream, once known
        self._location: str | None = None  # address named by a redirect
        self._avoid: str | None = None  # address that failed last
        self._backoff = Backoff(options.backoff_first_s, options.backoff_max_s, router.rng)
        self._is_pause_due = False  # the last attempt failed: back off before the next one
        self._opened_s = 0.0  # when the read was opened last
        # start of the first failure since a server sent records; None: there was none
        self._trouble_since_s: float | None = None
        self._moves = 0  # redirects since then
        self._patience_s = options.stall_s  # doubled by each stall since then
        self._expects_records = True  # the tail was not reported since the open: the server should be sending records
        self._ended = False

    async def batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield batches in order, each record once.

        Ends at the tail as of the open (without follow) or at the end of a sealed stream. Raises StreamNotFoundError
        (StreamRecreatedError if the name has a new stream), PositionBeyondEndError, TruncatedError, DamagedError as
        the server reports them; RequestTimeoutError if no proxy served this read for `read_deadline_s`.
        After a cancellation, read on from the last batch's `position`.
        """
        _keep_freed_memory()
        try:
            while not self._ended:
                if self._connection is None and not self._received:
                    await self._open()
                while self._received:
                    received = self._received.popleft()
                    if isinstance(received, proxy.Entries):
                        batches = self._take(received)
                        self._left = len(batches)
                        for batch in batches:
                            self._left -= 1
                            self._delivered = batch.dlsn[:2]
                            yield batch
                        self._delivered = _last_of(received)
                    elif isinstance(received, proxy.ReaderEvent):
                        self._on_reader_event(received)
                    else:
                        self._on_trouble(received)
                if self._connection is not None and not self._ended:
                    self._wake.clear()
                    await self._wait_for_server()
        finally:
            self._leave()

    @property
    def lag(self) -> Lag | None:
        """See Reader."""
        if self._is_tail_reported and self._arrived is None:
            return Lag(0, 0)
        if self._end is None or self._delivered is None:
            return None
        segment, entry = self._end
        segments = segment - self._delivered[0]
        return Lag(segments, entry - self._delivered[1] if entry is not None and not segments else None)

    @property
    def is_caught_up(self) -> bool:
        """Whether every record that came was delivered, and the proxy knew of no more."""
        has_more = self._left > 0 or any(isinstance(one, proxy.Entries) for one in self._received)
        return not has_more and self.lag == Lag(0, 0)

    # ---- called by the connection (ReaderPort) ----------------------------------------------------------------------

    def on_entries(self, entries: proxy.Entries) -> None:
        segment, entry = self._arrived = _last_of(entries)
        segments, more = self._announced or (0, 0)
        self._announced = None
        self._end = segment + segments, entry + more if more is not None else None
        self._received.append(entries)
        self._wake.set()

    def on_event(self, event: proxy.ReaderEvent) -> None:
        match event.kind:
            case ReaderEventKind.BEHIND:
                self._announced = event.detail.get("segments", 0), event.detail.get("entries")
                self._is_tail_reported = False
                return
            case ReaderEventKind.CAUGHT_UP | ReaderEventKind.END_OF_STREAM:
                self._end, self._is_tail_reported = self._arrived, True
        self._received.append(event)
        self._wake.set()

    def on_failed(self, error: DLogError) -> None:
        self._received.append(error)
        self._wake.set()

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _wait_for_server(self) -> None:
        """Wait for the server. Leave one that is alive but, before the tail, sends no records for the stall timeout.

        On a slow network records may still be in transit, so the server is pinged first: its reply comes after all
        that it has sent, and the connection waits for it as long as bytes arrive. A server that searches for the tail
        is silent too: each stall doubles the timeout (first `stall_s`), else the search would never finish. No wait
        is longer than what is left of `read_deadline_s`, which runs from the first wait or failure since records came.
        """
        if not self._expects_records:
            await self._wake.wait()
            return
        now_s, deadline_s = self._loop.time(), self._options.read_deadline_s
        since_s = self._trouble_since_s if self._trouble_since_s is not None else now_s
        stall_s = max(0.0, min(self._patience_s, since_s + deadline_s - now_s))
        try:
            async with asyncio.timeout(stall_s):
                await self._wake.wait()
            return
        except TimeoutError:
            pass
        assert self._connection is not None
        async with asyncio.TaskGroup() as tasks:
            ping = tasks.create_task(self._ping(self._connection), name=f"ping the reader of {self.stream}")
            await self._wake.wait()
            ping.cancel()
        if not self._received:
            self._trouble_since_s = since_s
            self._patience_s = min(2 * self._patience_s, deadline_s)
            text = f"no records from the proxy for {stall_s:.3g} s"
            self._on_trouble(RequestTimeoutError(text, outcome_unknown=False))

    async def _ping(self, connection: Connection) -> None:
        """Wake the reader when the server has answered. A lost connection is reported by `on_failed`."""
        with contextlib.suppress(DLogError):
            await connection.ask(proxy.Ping)
        self._wake.set()

    async def _open(self) -> None:
        """Make one attempt to open the read at a proxy; a failure is raised or retried by `_on_trouble`."""
        if self._is_pause_due or self._moves > _MOVES_MAX:
            self._is_pause_due = False
            await asyncio.sleep(self._router.pause_s(self._backoff))
        start = self._start if self._next is None else at_dlsn(self._next)
        incarnation = self._incarnation or None
        location, self._location = self._location, None
        try:
            if location is not None:
                self._router.pool.learn([location])
                connection = await self._router.connect_or_forward(location, READ)
            else:
                connection = await self._router.pool.connect_any(READ, (self._avoid,) if self._avoid else ())
            region = connection.region
            self._request = connection.read(
                self,
                lambda request: proxy.Read(
                    request,
                    self.stream,
                    start.kind,
                    start.value,
                    self._options.read_credit_bytes,
                    self._follow,
                    location is not None,
                    incarnation,
                    region,
                ),
            )
            self._owed = 0
            self._expects_records = True
            self._connection = connection
            self._opened_s = self._loop.time()
        except DLogError as error:
            self._on_trouble(error)

    def _take(self, entries: proxy.Entries) -> list[RecordBatch]:
        """Decode one frame, without records that were delivered before."""
        self._served()
        self._owed += len(entries.body)
        if self._owed * 2 >= self._options.read_credit_bytes and self._connection is not None:
            self._connection.credit(self._request, self._owed)
            self._owed = 0
        batches: list[RecordBatch] = []
        for batch in decode_entries(entries, self._incarnation):
            rest = self._from_next(batch)
            if rest is not None:
                batches.append(rest)
                self._next = rest.last.next_slot()
        if batches:
            self._backoff.reset()
        return batches

    def _from_next(self, batch: RecordBatch) -> RecordBatch | None:
        following = self._next
        if following is None or batch.dlsn >= following:
            return batch
        if batch.dlsn[:2] != following[:2]:
            return None
        return batch.from_slot(following.slot)

    def _on_reader_event(self, event: proxy.ReaderEvent) -> None:
        detail = event.detail
        match event.kind:
            case ReaderEventKind.STARTED:
                self._incarnation = detail.get("incarnation") or self._incarnation
                if self._next is None and "dlsn" in detail:
                    self._next = of(*detail["dlsn"])
            case ReaderEventKind.CAUGHT_UP:
                self._served()
                self._incarnation = detail.get("incarnation") or self._incarnation
                self._expects_records = False
                self._ended = not self._follow
            case ReaderEventKind.END_OF_STREAM:
                self._ended = True
            case ReaderEventKind.TRUNCATED:
                first = str(of(*detail["first"])) if "first" in detail else None
                hint = f"; read from {first}, the first record kept" if first else ""
                raise TruncatedError(f"this position was truncated{hint}: stream={self.stream}", first=first)
            case ReaderEventKind.DAMAGED:
                where = f" dlsn={of(*detail['dlsn'])}" if "dlsn" in detail else ""
                raise DamagedError(f"{detail.get('message', 'an entry cannot be read')}: stream={self.stream}{where}")
            case ReaderEventKind.BEYOND_END:
                end = str(of(*detail["end"])) if "end" in detail else None
                start = self._start if self._next is None else at_dlsn(self._next, self._incarnation)
                hint = f", it ends at {end}" if end else ""
                raise PositionBeyondEndError(
                    f"the position is beyond the end of the stream{hint}; read from there, or from the start: "
                    f"stream={self.stream} position={start}",
                    end=end,
                )
            case ReaderEventKind.DELETED if self._incarnation and detail.get("incarnation") is not None:
                raise StreamRecreatedError(
                    f"the stream of this position was deleted, and a new one has its name; read the new one from the "
                    f"start: stream={self.stream} incarnation={self._incarnation} now={detail['incarnation']}"
                )
            case ReaderEventKind.DELETED:
                what = "the stream was deleted" if self._next is not None or self._incarnation else "no such stream"
                raise StreamNotFoundError(f"{what}: stream={self.stream}")
            case ReaderEventKind.MOVED:
                self._leave()
                self._location = detail.get("location")
                self._moves += 1
                self._check_deadline("proxies redirect the read to each other")

    def _on_trouble(self, error: DLogError) -> None:
        """The read was refused or its connection lost: raise the error if a retry cannot help.

        Failures in a row are retried with back-off. Records end the row, and so does a read that stayed open for longer
        than the longest pause: a follower of a silent stream goes on at once.
        """
        failed = self._connection.address if self._connection is not None else None
        if failed is not None and self._loop.time() - self._opened_s > self._options.backoff_max_s:
            self._backoff.reset()
        self._leave()
        if isinstance(error, OwnedElsewhereError):
            self._location = error.location
        elif error.remedy not in (Remedy.RETRY, Remedy.REOPEN):
            raise error
        elif isinstance(error, ConnectionLostError | RequestTimeoutError):
            self._avoid = failed
        if self._location is not None:
            self._moves += 1
        else:
            self._is_pause_due = True
        _log.info("read goes on at another proxy: stream=%s obstacle=%s", self.stream, error)
        self._check_deadline(error.message)

    def _served(self) -> None:
        """Records or the tail arrived: reset the failure counters."""
        self._trouble_since_s = None
        self._moves = 0
        self._patience_s = self._options.stall_s

    def _check_deadline(self, obstacle: str) -> None:
        """After a failure: raise RequestTimeoutError if failures have lasted longer than `read_deadline_s`."""
        now_s = self._loop.time()
        if self._trouble_since_s is None:
            self._trouble_since_s = now_s
        elif now_s - self._trouble_since_s >= self._options.read_deadline_s:
            raise RequestTimeoutError(
                f"no proxy served this read for {self._options.read_deadline_s:g} s, last obstacle: {obstacle}",
                outcome_unknown=False,
            )

    def _leave(self) -> None:
        """Cancel the read at the server; frames already received are kept."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cancel(self._request)
        if not self._ended:
            self._arrived = self._announced = self._end = None  # the next proxy reports them
            self._is_tail_reported = False


class Reader(AsyncIterator[T]):
    """One read of a stream, made by `Client.read` and `Client.read_batches`. Iterate over it once, in one task;
    `aclose` ends it early."""

    def __init__(self, items: AsyncGenerator[T, None], progress: ReadProgress) -> None:
        self._items = items
        self._progress = progress

    def __aiter__(self) -> AsyncIterator[T]:
        return self._items

    def __anext__(self) -> Coroutine[Any, Any, T]:
        return self._items.__anext__()

    async def aclose(self) -> None:
        """End the read; the proxy sends nothing more. Idempotent."""
        await self._items.aclose()

    @property
    def lag(self) -> Lag | None:
        """How far the last record delivered is behind the end of the stream. None while that is not known: before the
        first record, and after a change of proxy until the next one answers."""
        session = self._progress.session
        return session.lag if session is not None else None

    @property
    def caught_up(self) -> bool:
        """Whether all records of the stream are delivered, as far as its proxy knew when it sent the last ones; also
        False if that is not known. Records written since are on their way."""
        session = self._progress.session
        return session is not None and self._progress.left == 0 and session.is_caught_up


class ReadProgress:
    """What a Reader and its generator share; a generator that referred to its Reader would be a reference cycle."""

    __slots__ = ("left", "session")

    def __init__(self) -> None:
        self.session: ReadSession | None = None  # None: not begun
        self.left = 0  # records of the last batch that are not delivered yet


async def iterate_batches(
    begin: Callable[[], ReadSession], limit: int | None, progress: ReadProgress
) -> AsyncGenerator[RecordBatch, None]:
    """Yield the batches of a read, at most `limit` records."""
    session = progress.session = begin()
    batches = session.batches()
    if limit == 0:
        return
    left = limit
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


async def iterate_records(
    begin: Callable[[], ReadSession], limit: int | None, progress: ReadProgress
) -> AsyncGenerator[Record, None]:
    """As `iterate_batches`, record by record."""
    batches = iterate_batches(begin, limit, progress)
    try:
        async for batch in batches:
            for progress.left, record in zip(range(len(batch) - 1, -1, -1), batch, strict=True):
                yield record
    finally:
        await batches.aclose()


def _last_of(entries: proxy.Entries) -> tuple[int, int]:
    return entries.segment, entries.first_entry + len(entries.lengths) - 1


@cache
def _keep_freed_memory() -> None:
    """Raise glibc malloc's mmap and trim thresholds, once per process, by freeing one large block.

    Otherwise the memory of each frame is returned to the system and faulted in again for the next: half a CPU second
    per GB. Up to twice the block stays allocated to the process. Thresholds set by the program are kept, and the block
    is never touched; other C libraries are unaffected.
    """
    bytes(_BLOCK_BYTES)
