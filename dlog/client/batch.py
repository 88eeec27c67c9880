"""A batch of records with one outcome, and the listeners that learn it.

Invariants:
- a batch is filled, closed, and answered once, in this order;
- each listener learns the outcome of its own records, in the order they were added.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from dlog.client.options import RECORD_BYTES_MAX
from dlog.errors import DLogError, RecordTooLargeError
from dlog.model.dlsn import DLSN, DLSN_INVALID
from dlog.values import value
from dlog.wire.digest import crc32c
from dlog.wire.entry import SET_RECORD_OVERHEAD, build_record_set, parse_record_set

SLOT_BYTES = SET_RECORD_OVERHEAD


@value
class BatchResult:
    """Where records are: consecutive slots of one entry. DLSN_INVALID twice if the log no longer knows."""

    first: DLSN
    last: DLSN
    count: int
    txid: int
    duplicate: bool = False  # the acknowledged attempt was a retry: the batch was in the log already
    index: int = 0  # number of the first record in its pipeline, from 0

    def dlsns(self) -> list[DLSN]:
        """The DLSN of each record, in order."""
        if self.first == DLSN_INVALID:
            return [self.first] * self.count
        return [self.first.next_slot(n) for n in range(self.count)]


class BatchListener(Protocol):
    """Learns the outcome of the records that one source put into a batch."""

    slot: int  # of its first record in the batch

    @property
    def is_withdrawn(self) -> bool:
        """Whether its records should be removed if they are certainly not written."""
        ...

    def written(self, batch: DLSN, txid: int, duplicate: bool) -> None:
        """The batch is durable; `batch` is its first DLSN (DLSN_INVALID: not known)."""
        ...

    def failed(self, error: DLogError) -> None: ...

    def withdrawn(self) -> None:
        """Its records were removed: certainly not written."""
        ...


class Batch:
    """Records that are written, or fail, together."""

    __slots__ = (
        "body",
        "carried",
        "count",
        "crc",
        "deadline_s",
        "done",
        "generation",
        "listeners",
        "may_arrive_late",
        "may_be_written",
        "payloads",
        "sequence",
        "size",
        "txid",
    )

    def __init__(self, txid: int | None, deadline_s: float) -> None:
        self.txid = txid
        self.deadline_s = deadline_s
        self.payloads: list[bytes] = []
        self.size = 0  # bytes of the record set's body
        self.count = 0  # records, once closed
        self.body: bytes = b""  # the record set, once closed
        self.crc = 0
        self.sequence = -1  # assigned at the first attempt under each generation of the producer id
        self.generation = -1  # of the producer id that `sequence` belongs to
        self.carried = False  # not written under an older generation, moved to the present one
        self.may_be_written = False  # an attempt was not answered, or its outcome is unknown
        self.may_arrive_late = False  # the owner found such an attempt not written; its frame may still reach an owner
        self.done = False
        self.listeners: list[BatchListener] = []

    def close(self) -> None:
        """Build the record set; the batch is complete."""
        if not self.body:
            self.count = len(self.payloads)
            self.body = build_record_set(self.payloads)
            self.crc = crc32c(self.body)
            self.payloads = []

    def written(self, dlsn: DLSN, txid: int, duplicate: bool) -> None:
        """Report to all listeners that the batch is durable; `dlsn` is its first."""
        for listener in self.listeners:
            listener.written(dlsn, txid, duplicate)

    def failed(self, error: DLogError) -> None:
        """Report to all listeners that it failed (perhaps written)."""
        for listener in self.listeners:
            listener.failed(error)

    def withdraw(self) -> int:
        """Remove the records of listeners that withdrew, and report it to them. Returns the number of bytes freed.

        Call only for a batch that is certainly not written. Sets `done` if no record is left.
        """
        if not any(listener.is_withdrawn for listener in self.listeners):
            return 0
        payloads = parse_record_set(self.body) if self.body else self.payloads
        ends = [*(listener.slot for listener in self.listeners[1:]), len(payloads)]
        kept: list[bytes] = []
        staying: list[BatchListener] = []
        leaving: list[BatchListener] = []
        for listener, end in zip(self.listeners, ends, strict=True):
            if listener.is_withdrawn:
                leaving.append(listener)
            else:
                staying.append(listener)
                begin, listener.slot = listener.slot, len(kept)
                kept += payloads[begin:end]
        before = self.size
        self.listeners, self.payloads, self.body = staying, kept, b""
        self.size = sum(map(len, kept)) + SLOT_BYTES * len(kept)
        self.done = not kept
        for listener in leaving:
            listener.withdrawn()
        return before - self.size


class BatchFuture:
    """Listener for a batch made by the application; completes one future."""

    __slots__ = ("count", "future", "slot")

    def __init__(self, count: int, future: asyncio.Future[BatchResult]) -> None:
        self.count = count
        self.future = future
        self.slot = 0

    @property
    def is_withdrawn(self) -> bool:
        return False

    def written(self, batch: DLSN, txid: int, duplicate: bool) -> None:
        if not self.future.done():
            self.future.set_result(result_of(batch, self.slot, self.count, txid, duplicate))

    def failed(self, error: DLogError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def withdrawn(self) -> None:
        raise AssertionError("a batch made by the application is never withdrawn")


def result_of(batch: DLSN, slot: int, count: int, txid: int, duplicate: bool, index: int = 0) -> BatchResult:
    """The result for the `count` records from `slot` of a batch on."""
    if batch == DLSN_INVALID:
        return BatchResult(batch, batch, count, txid, duplicate, index)
    return BatchResult(batch.next_slot(slot), batch.next_slot(slot + count - 1), count, txid, duplicate, index)


def too_large(size: int, count: int = 1) -> RecordTooLargeError:
    """The error for a record of `size` bytes, or a batch of `count` records, `size` bytes in all."""
    if count == 1:
        return RecordTooLargeError(f"record too large, the maximum is {RECORD_BYTES_MAX} bytes; split it: bytes={size}")
    return RecordTooLargeError(
        f"batch of {count} records too large, the maximum is {RECORD_BYTES_MAX} bytes, with 4 more for each record; "
        f"split it, or use append_many: bytes={size}"
    )
