"""The writer of one stream: collects records into batches, sends them in order, and reports one outcome for each.

Invariants:
- Batches form by back-pressure, without delays. While few batches are pending, the open batch is sent at the end of the
  loop iteration; otherwise it grows until it is full or replies make room. Batches made by the application are sent one
  by one while there is room, and joined where they wait behind others.
- While the open batch is lent to a filler, only the filler adds records to it. `settle` ends the loan and precedes
  every reading of the batch's size or of the room left in the buffer.
- A batch keeps its (producer id, sequence) from the first attempt on while it may have been written. Unanswered batches
  are sent again in order, marked as retries; the log recognises duplicates.
- Only a batch that is certainly not written moves to a new producer id, the next generation of the old one. Its first
  batch names the sequence from which on no batch of older generations is in the log. The log accepts it only if that
  is true, and accepts no older generation afterwards: so once the next batch is acknowledged, a batch that failed
  with an unknown outcome is in the log or never will be.
- A batch that may be written fails with an unknown outcome, whatever the cause. Withdrawn records (of a pipeline after
  a failed record) are removed from every batch that is certainly not written before it is sent.
- Each batch carries `since`, a position in the log from before its producer id was first used. If everything that the
  owner has evicted from its producer table is older, the producer is new to the log, not forgotten.
- A batch whose deadline passes fails: as not written if it was never sent, else with an unknown outcome, together
  with all batches sent after it, which could only be written after it.
Only `_seek`, which finds the owner when there is something to send, is asynchronous: an idle stream costs no task.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from dlog.client.admission import Admission
from dlog.client.backoff import Backoff
from dlog.client.batch import SLOT_BYTES, Batch, BatchFuture, BatchListener, BatchResult, too_large
from dlog.client.connection import Connection, place_of
from dlog.client.options import RECORD_BYTES_MAX, ClientOptions
from dlog.client.routing import Router
from dlog.client.single_appends import SingleAppends
from dlog.errors import (
    ClosedError,
    DLogError,
    OwnedElsewhereError,
    ProducerUnknownError,
    Remedy,
    RequestTimeoutError,
    SequenceGapError,
    StreamNotFoundError,
    to_raise,
    with_outcome,
)
from dlog.model.dlsn import DLSN, DLSN_INVALID
from dlog.wire.proxy import GetOwner

NAME_BYTES = 12  # of a producer id; 4 of its generation follow
JOIN_SHARE = 1 / 30  # of append_deadline_s: batches made within this time may be sent, and then fail, as one

_log = logging.getLogger(__name__)


class BatchBorrower(Protocol):
    """Adds records to the open batch while it has the loan (a Pipeline, or SingleAppends)."""

    def lend(self, slot: int, take: Callable[[bytes], None], bytes_max: int) -> BatchListener:
        """Start a loan. The filler's first record is at `slot`; it may add more with `take`, `bytes_max` bytes in all,
        counting SLOT_BYTES extra for each. Returns the listener for the outcome of all these records."""
        ...

    def settle(self, slots: int) -> int:
        """End the loan; the batch has `slots` slots now. Returns the bytes added since `lend`."""
        ...


class Producer:
    """Appends to one stream in order, retrying until each batch's deadline."""

    def __init__(
        self,
        stream: str,
        router: Router,
        options: ClientOptions,
        new_name: Callable[[], bytes] = lambda: os.urandom(NAME_BYTES),
    ) -> None:
        self.stream = stream
        self._router = router
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._name = new_name()
        self._generation = 0
        self._acknowledged_generation = 0  # the newest one with an acknowledged batch
        self._replaces: int | None = None  # first sequence of this generation, see the invariants
        self._highest = 0  # all sequences sent under older generations are lower
        self._since: tuple[int, int] | None = None  # (segment, entry); see the invariants
        self._reached: tuple[int, int] | None = None  # (segment, entry) of the latest known position in the log
        weak = weakref.proxy(self)  # parts with this object's lifetime refer to it weakly: no reference cycle
        self.singles = SingleAppends(weak, self._loop)
        self._sequence = 0  # of the next record to be sent for the first time
        self._open: Batch | None = None
        self._filler: BatchBorrower | None = None  # has the loan of the open batch
        self._ready: deque[Batch] = deque()  # to be sent, in order
        self._flight: deque[Batch] = deque()  # sent on `_connection` but not answered, in order
        self._connection: Connection | None = None
        self._batch_bytes_max = options.batch_bytes_max
        self._incarnation: str | None = None  # the stream's incarnation id; "": it has none; None: not known yet
        self._room = Admission(options.buffer_bytes_max, self._loop, lambda: weak.settle())
        self._first_alone = True  # send one batch and wait for its reply before the next, see `_pump`
        self._awaiting_replies = False  # a batch was refused: send nothing until all pending batches are answered
        self._new_producer_due = False  # a failed batch left a gap in the sequences: the rest needs a new id
        self._moving_to: str | None = None  # address of the new owner, named by a draining server or a redirect
        self._suspect: str | None = None
        self.obstacle: DLogError | None = None  # the latest failure; None once a batch is acknowledged
        self._backoff = Backoff(options.backoff_first_s, options.backoff_max_s, router.rng)
        self._is_seeking = False
        self._pause_due = False  # the last attempt to send or to find the owner failed: back off first
        self._pump_due = False
        self._resume_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._closed: DLogError | None = None

    # ---- appending ------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether an append is accepted at once: the buffer has room, and no caller waits for it."""
        if self._filler is not None:
            self.settle()
        return self._room.is_free

    @property
    def is_below_bound(self) -> bool:
        """Whether the buffer has room, even if other callers wait for it."""
        self.settle()
        return self._room.left > 0

    async def wait_room(self) -> None:
        """Wait for room in the buffer, in the order of the calls. Append at once after the return."""
        await self._room.wait()

    def append_and_lend(self, payload: bytes, txid: int | None, filler: BatchBorrower) -> None:
        """Append one record and lend the rest of its batch to `filler`, which adds records without calling this class.

        payload: at most RECORD_BYTES_MAX bytes. Nothing is lent while callers wait for room, so that none is overtaken.
        Raises ClosedError (nothing appended).
        """
        size = len(payload) + SLOT_BYTES
        self.check_open()
        self.settle()
        batch = self._open
        if batch is None or batch.txid != txid or batch.size + size > self._batch_bytes_max:
            batch = self._open_batch(txid)
        slot = len(batch.payloads)
        batch.payloads.append(payload)
        batch.size += size
        self._room.held += size
        bytes_max = min(self._batch_bytes_max - batch.size, self._room.left) if self._room.is_free else 0
        batch.tellers.append(filler.lend(slot, batch.payloads.append, bytes_max))
        self._filler = filler
        if not self._pump_due:
            self._pump_soon()

    def settle(self) -> None:
        """End the loan of the open batch, if there is one, and count the bytes that the filler added."""
        filler, self._filler = self._filler, None
        if filler is not None:
            batch = self._open
            assert batch is not None, "only an open batch is lent: the loan ends before the batch is closed"
            size = filler.settle(len(batch.payloads))
            batch.size += size
            self._room.held += size

    def check_open(self) -> None:
        """Raise ClosedError if the producer is closed."""
        if self._closed is not None:
            raise to_raise(self._closed)

    def add_batch(self, payloads: Sequence[bytes], txid: int | None) -> asyncio.Future[BatchResult]:
        """Append records atomically; the future's result is where they are. Cancelling it stops the wait only.

        Raises RecordTooLargeError if they do not fit into one record set, ClosedError (nothing appended).
        """
        future: asyncio.Future[BatchResult] = self._loop.create_future()
        self.add_whole(payloads, txid, BatchFuture(len(payloads), future))
        return future

    def add_whole(self, payloads: Sequence[bytes], txid: int | None, teller: BatchListener) -> None:
        """As `add_batch`, but report to `teller`. Batches that wait for their turn to be sent are joined."""
        count = len(payloads)
        size = sum(map(len, payloads)) + SLOT_BYTES * count
        if size > RECORD_BYTES_MAX + SLOT_BYTES:
            raise too_large(size, count) if count > 1 else too_large(len(payloads[0]))
        self.check_open()
        self._close_open()
        batch = self._last_waiting(txid, size)
        if batch is None:
            batch = self._new_batch(txid)
            self._ready.append(batch)
        teller.slot = len(batch.payloads)
        batch.payloads += payloads
        batch.size += size
        batch.tellers.append(teller)
        self._room.held += size
        if not self._pump_due:
            self._pump_soon()

    def _last_waiting(self, txid: int | None, size: int) -> Batch | None:
        """The last batch in `_ready`, if it was never sent and has room for `size` bytes. Not one older than
        JOIN_SHARE of the deadline: its deadline applies to all records in it."""
        if self._connection is None or self._awaiting_replies or not self._ready:
            return None
        last = self._ready[-1]
        if last.body or last.done or last.txid != txid or last.size + size > self._batch_bytes_max:
            return None
        deadline_s = self._options.append_deadline_s
        age_s = self._loop.time() + deadline_s - last.deadline_s
        return last if age_s < deadline_s * JOIN_SHARE else None

    def withdraw(self) -> None:
        """Remove withdrawn records from all batches that are certainly not written. Batches in flight are checked
        when they are refused."""
        self.settle()
        for batch in self._ready:
            if not (batch.done or batch.may_be_written):
                freed = batch.withdraw()
                self._room.held -= freed
                self._new_producer_due = self._new_producer_due or (freed > 0 and batch.sequence >= 0)
        if self._open is not None:
            self._room.held -= self._open.withdraw()
            if self._open.done:
                self._open = None

    async def wait_idle(self) -> None:
        """Wait until the outcome of every record is known."""
        if self._open is None and not self._ready and not self._flight:
            return
        idle: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(idle)
        await idle

    def rest(self) -> bool:
        """If no work is left, detach from the owner's connection and return True. The producer may be used again.

        Work is left while a record is unanswered or the log has not acknowledged a batch of the current generation:
        until then a batch that failed with an unknown outcome may still be written (unless the stream was deleted).
        """
        if self._open is not None or self._ready or self._flight or self._is_seeking:
            return False
        if not self._room.is_free or self._resume_timer is not None:
            return False
        is_pending = self._new_producer_due or self._generation != self._acknowledged_generation
        if is_pending and self._incarnation is not None:
            return False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.detach(self)
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        return True

    def close(self) -> None:
        """Fail unanswered batches: those sent with an unknown outcome, others as not written."""
        if self._closed is not None:
            return
        self._closed = ClosedError("this client is closed", outcome_unknown=False)
        self._detach()
        self._close_open()
        for batch in self._ready:
            if batch.done:
                continue
            unknown = batch.may_be_written
            what = "client closed before the reply came" if unknown else "client closed before the record was sent"
            self._fail(batch, ClosedError(f"{what}: stream={self.stream}", outcome_unknown=unknown))
        self._ready.clear()
        self._room.open()
        for timer in (self._resume_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()

    def stream_changed(self) -> None:
        """This client deleted or created the stream: later appends are for the incarnation that has the name now.
        Pending batches are not; the owner's reply decides about them."""
        if self._oldest() is None:
            self._forget_stream()
            self._detach()

    def _forget_stream(self) -> None:
        self._incarnation = self._since = self._reached = None
        self._new_producer_due = self._new_producer_due or self._sequence > 0
        self._router.forget_stream(self.stream)

    # ---- finding the owner ----------------------------------------------------------------------------------------

    @property
    def _needs_owner(self) -> bool:
        return self._closed is None and self._connection is None and (bool(self._ready) or self._open is not None)

    def _seek_soon(self) -> None:
        """Start `_seek` if there is something to send and no connection."""
        if self._needs_owner and not self._is_seeking:
            self._is_seeking = True
            self._router.spawn(self._seek(), f"dlog producer {self.stream}")

    async def _seek(self) -> None:
        """Find the owner and attach to its connection; ends then, or when nothing is left to send."""
        try:
            while self._needs_owner:
                if self._pause_due:
                    self._pause_due = False
                    await asyncio.sleep(self._router.pause_s(self._backoff))
                try:
                    if self._moving_to is not None:
                        self._router.owner_is(self.stream, self._moving_to)
                        self._moving_to = None
                    connection = await self._router.owner(self.stream, self._suspect)
                    if self._incarnation is None:
                        await self._ask_stream(connection)
                    self._attach(connection)
                except DLogError as error:
                    self.obstacle = to_raise(error)  # a copy: the error itself refers to this frame
                    if error.remedy in (Remedy.FIX, Remedy.STOP, Remedy.REPORT):
                        self._fail_all(error)
                    else:
                        _log.info("appends wait for an owner: stream=%s obstacle=%s", self.stream, error)
                        self._moving_to = error.location if isinstance(error, OwnedElsewhereError) else None
                        self._pause_due = True
        finally:
            self._is_seeking = False

    async def _ask_stream(self, connection: Connection) -> None:
        """Before the first batch, get the stream's incarnation, so that no batch enters a later one, and a position
        before all that this producer writes (`since`). Raises DLogError."""
        result = await connection.ask(lambda request: GetOwner(request, self.stream, None))
        self._incarnation = str(result.get("life") or "")
        self._reached = place_of(result.get("since"))
        if self._sequence == 0:
            self._since = self._reached

    def _attach(self, connection: Connection) -> None:
        if self._closed is not None or self._connection is not None:
            return
        connection.attach(self)
        self._connection = connection
        self._suspect = None
        limit = connection.limits.get("batch_bytes_max", self._options.batch_bytes_max)
        self._batch_bytes_max = max(1, min(self._options.batch_bytes_max, limit))
        self._awaiting_replies = False
        self._first_alone = True
        if self._new_producer_due:
            self._renew()
        self._pump()

    def _detach(self) -> None:
        """Leave the connection; batches pending there go back to `_ready`, to be sent again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.detach(self)
        flight, self._flight = self._flight, deque()
        for batch in flight:
            if not batch.done:
                batch.may_be_written = True
                self._put_back(batch)
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        self.withdraw()
        self._awaiting_replies = False
        self._pause_due = True
        self._seek_soon()

    # ---- called by the connection (WriterPort) --------------------------------------------------------------------

    def on_written(self, batch: Batch, dlsn: DLSN, txid: int, duplicate: bool) -> None:
        """Also valid from a connection that was left meanwhile: the batch is durable."""
        if batch.done:
            return
        batch.done = True
        self._acknowledged_generation = max(self._acknowledged_generation, batch.generation)
        self._first_alone = False
        self._backoff.reset()
        self.obstacle = None
        self._room.held -= batch.size
        if dlsn != DLSN_INVALID:
            self._reached = dlsn[:2]
        batch.written(dlsn, txid, duplicate)
        self._after_answer()

    def on_refused(self, connection: Connection, batch: Batch, error: DLogError) -> None:
        if batch.done or connection is not self._connection or batch not in self._flight:
            return  # a reply to an earlier attempt; the latest attempt will be answered too
        if error.outcome_unknown:
            batch.may_be_written = True
        self._flight.remove(batch)
        self.obstacle = error
        if isinstance(error, ProducerUnknownError):
            self._on_producer_unknown(batch, error)
        elif isinstance(error, SequenceGapError):
            self._put_back(batch)
            self._awaiting_replies = True
            if 0 <= error.expected < batch.sequence:
                # The log ends before this batch: the owner read metadata after it got the request, and this is the
                # reply to the last attempt (Connection.detach). A copy from an earlier attempt that is written later
                # is detected when the next generation begins.
                batch.may_be_written = False
                if not self._is_pending_before(batch):
                    self._new_producer_due = True  # the batch missing before it has failed and will not be sent
        elif error.remedy is Remedy.RETRY:
            self._put_back(batch)
            self._awaiting_replies = True
        elif error.remedy in (Remedy.FOLLOW, Remedy.REOPEN):
            self._put_back(batch)
            self._router.forget(self.stream, connection.address)
            self._moving_to = error.location
            if error.location is None:
                self._suspect = connection.address  # it may be cut off from metadata: ask another proxy
            self._detach()
            return
        else:
            self._fail(batch, error)
            self._awaiting_replies = True
            self._new_producer_due = True
            if isinstance(error, StreamNotFoundError):
                self._fail_all(error)  # nothing meant for it may enter the next stream of the name
        self._after_answer()

    def on_lost(self, connection: Connection, error: DLogError) -> None:
        if connection is not self._connection:
            return
        self.obstacle = error
        self._suspect = connection.address
        self._router.forget(self.stream, connection.address)
        self._detach()

    def on_moved(self, connection: Connection, location: str | None) -> None:
        if connection is not self._connection:
            return
        self._moving_to = location
        self._router.forget(self.stream, connection.address)
        self._awaiting_replies = True
        self._after_answer()

    def on_writable(self) -> None:
        self._pump()

    # ---- inside: after each reply -----------------------------------------------------------------------------------

    def _after_answer(self) -> None:
        """Act on the replies so far: resume, admit callers, send, or report idle."""
        while self._flight and self._flight[0].done:
            self._flight.popleft()
        if self._awaiting_replies and not self._flight and self._connection is not None:
            self._settled(self._connection)
        while self._ready and self._ready[0].done:
            self._ready.popleft()
        self._room.let_in()
        if self._open is None and not self._flight and not self._ready:
            self._tell_idle()
        elif not self._pump_due:
            self._pump_soon()

    def _settled(self, connection: Connection) -> None:
        """All pending batches are answered, refused ones are back in `_ready`: detach or resume."""
        self.withdraw()
        if connection.is_draining or self._moving_to is not None or self._incarnation is None:
            self._detach()
            return
        if self._new_producer_due:
            self._renew()
        if self._resume_timer is None:
            self._resume_timer = self._loop.call_later(self._router.pause_s(self._backoff), self._resume)

    def _resume(self) -> None:
        self._resume_timer = None
        self._awaiting_replies = False
        self._first_alone = True
        if self._new_producer_due:
            self._renew()
        self._pump()

    def _put_back(self, batch: Batch) -> None:
        """Insert a batch into `_ready`, in the order of sequences."""
        at = 0
        while at < len(self._ready) and 0 <= self._ready[at].sequence < batch.sequence:
            at += 1
        self._ready.insert(at, batch)

    def _is_pending_before(self, batch: Batch) -> bool:
        return any(0 <= b.sequence < batch.sequence and not b.done for q in (self._ready, self._flight) for b in q)

    def _on_producer_unknown(self, batch: Batch, error: ProducerUnknownError) -> None:
        """The log does not know this producer, or has batches that the new generation was to replace. A batch that may
        be written fails with an unknown outcome; others go on under the next generation."""
        self._reached = error.since or self._reached
        for known in (batch, *self._ready):
            known.may_be_written = known.may_be_written or known.carried  # can no longer be ruled out
        if batch.may_be_written:
            error.outcome_unknown = True
            self._fail(batch, error)
        else:
            self._put_back(batch)
        self._awaiting_replies = True
        self._new_producer_due = True

    def _renew(self) -> None:
        """Start the next generation of the producer id. A batch that may be written fails with an unknown outcome. The
        generation begins at the lowest sequence carried over, or else above all sequences ever sent."""
        first = self._highest = max(self._highest, self._sequence)
        for batch in self._ready:
            if batch.sequence >= 0 and not batch.done and not batch.may_be_written:
                first = min(first, batch.sequence)
                batch.carried = True
            if batch.may_be_written and not batch.done:
                self._fail(
                    batch,
                    ProducerUnknownError(
                        f"may be written: an earlier batch failed before this one was answered: stream={self.stream}",
                        outcome_unknown=True,
                    ),
                )
        self._ready = deque(b for b in self._ready if not b.done)
        self._new_producer_due = False
        self._generation += 1
        self._since = self._reached
        self._sequence = self._replaces = first

    # ---- inside: sending ------------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        """Send at the end of this loop iteration, so that its appends share a batch."""
        self._pump_due = True
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send batches as far as the limits allow.

        The first batch after a connect or a refusal is sent alone. An owner that does not know this producer takes the
        first sequence that it sees for its beginning; if it refused that batch for lack of room and accepted the next
        one, their order would change.
        """
        self._pump_due = False
        if self._deadline_timer is None:
            self._arm_deadline()
        connection = self._connection
        if connection is None:
            self._seek_soon()
            return
        options = self._options
        while not (self._awaiting_replies or connection.is_paused or connection.is_draining):
            under_way = len(self._flight)
            if under_way >= (1 if self._first_alone else options.inflight_batches_max):
                return
            if self._ready:
                batch = self._ready.popleft()
            elif self._open is not None and under_way < options.inflight_partial_max:
                self.settle()
                batch, self._open = self._open, None
            else:
                return
            if not batch.done:
                self._send(connection, batch)

    def _send(self, connection: Connection, batch: Batch) -> None:
        batch.close()
        if batch.generation != self._generation:
            batch.generation, batch.sequence = self._generation, self._sequence
            self._sequence += batch.count
        self._flight.append(batch)
        connection.write(
            self,
            batch,
            stream=self.stream,
            producer=self._name + self._generation.to_bytes(4, "big"),
            sequence=batch.sequence,
            count=batch.count,
            txid=batch.txid,
            crc=batch.crc,
            retry=batch.may_be_written,
            since=self._since,
            replaces=self._replaces,
            incarnation=self._incarnation or None,
            body=batch.body,
        )

    def _new_batch(self, txid: int | None) -> Batch:
        return Batch(txid, self._loop.time() + self._options.append_deadline_s)

    def _open_batch(self, txid: int | None) -> Batch:
        self._close_open()
        batch = self._open = self._new_batch(txid)
        return batch

    def _close_open(self) -> None:
        self.settle()
        batch, self._open = self._open, None
        if batch is not None:
            batch.close()
            self._ready.append(batch)

    # ---- inside: failing ------------------------------------------------------------------------------------------

    def _arm_deadline(self) -> None:
        oldest = self._oldest()
        if oldest is not None and self._closed is None:
            self._deadline_timer = self._loop.call_at(oldest.deadline_s, self._on_deadline)

    def _oldest(self) -> Batch | None:
        for queue in (self._flight, self._ready):
            for batch in queue:
                if not batch.done:
                    return batch
        return self._open

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        oldest = self._oldest()
        if oldest is not None and oldest.deadline_s <= self._loop.time():
            self._expire()
        self._arm_deadline()

    def _expire(self) -> None:
        """The oldest batch's deadline has passed: fail it and all batches sent after it."""
        now_s = self._loop.time()
        after = f"no reply within {self._options.append_deadline_s:g} s"
        if self._flight and self._connection is not None:
            after += f" from the owner {self._connection.address}"
        obstacle = f", last obstacle: {self.obstacle.message}" if self.obstacle is not None else ""
        if self._flight:
            if self._connection is not None:
                self._router.forget(self.stream, self._connection.address)
            self._detach()
        if self._open is not None and self._open.deadline_s <= now_s:
            self._close_open()
        for batch in self._ready:
            if not batch.done and (batch.may_be_written or batch.deadline_s <= now_s):
                unknown = batch.may_be_written
                self._new_producer_due = self._new_producer_due or batch.sequence >= 0
                why = after if unknown else f"not written: {after}"
                self._fail(
                    batch, RequestTimeoutError(f"{why}{obstacle}: stream={self.stream}", outcome_unknown=unknown)
                )
        self._ready = deque(b for b in self._ready if not b.done)
        self._after_answer()

    def _fail(self, batch: Batch, error: DLogError) -> None:
        """Fail a batch (only here); the error's `outcome_unknown` comes from `may_be_written`."""
        batch.done = True
        self._room.held -= batch.size
        batch.failed(with_outcome(error, batch.may_be_written))

    def _fail_all(self, error: DLogError) -> None:
        """The stream cannot be written: fail all batches that wait. If it was deleted, later appends are for the next
        stream of the name."""
        if isinstance(error, StreamNotFoundError):
            self._forget_stream()
        self._close_open()
        for batch in self._ready:
            if not batch.done:
                self._new_producer_due = self._new_producer_due or batch.sequence >= 0
                self._fail(batch, error)
        self._ready.clear()
        self._after_answer()

    def _tell_idle(self) -> None:
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)
