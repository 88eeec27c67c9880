"""Records appended one by one, each awaited by somebody.

The law of this file: a record costs a future and a few comparisons. The open batch is lent to us as to a pipeline, so
that neither its size nor the room in the buffer is looked at for each; where a record lies is reckoned when all of a
batch is known, in one pass. Cancelling a future forgets who waits, never the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from dlog.client.batch import SLOT_BYTES, Teller
from dlog.client.check import check_txid, checked_payload
from dlog.errors import DLogError
from dlog.model.dlsn import DLSN, DLSN_INVALID

if TYPE_CHECKING:
    from dlog.client.producer import Producer


class Singles:
    """The awaited appends of one stream."""

    __slots__ = ("_create_future", "_granted", "_left", "_producer", "_take", "_txid", "_wait")

    def __init__(self, producer: Producer, loop: asyncio.AbstractEventLoop) -> None:
        self._producer = producer
        self._create_future: Callable[[], asyncio.Future[DLSN]] = loop.create_future
        self._left = -1  # bytes of the lot that is lent to us, less one slot; below 0: there is none, or no more of it
        self._granted = 0  # what `_left` was at first
        self._txid: int | None = None  # of the lot
        self._take: Callable[[bytes], None] = _no_lot
        self._wait: Callable[[asyncio.Future[DLSN]], None] = _no_lot

    def add(self, payload: bytes, txid: int | None) -> asyncio.Future[DLSN] | None:
        """Take one record; the future is its place. None: there is no room, or others wait for it; nothing was taken.

        Raises RecordTooLargeError, InvalidRequestError (of the txid), ClosedError (nothing taken).
        """
        left = self._left - len(payload)
        if left < 0 or txid != self._txid:
            checked_payload(payload)
            check_txid(txid)
            return self.begin(payload, txid) if self._producer.has_room else None
        self._left = left - SLOT_BYTES
        self._take(payload)
        waiter = self._create_future()
        self._wait(waiter)
        return waiter

    def begin(self, payload: bytes, txid: int | None) -> asyncio.Future[DLSN]:
        """As `add`, of a record that was found good and has its turn."""
        self._producer.add_lot(payload, txid, self)
        self._txid = txid
        waiter = self._create_future()
        self._wait(waiter)
        return waiter

    # ---- what the producer says (Filler) --------------------------------------------------------------------------

    def lend(self, slot: int, take: Callable[[bytes], None], bytes_max: int) -> Teller:
        futures: list[asyncio.Future[DLSN]] = []
        self._take = take
        self._wait = futures.append
        self._left = self._granted = bytes_max - SLOT_BYTES
        return _Waiters(slot, futures)

    def settle(self, slots: int) -> int:
        used = self._granted - self._left
        self._left, self._granted, self._take, self._wait = -1, -1, _no_lot, _no_lot
        return used


class _Waiters:
    """Consecutive records of a batch, the first in this slot of it, and a future for each."""

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
            places = repeat(batch)
        else:
            slots = zip(repeat(segment), repeat(entry), count(first + self.slot))
            places = map(tuple.__new__, repeat(DLSN), slots)  # type: ignore[assignment]  # an iterator of places too
        for future, place in zip(self.futures, places):  # noqa: B905  # places have no end
            if not future.done():
                future.set_result(place)

    def failed(self, error: DLogError) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def withdrawn(self) -> None:
        raise AssertionError("each of these is waited for by itself")


def _no_lot(_: Any) -> None:
    raise AssertionError("a record is taken only into a lot")
