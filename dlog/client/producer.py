"""One stream's writer: records gather into batches, batches go out in order, and each is answered exactly once.

The law of this file:
- Batches form by back-pressure. An open batch goes out at the end of the loop's turn while few are under way; with more
  under way it waits and grows, and goes when it is full or when answers make room. No delay is ever added.
  Batches that the application made go out one by one while there is room, and together where they wait behind others.
- The open batch may be lent to a filler, which then fills it alone. `settle` ends that, and comes before anybody looks
  at the batch's size or at the room that is left.
- A batch carries (producer, sequence) from its first sending on and keeps them for as long as it may have been written.
  Whatever was sent and not answered is sent again in order, marked as a retry; the log tells a repetition from news.
- Only a batch that certainly was not written goes on under a new producer id, which is the next generation of the
  old one. Its first batch says from which sequence on nothing of the older generations is in the log; the log takes it
  only if that is so, and takes nothing of them from then on. So what failed as outcome unknown is in the log when the
  next batch is acknowledged, or never.
- A batch that may be written fails as unknown, whatever ends it. Records whose teller withdrew (a pipeline one of whose
  records failed) are taken out of every batch that is certainly not written, before it goes out again.
- Each batch says since where in the log its producer id may have written: a place that was known before the id was
  first used. By it an owner that has forgotten many producers tells one that it never had from one that it forgot.
- A batch whose deadline passes fails: as never sent, or, if it was sent, as outcome unknown. What was sent behind it
  fails with it, since it could only be written after it.
Everything here is synchronous but `_seek`, which finds the stream's owner when there is something to send and none.
A stream that is not written costs its producer id and no task, and nothing at all once `rest` let it go.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from dlog.client.admission import Admission
from dlog.client.backoff import Backoff
from dlog.client.batch import SLOT_BYTES, Batch, BatchResult, Teller, Whole, too_large
from dlog.client.connection import Connection, place_of
from dlog.client.options import RECORD_BYTES_MAX, ClientOptions
from dlog.client.routing import Router
from dlog.client.singles import Singles
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
JOIN_SHARE = 1 / 30  # of an append's time: what was put in within it may travel as one, and fails together


class Filler(Protocol):
    """Who puts records into the open batch by itself (pipelines, and awaited appends)."""

    def lend(self, slot: int, take: Callable[[bytes], None], bytes_max: int) -> Teller:
        """Your record is at this slot. More may follow it by `take`, of so many bytes, SLOT_BYTES for each counted in.

        Returns who is to be told of them.
        """
        ...

    def settle(self, slots: int) -> int:
        """Put no more in: the batch has so many slots now. Returns the bytes that followed."""
        ...


class Producer:
    """Appends to one stream, in order."""

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
        self._acknowledged_generation = 0  # the newest of which the log has acknowledged a batch
        self._replaces: int | None = None  # where this generation begins, see above
        self._highest = 0  # all sequences sent under older generations are below
        self._since: tuple[int, int] | None = None  # of this id, see above
        self._reached: tuple[int, int] | None = None  # the last place in the log that we heard of
        weak = weakref.proxy(self)  # for parts that live no longer than this, so that it is freed at its end
        self.singles = Singles(weak, self._loop)
        self._sequence = 0  # of the next record to be sent for the first time
        self._open: Batch | None = None
        self._filler: Filler | None = None  # whom the open batch is lent to
        self._ready: deque[Batch] = deque()  # to be sent, in order
        self._flight: deque[Batch] = deque()  # sent on `_connection` and not answered, in order
        self._connection: Connection | None = None
        self._batch_bytes_max = options.batch_bytes_max
        self._life: str | None = None  # of the stream that we write to; "": it has none. None: not asked yet
        self._room = Admission(options.buffer_bytes_max, self._loop, lambda: weak.settle())
        self._first_alone = True  # nothing goes out behind the first batch until it is answered, see `_pump`
        self._settling = False  # a batch was refused: send nothing until all under way is answered
        self._new_producer_due = False  # the refused batch left a gap: the rest needs a new id
        self._moving_to: str | None = None  # the server drains, or named another owner
        self._suspect: str | None = None
        self.obstacle: DLogError | None = None  # why nothing is acknowledged; None once something is
        self._backoff = Backoff(options.backoff_first_s, options.backoff_max_s, router.rng)
        self._is_seeking = False
        self._pause_due = False  # the last try to send or to find the owner failed
        self._pump_due = False
        self._resume_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._closed: DLogError | None = None

    # ---- appending ------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether an append would be taken at once: there is room, and nobody waits for it."""
        if self._filler is not None:
            self.settle()
        return self._room.is_free

    @property
    def is_below_bound(self) -> bool:
        """Whether there is room, never mind who waits for it."""
        self.settle()
        return self._room.left > 0

    async def wait_room(self) -> None:
        """Wait until an append may be taken, in the order of the calls. Append at once after the return."""
        await self._room.wait()

    def add_lot(self, payload: bytes, txid: int | None, filler: Filler) -> None:
        """Take one record, and lend the rest of its batch out: what follows is put in without a word to us.

        payload: at most RECORD_BYTES_MAX bytes. Nothing is lent while others wait for room, so that none is overtaken.
        Raises ClosedError (nothing taken).
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
        """Count what was put into the batch that is lent out, and lend it no more."""
        filler, self._filler = self._filler, None
        if filler is not None:
            batch = self._open
            assert batch is not None, "what is lent out is open: it is settled before it is closed"
            size = filler.settle(len(batch.payloads))
            batch.size += size
            self._room.held += size

    def check_open(self) -> None:
        """Raises ClosedError once nothing is taken any more."""
        if self._closed is not None:
            raise to_raise(self._closed)

    def add_batch(self, payloads: Sequence[bytes], txid: int | None) -> asyncio.Future[BatchResult]:
        """Take records of one fate; the future is where they lie. Cancelling it forgets the waiter only.

        Raises RecordTooLargeError if they do not fit one set (nothing taken), ClosedError.
        """
        future: asyncio.Future[BatchResult] = self._loop.create_future()
        self.add_whole(payloads, txid, Whole(len(payloads), future))
        return future

    def add_whole(self, payloads: Sequence[bytes], txid: int | None, teller: Teller) -> None:
        """As `add_batch`, but for whom it tells. What waits behind a full pipe goes on together."""
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
        """The batch that was put in last, if it waits for room in the pipe only, and takes so many bytes more. One that
        has waited long is left alone: its deadline would be that of all."""
        if self._connection is None or self._settling or not self._ready:
            return None
        last = self._ready[-1]
        if last.body or last.done or last.txid != txid or last.size + size > self._batch_bytes_max:
            return None
        deadline_s = self._options.append_deadline_s
        age_s = self._loop.time() + deadline_s - last.deadline_s
        return last if age_s < deadline_s * JOIN_SHARE else None

    def withdraw(self) -> None:
        """Take out the records of tellers that withdrew, wherever they are certainly not written. Those under way are
        looked at when they come back."""
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
        """Wait until every record taken has been answered, well or ill."""
        if self._open is None and not self._ready and not self._flight:
            return
        idle: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(idle)
        await idle

    def rest(self) -> bool:
        """Leave the owner's connection if nothing is left to do; False if something is. It may be used again.

        Left to do are records without an answer, and a generation that the log has not heard of: until then a batch
        that failed as outcome unknown may still land. In a stream that was deleted it cannot.
        """
        if self._open is not None or self._ready or self._flight or self._is_seeking:
            return False
        if not self._room.is_free or self._resume_timer is not None:
            return False
        is_pending = self._new_producer_due or self._generation != self._acknowledged_generation
        if is_pending and self._life is not None:
            return False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.detach(self)
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        return True

    def close(self) -> None:
        """Fail what is not answered: what was sent as outcome unknown, the rest as not written."""
        if self._closed is not None:
            return
        self._closed = ClosedError("this client is closed", outcome_unknown=False)
        self._detach()
        self._close_open()
        for batch in self._ready:
            if batch.done:
                continue
            unknown = batch.may_be_written
            what = "closed before the answer came" if unknown else "closed before it was sent"
            self._fail(batch, ClosedError(f"{what}: stream={self.stream}", outcome_unknown=unknown))
        self._ready.clear()
        self._room.open()
        for timer in (self._resume_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()

    def stream_changed(self) -> None:
        """This client has deleted or made the stream: what is appended from now on is meant for the one that has the
        name now. What still waits is not: its answer says what became of it."""
        if self._oldest() is None:
            self._forget_stream()
            self._detach()

    def _forget_stream(self) -> None:
        self._life = self._since = self._reached = None
        self._new_producer_due = self._new_producer_due or self._sequence > 0
        self._router.forget_stream(self.stream)

    # ---- finding the owner ----------------------------------------------------------------------------------------

    @property
    def _needs_owner(self) -> bool:
        return self._closed is None and self._connection is None and (bool(self._ready) or self._open is not None)

    def _seek_soon(self) -> None:
        """Look for the owner, if there is something to send to it."""
        if self._needs_owner and not self._is_seeking:
            self._is_seeking = True
            self._router.spawn(self._seek(), f"dlog producer {self.stream}")

    async def _seek(self) -> None:
        """Find the owner and attach to it; ends when that is done, or nothing is left to send."""
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
                    if self._life is None:
                        await self._ask_stream(connection)
                    self._attach(connection)
                except DLogError as error:
                    self.obstacle = to_raise(error)  # the error itself holds this frame
                    if error.remedy in (Remedy.FIX, Remedy.STOP, Remedy.REPORT):
                        self._fail_all(error)
                    else:
                        self._moving_to = error.location if isinstance(error, OwnedElsewhereError) else None
                        self._pause_due = True
        finally:
            self._is_seeking = False

    async def _ask_stream(self, connection: Connection) -> None:
        """Before the first batch: which stream has the name now, so that none of ours comes into the next one; and a
        place below which it will not lie, so that it is never in doubt (see the invariants). Raises DLogError."""
        result = await connection.ask(lambda request: GetOwner(request, self.stream, None))
        self._life = str(result.get("life") or "")
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
        self._settling = False
        self._first_alone = True
        if self._new_producer_due:
            self._renew()
        self._pump()

    def _detach(self) -> None:
        """Leave the connection; what is under way there is to be sent again elsewhere."""
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
        self._settling = False
        self._pause_due = True
        self._seek_soon()

    # ---- what the connection says (WriterPort) --------------------------------------------------------------------

    def on_written(self, batch: Batch, dlsn: DLSN, txid: int, duplicate: bool) -> None:
        """Also from a connection that we left: a durable batch is durable."""
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
            return  # an answer to an earlier sending: the later one will be answered too
        if error.outcome_unknown:
            batch.may_be_written = True
        self._flight.remove(batch)
        self.obstacle = error
        if isinstance(error, ProducerUnknownError):
            self._on_forgotten(batch, error)
        elif isinstance(error, SequenceGapError):
            self._put_back(batch)
            self._settling = True
            if 0 <= error.expected < batch.sequence:
                # The log says so: it ends before this batch. The owner read metadata after the question, and this is
                # the answer to the last sending (Connection.detach). A copy of an earlier one that lands later is
                # seen when the next generation begins.
                batch.may_be_written = False
                if not self._is_pending_before(batch):
                    self._new_producer_due = True  # what belongs in the gap was refused for good and will not come
        elif error.remedy is Remedy.RETRY:
            self._put_back(batch)
            self._settling = True
        elif error.remedy in (Remedy.FOLLOW, Remedy.REOPEN):
            self._put_back(batch)
            self._router.forget(self.stream, connection.address)
            self._moving_to = error.location
            if error.location is None:
                self._suspect = connection.address  # it may be cut off from metadata: let another one say who owns it
            self._detach()
            return
        else:
            self._fail(batch, error)
            self._settling = True
            self._new_producer_due = True
            if isinstance(error, StreamNotFoundError):
                self._fail_all(error)  # what was meant for it does not go to the next stream of that name
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
        self._settling = True
        self._after_answer()

    def on_writable(self) -> None:
        self._pump()

    # ---- inside: after each answer ----------------------------------------------------------------------------------

    def _after_answer(self) -> None:
        """Derive what follows from the answers so far."""
        while self._flight and self._flight[0].done:
            self._flight.popleft()
        if self._settling and not self._flight and self._connection is not None:
            self._settled(self._connection)
        while self._ready and self._ready[0].done:
            self._ready.popleft()
        self._room.let_in()
        if self._open is None and not self._flight and not self._ready:
            self._tell_idle()
        elif not self._pump_due:
            self._pump_soon()

    def _settled(self, connection: Connection) -> None:
        """Everything under way is answered; what was refused waits in `_ready`, in order."""
        self.withdraw()
        if connection.is_draining or self._moving_to is not None or self._life is None:
            self._detach()
            return
        if self._new_producer_due:
            self._renew()
        if self._resume_timer is None:
            self._resume_timer = self._loop.call_later(self._router.pause_s(self._backoff), self._resume)

    def _resume(self) -> None:
        self._resume_timer = None
        self._settling = False
        self._first_alone = True
        if self._new_producer_due:
            self._renew()
        self._pump()

    def _put_back(self, batch: Batch) -> None:
        """Back among those to be sent, in the order of their sequences."""
        at = 0
        while at < len(self._ready) and 0 <= self._ready[at].sequence < batch.sequence:
            at += 1
        self._ready.insert(at, batch)

    def _is_pending_before(self, batch: Batch) -> bool:
        return any(0 <= b.sequence < batch.sequence and not b.done for q in (self._ready, self._flight) for b in q)

    def _on_forgotten(self, batch: Batch, error: ProducerUnknownError) -> None:
        """The log does not know this producer, or holds what its newest generation was to replace: a batch that may
        have been written can be neither sent nor given up."""
        self._reached = error.since or self._reached
        for known in (batch, *self._ready):
            known.may_be_written = known.may_be_written or known.carried  # nobody can prove any more that it was not
        if batch.may_be_written:
            error.outcome_unknown = True
            self._fail(batch, error)
        else:
            self._put_back(batch)
        self._settling = True
        self._new_producer_due = True

    def _renew(self) -> None:
        """Go on under the next generation. Nothing that may have been written goes with us: it fails, outcome unknown.
        It begins at the lowest sequence of what goes with us, and above all that was ever sent if that is nothing."""
        first = self._highest = max(self._highest, self._sequence)
        for batch in self._ready:
            if batch.sequence >= 0 and not batch.done and not batch.may_be_written:
                first = min(first, batch.sequence)
                batch.carried = True
            if batch.may_be_written and not batch.done:
                self._fail(
                    batch,
                    ProducerUnknownError(
                        f"sent before, and a batch ahead of it failed for good: stream={self.stream}",
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
        """Send at the end of this turn of the loop, so that the turn's appends go together."""
        self._pump_due = True
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what may be sent.

        The first batch after a connection or a refusal goes alone. An owner that does not know this producer takes the
        first sequence it sees for the beginning; were that batch refused for want of room and the next one taken, the
        two would change places.
        """
        self._pump_due = False
        if self._deadline_timer is None:
            self._arm_deadline()
        connection = self._connection
        if connection is None:
            self._seek_soon()
            return
        options = self._options
        while not (self._settling or connection.is_paused or connection.is_draining):
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
            life=self._life or None,
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
        """The oldest batch is out of time: it fails, and with it all that was sent behind it."""
        now_s = self._loop.time()
        after = f"no answer within {self._options.append_deadline_s:g} s"
        if self._flight and self._connection is not None:
            after += f" from its owner {self._connection.address}"
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
        """The one place where a batch fails; what is known of it is known here, whatever the error says."""
        batch.done = True
        self._room.held -= batch.size
        batch.failed(with_outcome(error, batch.may_be_written))

    def _fail_all(self, error: DLogError) -> None:
        """The stream itself cannot be written: everything that waits hears why. If it was deleted, the next append is
        meant for the stream that has its name by then."""
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
