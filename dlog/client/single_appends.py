"""Single appends (`Client.append`), each with a future.

A record costs one future and a few comparisons: the producer lends the open batch as to a pipeline (pipeline.py), so
that neither its size nor the room in the buffer is checked for each record, and all DLSNs of a batch are computed in
one pass. Cancelling a future stops the wait, never the write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from dlog.client.batch import SLOT_BYTES, BatchListener
from dlog.client.batch_queue import BatchQueue
from dlog.client.check import check_txid, checked_payload
from dlog.errors import DLogError
from dlog.model.dlsn import DLSN, DLSN_INVALID

if TYPE_CHECKING:
    from dlog.client.producer import Producer


class SingleAppends:
    """Appends single records to one stream, each with a future of its DLSN (`Client.append`)."""

    __slots__ = ("_create_future", "_granted", "_left", "_producer", "_queue", "_take", "_txid", "_wait")

    def __init__(self, producer: Producer, queue: BatchQueue, loop: asyncio.AbstractEventLoop) -> None:
        """producer: a weak proxy, since the producer refers to this object."""
        self._producer = producer
        self._queue = queue
        self._create_future: Callable[[], asyncio.Future[DLSN]] = loop.create_future
        self._left = -1  # bytes left of the loan, less one slot; below 0: no loan, or none left
        self._granted = 0  # initial value of `_left`
        self._txid: int | None = None  # of the loan's batch
        self._take: Callable[[bytes], None] = _no_loan
        self._wait: Callable[[asyncio.Future[DLSN]], None] = _no_loan

    def add(self, payload: bytes, txid: int | None) -> asyncio.Future[DLSN] | None:
        """Buffer one record; returns the future of its DLSN, or None if there is no room or others wait for it.

        Raises RecordTooLargeError, InvalidRequestError (txid), ClosedError. Then nothing was buffered.
        """
        left = self._left - len(payload)
        if left < 0 or txid != self._txid:
            checked_payload(payload)
            check_txid(txid)
            return self.begin(payload, txid) if self._queue.has_room else None
        self._left = left - SLOT_BYTES
        self._take(payload)
        waiter = self._create_future()
        self._wait(waiter)
        return waiter

    def begin(self, payload: bytes, txid: int | None) -> asyncio.Future[DLSN]:
        """As `add`, for a checked record after `Admission.wait`."""
        self._producer.append_and_lend(payload, txid, self)
        self._txid = txid
        waiter = self._create_future()
        self._wait(waiter)
        return waiter

    # ---- called by the queue (BatchBorrower) -------------------------------------------------------------------------

    def lend(self, slot: int, take: Callable[[bytes], None], bytes_max: int) -> BatchListener:
        futures: list[asyncio.Future[DLSN]] = []
        self._take = take
        self._wait = futures.append
        self._left = self._granted = bytes_max - SLOT_BYTES
        return _Waiters(slot, futures)

    def return_loan(self, slots: int) -> int:
        used = self._granted - self._left
        self._left, self._granted, self._take, self._wait = -1, -1, _no_loan, _no_loan
        return used


class _Waiters:
    """Listener for consecutive records of a batch, the first one at `slot`, with a future for each."""

    __slots__ = ("futures", "slot")

    def __init__(self, slot: int, futures: list[asyncio.Future[DLSN]]) -> None:
        self.slot = slot
        self.futures = futures

    @property
    def is_withdrawn(self) -> bool:
        return False

    def written(self, batch: DLSN, txid: int, duplicate: bool) -> None:
        segment, entry, first = batch
        if batch == DLSN_INVALID:
            dlsns = repeat(batch)
        else:
            slots = zip(repeat(segment), repeat(entry), count(first + self.slot))
            dlsns = map(tuple.__new__, repeat(DLSN), slots)  # type: ignore[assignment]  # an iterator of DLSNs too
        for future, dlsn in zip(self.futures, dlsns):  # noqa: B905  # `dlsns` is endless
            if not future.done():
                future.set_result(dlsn)

    def failed(self, error: DLogError) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def withdrawn(self) -> None:
        raise AssertionError("single appends are never withdrawn")


def _no_loan(_: Any) -> None:
    raise AssertionError("records are added only during a loan")
