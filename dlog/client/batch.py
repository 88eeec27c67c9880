"""Records that share a fate, and who is told of it.

The law of this file: a batch is filled, closed, and answered once. Whoever put records into it is one of its `tellers`
and hears the fate of its own records, in the order they were put in; what else the batch carries is not its business.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from dlog.client.options import RECORD_BYTES_MAX
from dlog.errors import DLogError, RecordTooLargeError
from dlog.model.dlsn import DLSN, DLSN_INVALID
from dlog.wire.digest import crc32c
from dlog.wire.entry import SET_RECORD_OVERHEAD, build_record_set, parse_record_set

SLOT_BYTES = SET_RECORD_OVERHEAD


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Where records lie: consecutive slots of one entry. DLSN_INVALID twice if the log has forgotten where."""

    first: DLSN
    last: DLSN
    count: int
    txid: int
    duplicate: bool = False  # this sending was a repetition; the batch was there already
    index: int = 0  # how many records its pipeline had taken before these

    def dlsns(self) -> list[DLSN]:
        """The place of each record, in order."""
        if self.first == DLSN_INVALID:
            return [self.first] * self.count
        return [self.first.next_slot(n) for n in range(self.count)]


class Teller(Protocol):
    """Who put some of a batch's records into it."""

    slot: int  # of its first record there

    @property
    def is_withdrawn(self) -> bool:
        """Whether its records should not be written any more, if they are not yet."""
        ...

    def written(self, batch: DLSN, txid: int, duplicate: bool) -> None:
        """The batch is durable from here on (DLSN_INVALID: nobody knows where)."""
        ...

    def failed(self, error: DLogError) -> None: ...

    def withdrawn(self) -> None:
        """Its records were taken out, and are certainly not written."""
        ...


class Batch:
    """Records that share a fate."""

    __slots__ = (
        "body",
        "carried",
        "count",
        "crc",
        "deadline_s",
        "done",
        "generation",
        "may_be_written",
        "payloads",
        "sequence",
        "size",
        "tellers",
        "txid",
    )

    def __init__(self, txid: int | None, deadline_s: float) -> None:
        self.txid = txid
        self.deadline_s = deadline_s
        self.payloads: list[bytes] = []
        self.size = 0  # bytes of the set's body
        self.count = 0  # of records, once closed
        self.body: bytes = b""  # the record set, once closed
        self.crc = 0
        self.sequence = -1  # given at the first sending under each generation of the producer's id
        self.generation = -1  # of the id that `sequence` belongs to
        self.carried = False  # sent under an older generation, and refused there
        self.may_be_written = False  # a sending has not been answered
        self.done = False
        self.tellers: list[Teller] = []

    def close(self) -> None:
        """Make the record set; records come in no more."""
        if not self.body:
            self.count = len(self.payloads)
            self.body = build_record_set(self.payloads)
            self.crc = crc32c(self.body)
            self.payloads = []

    def written(self, dlsn: DLSN, txid: int, duplicate: bool) -> None:
        """Tell everybody that it is durable from `dlsn` on."""
        for teller in self.tellers:
            teller.written(dlsn, txid, duplicate)

    def failed(self, error: DLogError) -> None:
        """Tell everybody that it is not, or perhaps not."""
        for teller in self.tellers:
            teller.failed(error)

    def withdraw(self) -> int:
        """Take out the records of those who withdrew, and tell them. Returns how many bytes that frees.

        To be called of a batch that is certainly not written only. It is done if nothing is left.
        """
        if not any(teller.is_withdrawn for teller in self.tellers):
            return 0
        payloads = parse_record_set(self.body) if self.body else self.payloads
        ends = [*(teller.slot for teller in self.tellers[1:]), len(payloads)]
        kept: list[bytes] = []
        staying: list[Teller] = []
        leaving: list[Teller] = []
        for teller, end in zip(self.tellers, ends, strict=True):
            if teller.is_withdrawn:
                leaving.append(teller)
            else:
                staying.append(teller)
                begin, teller.slot = teller.slot, len(kept)
                kept += payloads[begin:end]
        before = self.size
        self.tellers, self.payloads, self.body = staying, kept, b""
        self.size = sum(map(len, kept)) + SLOT_BYTES * len(kept)
        self.done = not kept
        for teller in leaving:
            teller.withdrawn()
        return before - self.size


class Whole:
    """The records of a batch that somebody made, with one future."""

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
        raise AssertionError("whoever made this batch waits for all of it")


def result_of(batch: DLSN, slot: int, count: int, txid: int, duplicate: bool, index: int = 0) -> BatchResult:
    """What is told of `count` records from `slot` of a batch on."""
    if batch == DLSN_INVALID:
        return BatchResult(batch, batch, count, txid, duplicate, index)
    return BatchResult(batch.next_slot(slot), batch.next_slot(slot + count - 1), count, txid, duplicate, index)


def too_large(size: int, count: int = 1) -> RecordTooLargeError:
    """The error of a record of `size` bytes, or of a batch of `count` that takes so many with its slots."""
    if count == 1:
        return RecordTooLargeError(f"a record has at most {RECORD_BYTES_MAX} bytes: bytes={size}")
    return RecordTooLargeError(
        f"a batch of {count} records has at most {RECORD_BYTES_MAX} bytes with 4 more for each; "
        f"split it, or use append_many: bytes={size}"
    )
