"""One read of one stream: entries come under credit, records are delivered in order, each once.

The law of this file: the place of the next record to deliver is known at every moment, so that a lost connection, a
moved reader or a slow proxy is answered by opening again at that place, and nothing is delivered twice or left out.
What the server says about the stream itself (its end, a truncation, damage) is told to the caller as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from functools import cache

from dlog.client.backoff import Backoff
from dlog.client.connection import Connection
from dlog.client.decoding import decode_entries
from dlog.client.options import ClientOptions
from dlog.client.position import Position, at_dlsn
from dlog.client.record import RecordBatch
from dlog.client.routing import READ, Router
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

_MOVES_MAX = 3  # in a row at full speed: a ring that changes may send us on more than once
_BLOCK_BYTES = 16 << 20  # glibc learns from nothing above 32 MiB


class Reader:
    """Iterate `batches()` once. Not to be shared."""

    def __init__(self, stream: str, start: Position, *, follow: bool, router: Router, options: ClientOptions) -> None:
        self.stream = stream
        self.caught_up = 0  # how often the tail was reached
        self._start = start
        self._follow = follow
        self._router = router
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._heard: deque[proxy.Entries | proxy.ReaderEvent | DLogError] = deque()
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._request = 0
        self._owed = 0  # bytes consumed and not given back as credit
        self._next: DLSN | None = None  # place of the next record to deliver, once known
        self._life = start.life  # of the stream that is read, once known
        self._location: str | None = None  # where the server sent us
        self._avoid: str | None = None
        self._backoff = Backoff(options.backoff_first_s, options.backoff_max_s, router.rng)
        self._trouble_since_s: float | None = None  # the first since a server served us
        self._moves = 0  # from proxy to proxy since then
        self._patience_s = options.stall_s  # doubled by each stall since then
        self._is_owed = True  # the server has not yet shown us the tail: silence is not for want of records
        self._ended = False

    async def batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Batches in order, each record once.

        Ends at the tail as of the open (without follow) or at the end of a sealed stream. Raises StreamNotFoundError
        (of a stream that was made again meanwhile StreamRecreatedError), PositionBeyondEndError, TruncatedError,
        DamagedError as the server tells them, RequestTimeoutError when nobody has served this read for
        `read_deadline_s`. Cancelling between batches loses nothing: read again from the last batch's `position`.
        """
        _keep_freed_memory()
        try:
            while not self._ended:
                if self._connection is None and not self._heard:
                    await self._open()
                while self._heard:
                    heard = self._heard.popleft()
                    if isinstance(heard, proxy.Entries):
                        for batch in self._take(heard):
                            yield batch
                    elif isinstance(heard, proxy.ReaderEvent):
                        self._on_reader_event(heard)
                    else:
                        self._on_trouble(heard)
                if self._connection is not None and not self._ended:
                    self._wake.clear()
                    await self._hear()
        finally:
            self._leave()

    # ---- what the connection says (ReaderPort) ----------------------------------------------------------------------

    def on_entries(self, entries: proxy.Entries) -> None:
        self._heard.append(entries)
        self._wake.set()

    def on_event(self, event: proxy.ReaderEvent) -> None:
        self._heard.append(event)
        self._wake.set()

    def on_failed(self, error: DLogError) -> None:
        self._heard.append(error)
        self._wake.set()

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        """Wait for the server. One that lives and owes us records, yet is silent for `stall_s`, is left for another.

        Silent may only seem who is far: records can be on their way for long. So it is asked first whether it lives;
        its answer comes behind all that it has sent us, and the connection waits for it as long as bytes arrive.
        Silent may also be who looks for the tail: each stall doubles our patience, else nobody would ever find it.
        """
        if not self._is_owed:
            await self._wake.wait()
            return
        stall_s = self._patience_s
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
        if not self._heard:
            self._patience_s = min(2 * stall_s, self._options.read_deadline_s)
            self._on_trouble(RequestTimeoutError(f"the read stands still for {stall_s:g} s", outcome_unknown=False))

    async def _ping(self, connection: Connection) -> None:
        """Wake once the server has answered; a connection that ends says so itself."""
        with contextlib.suppress(DLogError):
            await connection.ask(proxy.Ping)
        self._wake.set()

    async def _open(self) -> None:
        """One try to be served; a failure is remembered as trouble, to be told or tried again."""
        if self._moves > _MOVES_MAX:
            await asyncio.sleep(self._router.pause_s(self._backoff))
        start = self._start if self._next is None else at_dlsn(self._next)
        life = self._life or None
        location, self._location = self._location, None
        try:
            if location is not None:
                self._router.learn([location])
                connection = await self._router.reach_or_hand_on(location, READ)
            else:
                connection = await self._router.connect_any(READ, (self._avoid,) if self._avoid else ())
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
                    life,
                ),
            )
            self._owed = 0
            self._is_owed = True
            self._connection = connection
        except DLogError as error:
            self._on_trouble(error)
        if self._connection is None and not self._ended:
            await asyncio.sleep(self._router.pause_s(self._backoff))

    def _take(self, entries: proxy.Entries) -> list[RecordBatch]:
        """Decode one frame; what was delivered before is left out."""
        self._served()
        self._owed += len(entries.body)
        if self._owed * 2 >= self._options.read_credit_bytes and self._connection is not None:
            self._connection.credit(self._request, self._owed)
            self._owed = 0
        batches: list[RecordBatch] = []
        for batch in decode_entries(entries, self._life):
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
                self._life = detail.get("life") or self._life
                if self._next is None and "dlsn" in detail:
                    self._next = of(*detail["dlsn"])
            case ReaderEventKind.CAUGHT_UP:
                self._served()
                self._life = detail.get("life") or self._life
                self.caught_up += 1
                self._is_owed = False
                self._ended = not self._follow
            case ReaderEventKind.END_OF_STREAM:
                self._ended = True
            case ReaderEventKind.TRUNCATED:
                first = str(of(*detail["first"])) if "first" in detail else None
                hint = f"; the first record kept is at {first}" if first else ""
                raise TruncatedError(f"records at this place were truncated{hint}: stream={self.stream}", first=first)
            case ReaderEventKind.DAMAGED:
                where = f" dlsn={of(*detail['dlsn'])}" if "dlsn" in detail else ""
                raise DamagedError(f"{detail.get('message', 'an entry cannot be read')}: stream={self.stream}{where}")
            case ReaderEventKind.BEYOND_END:
                end = str(of(*detail["end"])) if "end" in detail else None
                start = self._start if self._next is None else at_dlsn(self._next, self._life)
                hint = f", it ends at {end}" if end else ""
                raise PositionBeyondEndError(
                    f"the stream does not reach as far as this position{hint}; read from there, or from the start: "
                    f"stream={self.stream} position={start}",
                    end=end,
                )
            case ReaderEventKind.DELETED if self._life and detail.get("life") is not None:
                raise StreamRecreatedError(
                    f"the stream that this position is of was deleted, and another has its name; read that one from "
                    f"the start: stream={self.stream} life={self._life} now={detail['life']}"
                )
            case ReaderEventKind.DELETED:
                what = "the stream was deleted" if self._next is not None or self._life else "no such stream"
                raise StreamNotFoundError(f"{what}: stream={self.stream}")
            case ReaderEventKind.MOVED:
                self._leave()
                self._location = detail.get("location")
                self._moves += 1
                self._check_deadline("proxies send it from one to the other")

    def _on_trouble(self, error: DLogError) -> None:
        """The read was refused or its connection is gone; raises what trying again cannot mend."""
        failed = self._connection.address if self._connection is not None else None
        self._leave()
        if isinstance(error, OwnedElsewhereError):
            self._location = error.location
        elif error.remedy not in (Remedy.RETRY, Remedy.REOPEN):
            raise error
        elif isinstance(error, ConnectionLostError | RequestTimeoutError):
            self._avoid = failed
        self._check_deadline(error.message)

    def _served(self) -> None:
        """Records came, or the tail: whatever was wrong is over."""
        self._trouble_since_s = None
        self._moves = 0
        self._patience_s = self._options.stall_s

    def _check_deadline(self, obstacle: str) -> None:
        """Something is wrong. Raises RequestTimeoutError if it has been for too long."""
        now_s = self._loop.time()
        if self._trouble_since_s is None:
            self._trouble_since_s = now_s
        elif now_s - self._trouble_since_s > self._options.read_deadline_s:
            raise RequestTimeoutError(
                f"nobody served this read for {self._options.read_deadline_s:g} s, last obstacle: {obstacle}",
                outcome_unknown=False,
            )

    def _leave(self) -> None:
        """Give the reader up at the server; what was heard from it stays."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cancel(self._request)


@cache
def _keep_freed_memory() -> None:
    """Teach glibc's malloc, once a process, that this one uses large blocks: freeing one raises its thresholds.

    Else what a reader frees goes back to the system with each frame, and is faulted in again with the next: half a CPU
    second for a GB. Up to twice the block stays with the process. A program that has set malloc's thresholds keeps
    them, and the block is never touched; other C libraries do not care.
    """
    bytes(_BLOCK_BYTES)
