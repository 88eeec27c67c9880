"""The batches of one stream that have no outcome yet, and the room that their records take.

A batch is open (records are added), then ready (to be sent), then in flight. One that was refused, or not answered
before its connection was left, is ready again.

Invariants:
- While the open batch is lent, only its borrower adds records to it. `end_loan` precedes every reading of the batch's
  size or of the room left.
- A batch made by the application joins the last ready one if that was never sent: batches are sent one by one while
  there is room for them, and joined where they wait behind others.
- Batches that have a sequence are in its order, those in flight before those that are ready, and these before the rest.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from dlog.client.admission import Admission
from dlog.client.batch import SLOT_BYTES, Batch, BatchListener
from dlog.client.options import ClientOptions

JOIN_SHARE = 1 / 30  # of append_deadline_s: batches made within this time may be sent, and then fail, as one


class BatchBorrower(Protocol):
    """Adds records to the open batch while it is lent to it (a Pipeline, or SingleAppends)."""

    def lend(self, slot: int, take: Callable[[bytes], None], bytes_max: int) -> BatchListener:
        """Start a loan. The borrower's first record is at `slot`; it may add more with `take`, `bytes_max` bytes in
        all, counting SLOT_BYTES extra for each. Returns the listener for the outcome of all these records."""
        ...

    def return_loan(self, slots: int) -> int:
        """End the loan; the batch has `slots` slots now. Returns the bytes added since `lend`."""
        ...


class BatchQueue:
    """Batches of one stream in the order in which they are sent, with a bound on the bytes of their records."""

    def __init__(self, options: ClientOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.open: Batch | None = None
        self.ready: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()  # on the present connection to the owner
        self.batch_bytes_max = options.batch_bytes_max
        self._options = options
        self._loop = loop
        self._borrower: BatchBorrower | None = None  # of the open batch
        weak = weakref.proxy(self)  # no reference cycle
        self.room = Admission(options.buffer_bytes_max, loop, lambda: weak.end_loan())
        self._waiting: list[asyncio.Future[None]] = []  # for the queue to be empty

    # ---- adding records -------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether an append is accepted at once: the buffer has room, and no caller waits for it."""
        if self._borrower is not None:
            self.end_loan()
        return self.room.free_bytes > 0

    @property
    def is_below_bound(self) -> bool:
        """Whether the buffer has room, even if other callers wait for it."""
        self.end_loan()
        return self.room.is_below_bound

    def append_and_lend(self, payload: bytes, txid: int | None, borrower: BatchBorrower) -> None:
        """Append one record and lend the rest of its batch. Nothing is lent while callers wait for room, so that none
        is overtaken."""
        size = len(payload) + SLOT_BYTES
        if self._borrower is not None:
            self.end_loan()
        batch = self.open
        if batch is None or batch.txid != txid or batch.size + size > self.batch_bytes_max:
            if batch is not None:
                self.close_open()
            batch = self.open = self._new_batch(txid)
        slot = len(batch.payloads)
        batch.payloads.append(payload)
        batch.size += size
        self.room.held += size
        bytes_max = min(self.batch_bytes_max - batch.size, self.room.free_bytes)
        batch.listeners.append(borrower.lend(slot, batch.payloads.append, bytes_max))
        self._borrower = borrower

    def end_loan(self) -> None:
        """End the loan of the open batch, if there is one, and count the bytes that the borrower added."""
        borrower, self._borrower = self._borrower, None
        if borrower is not None:
            batch = self.open
            assert batch is not None, "only an open batch is lent: the loan ends before the batch is closed"
            size = borrower.return_loan(len(batch.payloads))
            batch.size += size
            self.room.held += size

    def add_whole(
        self, payloads: Sequence[bytes], size: int, txid: int | None, listener: BatchListener, *, may_join: bool
    ) -> None:
        """Add records that are written together, `size` bytes in all with SLOT_BYTES for each. may_join: they may be
        joined with others that wait to be sent."""
        if self.open is not None:
            self.close_open()
        batch = self._last_unsent(txid, size) if may_join and self.ready else None
        if batch is None:
            batch = self._new_batch(txid)
            self.ready.append(batch)
        listener.slot = len(batch.payloads)
        batch.payloads += payloads
        batch.size += size
        batch.listeners.append(listener)
        self.room.held += size

    def close_open(self) -> None:
        """Make the open batch ready, if there is one."""
        if self._borrower is not None:
            self.end_loan()
        batch, self.open = self.open, None
        if batch is not None:
            batch.close()
            self.ready.append(batch)

    def _last_unsent(self, txid: int | None, size: int) -> Batch | None:
        """The last ready batch, if it was never sent and has room for `size` bytes. Not one older than JOIN_SHARE of
        the deadline: its deadline applies to all records in it."""
        last = self.ready[-1]
        if last.body or last.done or last.txid != txid or last.size + size > self.batch_bytes_max:
            return None
        deadline_s = self._options.append_deadline_s
        age_s = self._loop.time() + deadline_s - last.deadline_s
        return last if age_s < deadline_s * JOIN_SHARE else None

    def _new_batch(self, txid: int | None) -> Batch:
        return Batch(txid, self._loop.time() + self._options.append_deadline_s)

    # ---- sending --------------------------------------------------------------------------------------------------

    def next_to_send(self, in_flight_max: int) -> Batch | None:
        """Close the next batch, count it as in flight and return it; None if there is none, or `in_flight_max` batches
        are in flight. The open batch is sent only while fewer than half as many are; otherwise it waits for more
        records."""
        while (under_way := len(self.in_flight)) < in_flight_max:
            if self.ready:
                batch = self.ready.popleft()
            elif self.open is not None and under_way < max(1, in_flight_max // 2):
                if self._borrower is not None:
                    self.end_loan()
                batch, self.open = self.open, None
            else:
                return None
            if not batch.done:
                batch.close()
                self.in_flight.append(batch)
                return batch
        return None

    def put_back(self, batch: Batch) -> None:
        """Make a batch ready again, in the order of sequences."""
        at = 0
        while at < len(self.ready) and 0 <= self.ready[at].sequence < batch.sequence:
            at += 1
        self.ready.insert(at, batch)

    def put_back_in_flight(self) -> None:
        """Make all batches in flight ready again; they may be written."""
        in_flight, self.in_flight = self.in_flight, deque()
        for batch in in_flight:
            if not batch.done:
                batch.may_be_written = True
                self.put_back(batch)

    def withdraw(self) -> list[Batch]:
        """Remove withdrawn records from all batches that are certainly not written, but for those in flight. Returns
        the ready batches that lost records."""
        self.end_loan()
        changed: list[Batch] = []
        for batch in self.ready:
            if not (batch.done or batch.may_be_written):
                freed = batch.withdraw()
                self.room.held -= freed
                if freed:
                    changed.append(batch)
        if self.open is not None:
            self.room.held -= self.open.withdraw()
            if self.open.done:
                self.open = None
        return changed

    def remove_done(self) -> None:
        """Remove ready batches that have an outcome."""
        self.ready = deque(batch for batch in self.ready if not batch.done)

    # ---- looking --------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.open is None and not self.in_flight and not self.ready

    def oldest(self) -> Batch | None:
        """The first batch without an outcome."""
        for queue in (self.in_flight, self.ready):
            for batch in queue:
                if not batch.done:
                    return batch
        return self.open

    def has_before(self, batch: Batch) -> bool:
        """Whether a batch with a lower sequence has no outcome."""
        return any(0 <= b.sequence < batch.sequence and not b.done for q in (self.ready, self.in_flight) for b in q)

    async def wait_empty(self) -> None:
        """Wait until the outcome of every record is known."""
        if not self.is_empty:
            empty: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(empty)
            await empty

    def check_empty(self) -> bool:
        """Whether no batch is left; then the callers of `wait_empty` return."""
        if self.open is not None or self.in_flight or self.ready:
            return False
        waiting, self._waiting = self._waiting, []
        for empty in waiting:
            if not empty.done():
                empty.set_result(None)
        return True
