"""The writer of one stream: collects records into batches, sends them in order, and reports one outcome for each.

The queue (batch_queue.py) collects records and keeps the batches without an outcome, the finder (owner_finder.py)
connects to the owner, a session limits what is sent to it, and the identity (producer_identity.py) numbers batches.

Invariants:
- Batches form by back-pressure, without delays. While few batches are pending, the open batch is sent at the end of the
  loop iteration; otherwise it grows until it is full or replies make room.
- Unanswered batches are sent again in order, marked as retries, under their old sequence.
- A batch that may be written fails with an unknown outcome, whatever the cause. Withdrawn records (of a pipeline after
  a failed record) are removed from every batch that is certainly not written before it is sent.
- A batch whose deadline passes fails: as not written if it was never sent, else with an unknown outcome, together
  with all batches sent after it, which could only be written after it.
- A child process sends nothing: it would write to the parent's connection, under the sequences of the parent's batches.
Only `_seek`, which finds the owner when there is something to send, is asynchronous: an idle stream costs no task.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from dlog.client import forks
from dlog.client.backoff import Backoff
from dlog.client.batch import SLOT_BYTES, Batch, BatchFuture, BatchListener, BatchResult, too_large
from dlog.client.batch_queue import BatchBorrower, BatchQueue
from dlog.client.check import check_loop
from dlog.client.connection import Connection
from dlog.client.options import RECORD_BYTES_MAX, ClientOptions
from dlog.client.owner_finder import OwnerFinder
from dlog.client.producer_identity import NAME_BYTES, ProducerIdentity
from dlog.client.routing import Router
from dlog.client.safe_log import SafeLog
from dlog.client.single_appends import SingleAppends
from dlog.errors import (
    ClosedError,
    DLogError,
    ProducerUnknownError,
    Remedy,
    RequestTimeoutError,
    SequenceGapError,
    StreamNotFoundError,
    to_raise,
    with_outcome,
)
from dlog.model.dlsn import DLSN

_log = SafeLog(logging.getLogger(__name__))


@dataclass(slots=True)
class _OwnerSession:
    """Sending over one connection to the owner.

    in_flight_max is
    - 1 after connecting and after a pause, until a batch is written: an owner that does not know this producer takes
      the first sequence that it sees for its beginning; if it refused that batch for lack of room and accepted the next
      one, their order would change;
    - then the window that the owner reported last, at most the option's;
    - 0 once a batch was refused or the server drains, until all batches in flight are answered and a pause is over.
    """

    connection: Connection
    in_flight_max: int = 1
    resume_timer: asyncio.TimerHandle | None = None  # the pause


class Producer:
    """Appends to one stream in order, retrying until each batch's deadline."""

    def __init__(self, stream: str, router: Router, options: ClientOptions) -> None:
        self.stream = stream
        self.obstacle: DLogError | None = None  # the latest failure; None once a batch is acknowledged
        self._forks = forks.count
        self._router = router
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.queue = BatchQueue(options, self._loop)
        self.singles = SingleAppends(weakref.proxy(self), self.queue, self._loop)
        self._identity = ProducerIdentity(os.urandom(NAME_BYTES))
        self._backoff = Backoff(options.backoff_first_s, options.backoff_max_s, router.rng)
        self._finder = OwnerFinder(stream, router, self._identity, self._backoff)
        self._session: _OwnerSession | None = None  # while connected to the owner
        self._is_seeking = False
        self._pump_due = False
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._closed: DLogError | None = None

    # ---- appending ------------------------------------------------------------------------------------------------

    def append_and_lend(self, payload: bytes, txid: int | None, borrower: BatchBorrower) -> None:
        """Append one record, and lend the rest of its batch to `borrower`: it adds records without calling this class.

        payload: at most RECORD_BYTES_MAX bytes. Raises ClosedError, InvalidRequestError (nothing appended).
        """
        self.check_open()
        self.queue.append_and_lend(payload, txid, borrower)
        if not self._pump_due:
            self._pump_soon()

    def check_open(self) -> None:
        """Raise ClosedError if the producer is closed; see `check_place`."""
        if self._closed is not None:
            raise to_raise(self._closed)
        self.check_place()

    def check_place(self, *, outcome_unknown: bool = False) -> None:
        """Raise ClosedError in a child process: the parent sends what was buffered before the fork. Raise
        InvalidRequestError in another event loop: the producer would never wake its waiters there."""
        forks.check(self._forks, outcome_unknown=outcome_unknown)
        check_loop(self._loop, outcome_unknown=outcome_unknown)

    def add_batch(self, payloads: Sequence[bytes], txid: int | None) -> asyncio.Future[BatchResult]:
        """Append records atomically; the future's result is where they are. Cancelling it stops the wait only.

        Raises RecordTooLargeError if they do not fit into one record set, ClosedError (nothing appended).
        """
        future: asyncio.Future[BatchResult] = self._loop.create_future()
        self.add_whole(payloads, txid, BatchFuture(len(payloads), future))
        return future

    def add_whole(self, payloads: Sequence[bytes], txid: int | None, listener: BatchListener) -> None:
        """As `add_batch`, but report to `listener`. Batches that wait for their turn to be sent are joined."""
        count = len(payloads)
        size = sum(map(len, payloads)) + SLOT_BYTES * count
        if size > RECORD_BYTES_MAX + SLOT_BYTES:
            raise too_large(size, count) if count > 1 else too_large(len(payloads[0]))
        self.check_open()
        session = self._session
        is_sending = session is not None and session.in_flight_max > 0
        self.queue.add_whole(payloads, size, txid, listener, may_join=is_sending)
        if not self._pump_due:
            self._pump_soon()

    def withdraw(self) -> None:
        """Remove withdrawn records from all batches that are certainly not written. Batches in flight are checked
        when they are refused."""
        for batch in self.queue.withdraw():
            self._identity.on_failed(batch)

    def rest(self) -> bool:
        """If no work is left, detach from the owner's connection and return True. The producer may be used again.

        Work is left while a record is unanswered, or a batch that failed may still be written (see
        ProducerIdentity.is_final).
        """
        session = self._session
        if not self.queue.is_empty or not self.queue.room.free_bytes or self._is_seeking or not self._identity.is_final:
            return False
        if session is not None:
            if session.resume_timer is not None:
                return False
            self._session = None
            session.connection.detach(self)
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
        self.queue.close_open()
        for batch in self.queue.ready:
            if batch.done:
                continue
            unknown = batch.may_be_written
            what = "client closed before the reply came" if unknown else "client closed before the record was sent"
            self._fail(batch, ClosedError(f"{what}: stream={self.stream}", outcome_unknown=unknown))
        self.queue.ready.clear()
        self.queue.room.open()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()

    def stream_changed(self) -> None:
        """This client deleted or created the stream: later appends are for the incarnation that has the name now.
        Pending batches are not; the owner's reply decides about them."""
        if self.queue.oldest() is None:
            self._finder.forget_stream()
            self._detach()

    # ---- connecting to the owner ----------------------------------------------------------------------------------

    @property
    def _needs_owner(self) -> bool:
        has_unsent = bool(self.queue.ready) or self.queue.open is not None
        return has_unsent and self._session is None and self._closed is None

    def _seek_soon(self) -> None:
        """Start `_seek` if there is something to send and no connection."""
        if self._needs_owner and not self._is_seeking:
            self._is_seeking = True
            self._router.spawn(self._seek(), f"dlog producer {self.stream}")

    async def _seek(self) -> None:
        """Find the owner and attach to its connection; ends then, or when nothing is left to send."""
        try:
            while self._needs_owner:
                try:
                    connection = await self._finder.find()
                    self._attach(connection)
                except DLogError as error:
                    self.obstacle = to_raise(error)  # a copy: the error itself refers to this frame
                    if error.remedy in (Remedy.FIX, Remedy.STOP, Remedy.REPORT):
                        self._fail_all(error)
                    else:
                        _log.info("appends wait for an owner: stream=%s obstacle=%s", self.stream, error)
                        self._finder.on_failed(error)
        finally:
            self._is_seeking = False

    def _attach(self, connection: Connection) -> None:
        if self._closed is not None or self._session is not None:
            return
        connection.attach(self)
        self._session = _OwnerSession(connection)
        self._finder.on_found()
        limit = connection.limits.get("batch_bytes_max", self._options.batch_bytes_max)
        self.queue.batch_bytes_max = max(1, min(self._options.batch_bytes_max, limit))
        if self._identity.is_renewal_due:
            self._renew()
        self._pump()

    def _detach(self) -> None:
        """Leave the connection, if there is one; batches in flight there are ready again."""
        session, self._session = self._session, None
        if session is not None:
            session.connection.detach(self)
            self.queue.put_back_in_flight()
            if session.resume_timer is not None:
                session.resume_timer.cancel()
        self.withdraw()
        self._finder.is_pause_due = True
        self._seek_soon()

    # ---- called by the connection (WriterPort) --------------------------------------------------------------------

    def on_written(self, batch: Batch, dlsn: DLSN, txid: int, duplicate: bool, window: int) -> None:
        """Also valid from a connection that was left meanwhile: the batch is durable."""
        if batch.done:
            return
        batch.done = True
        self._identity.on_acknowledged(batch, dlsn)
        session = self._session
        if session is not None and session.in_flight_max > 0:
            session.in_flight_max = min(window, self._options.inflight_batches_max)
        self._backoff.reset()
        self.obstacle = None
        self.queue.room.held -= batch.size
        batch.written(dlsn, txid, duplicate)
        self._after_answer()

    def on_refused(self, connection: Connection, batch: Batch, error: DLogError) -> None:
        session, queue = self._session, self.queue
        if batch.done or session is None or connection is not session.connection or batch not in queue.in_flight:
            return  # a reply to an earlier attempt; the latest attempt will be answered too
        if error.outcome_unknown:
            batch.may_be_written = True
        queue.in_flight.remove(batch)
        session.in_flight_max = 0
        self.obstacle = error
        if isinstance(error, ProducerUnknownError):
            self._on_producer_unknown(batch, error)
        elif isinstance(error, SequenceGapError):
            queue.put_back(batch)
            if 0 <= error.expected < batch.sequence:
                # The log ends before this batch: the owner read metadata after it got the request, and this is the
                # reply to the last attempt (Connection.detach). A copy from an earlier attempt that is written later
                # is detected when the next generation begins.
                batch.may_arrive_late = batch.may_arrive_late or batch.may_be_written
                batch.may_be_written = False
                if not queue.has_before(batch):
                    self._identity.is_renewal_due = True  # the batch missing before it has failed: it is not sent
        elif error.remedy is Remedy.RETRY:
            queue.put_back(batch)
        elif error.remedy in (Remedy.FOLLOW, Remedy.REOPEN):
            queue.put_back(batch)
            self._finder.on_refused(connection.address, error.location)
            self._detach()
            return
        else:
            self._fail(batch, error)
            if isinstance(error, StreamNotFoundError):
                self._fail_all(error)  # nothing meant for it may enter the next stream of the name
        self._after_answer()

    def on_lost(self, connection: Connection, error: DLogError) -> None:
        if self._session is None or connection is not self._session.connection:
            return
        self.obstacle = error
        self._finder.on_lost(connection.address)
        self._detach()

    def on_moved(self, connection: Connection, location: str | None) -> None:
        if self._session is None or connection is not self._session.connection:
            return
        self._finder.on_moved(connection.address, location)
        self._session.in_flight_max = 0
        self._after_answer()

    def on_writable(self) -> None:
        self._pump()

    # ---- inside: after each reply -----------------------------------------------------------------------------------

    def _after_answer(self) -> None:
        """Act on the replies so far: resume, admit callers, send, or report that no batch is left."""
        queue = self.queue
        while queue.in_flight and queue.in_flight[0].done:
            queue.in_flight.popleft()
        session = self._session
        if session is not None and session.in_flight_max == 0 and not queue.in_flight:
            self._on_all_answered(session)
        while queue.ready and queue.ready[0].done:
            queue.ready.popleft()
        queue.room.let_in()
        if not queue.check_empty() and not self._pump_due:
            self._pump_soon()

    def _on_all_answered(self, session: _OwnerSession) -> None:
        """No batch is in flight any more, refused ones are ready again: detach, or resume after a pause."""
        self.withdraw()
        if session.connection.is_draining or self._finder.is_owner_moving or self._identity.incarnation is None:
            self._detach()
            return
        if self._identity.is_renewal_due:
            self._renew()
        if session.resume_timer is None:
            session.resume_timer = self._loop.call_later(self._router.pause_s(self._backoff), self._resume, session)

    def _resume(self, session: _OwnerSession) -> None:
        session.resume_timer = None
        session.in_flight_max = 1
        if self._identity.is_renewal_due:
            self._renew()
        self._pump()

    def _on_producer_unknown(self, batch: Batch, error: ProducerUnknownError) -> None:
        """The log does not know this producer, or has batches that the new generation was to replace. A batch that may
        be written fails with an unknown outcome; others go on under the next generation."""
        self._identity.reached = error.since or self._identity.reached
        for known in (batch, *self.queue.ready):
            known.may_be_written = known.may_be_written or known.carried  # can no longer be ruled out
        if batch.may_be_written:
            error.outcome_unknown = True
            self._fail(batch, error)
        else:
            self.queue.put_back(batch)
        self._identity.is_renewal_due = True

    def _renew(self) -> None:
        """Go on under the next generation of the producer id. A batch that may be written fails with an unknown
        outcome."""
        carried: list[Batch] = []
        for batch in self.queue.ready:
            if batch.done:
                continue
            if not batch.may_be_written:
                if batch.sequence >= 0:
                    carried.append(batch)
                continue
            text = f"may be written: an earlier batch failed before this one was answered: stream={self.stream}"
            self._fail(batch, ProducerUnknownError(text, outcome_unknown=True))
        self.queue.remove_done()
        self._identity.renew(carried)

    # ---- inside: sending ------------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        """Send at the end of this loop iteration, so that its appends share a batch."""
        self._pump_due = True
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send batches as far as the limits allow."""
        self._pump_due = False
        if self._forks != forks.count:
            return
        if self._deadline_timer is None:
            self._arm_deadline()
        session, identity = self._session, self._identity
        if session is None:
            self._seek_soon()
            return
        connection = session.connection
        while not (connection.is_paused or connection.is_draining):
            batch = self.queue.next_to_send(session.in_flight_max)
            if batch is None:
                return
            identity.number(batch)
            connection.write(
                self,
                batch,
                stream=self.stream,
                producer=identity.producer_id,
                sequence=batch.sequence,
                count=batch.count,
                txid=batch.txid,
                crc=batch.crc,
                retry=batch.may_be_written,
                since=identity.since,
                replaces=identity.replaces,
                incarnation=identity.incarnation or None,
                body=batch.body,
            )

    # ---- inside: failing ------------------------------------------------------------------------------------------

    def _arm_deadline(self) -> None:
        oldest = self.queue.oldest()
        if oldest is not None and self._closed is None:
            self._deadline_timer = self._loop.call_at(oldest.deadline_s, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        oldest = self.queue.oldest()
        if oldest is not None and oldest.deadline_s <= self._loop.time():
            self._expire()
        self._arm_deadline()

    def _expire(self) -> None:
        """The oldest batch's deadline has passed: fail it and all batches sent after it."""
        now_s = self._loop.time()
        queue = self.queue
        after = f"no reply within {self._options.append_deadline_s:g} s"
        if queue.in_flight:
            assert self._session is not None, "batches are in flight only during a session"
            address = self._session.connection.address
            after += f" from the owner {address}"
            self._finder.forget(address)
            self._detach()
        obstacle = f", last obstacle: {self.obstacle.message}" if self.obstacle is not None else ""
        if queue.open is not None and queue.open.deadline_s <= now_s:
            queue.close_open()
        for batch in queue.ready:
            if not batch.done and (batch.may_be_written or batch.deadline_s <= now_s):
                unknown = batch.may_be_written
                why = after if unknown else f"not written: {after}"
                text = f"{why}{obstacle}: stream={self.stream}"
                self._fail(batch, RequestTimeoutError(text, outcome_unknown=unknown))
        queue.remove_done()
        self._after_answer()

    def _fail(self, batch: Batch, error: DLogError) -> None:
        """Fail a batch (only here); the error's `outcome_unknown` comes from `may_be_written`."""
        batch.done = True
        self._identity.on_failed(batch)
        self.queue.room.held -= batch.size
        batch.failed(with_outcome(error, batch.may_be_written))

    def _fail_all(self, error: DLogError) -> None:
        """The stream cannot be written: fail all batches that wait. If it was deleted, later appends are for the next
        stream of the name."""
        if isinstance(error, StreamNotFoundError):
            self._finder.forget_stream()
        self.queue.close_open()
        for batch in self.queue.ready:
            if not batch.done:
                self._fail(batch, error)
        self.queue.ready.clear()
        self._after_answer()
