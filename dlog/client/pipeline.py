"""Records of one source that follow each other without waiting for answers, batch by batch or one by one.

    pipeline = client.pipeline("orders", on_written)
    for record in records:
        while not pipeline.append(record):
            await pipeline.room()
    await pipeline.finish()

The law of this file:
- A record taken one by one costs a few comparisons and a place in the open batch: no future, no task, no tuple. That is
  possible because the producer lends the open batch out: as a lot, so many bytes that may go in before anybody must
  look again. Whoever else looks at that batch or at the room in the buffer has the lot settled first.
- What was taken is numbered, and told in rows: runs of consecutive numbers that lie in consecutive slots of one entry.
  Rows are told in the order of their numbers, each record once, and none after the first failure.
- Once a record failed, nothing behind it is sent any more: what is certainly not written is withdrawn, what is under
  way is waited for. The failure is raised when the fate of every record taken is known, and tells it (`fates`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from dlog.client.batch import SLOT_BYTES, BatchResult, Teller, result_of
from dlog.client.check import check_txid, checked_batch, checked_payload
from dlog.client.fate import Fate, Outcome, failure_of
from dlog.client.producer import Producer
from dlog.errors import DLogError, to_raise
from dlog.model.dlsn import DLSN


class Pipeline:
    """Made by `Client.pipeline`. Any number may write one stream; each has its own order, and its own failure."""

    def __init__(self, producer: Producer, on_written: Callable[[BatchResult], None] | None = None) -> None:
        self._producer = producer
        self._on_written = on_written
        self._left = -1  # bytes of the lot that is lent to us, less one slot; below 0: there is none, or no more of it
        self._granted = 0  # what `_left` was at first
        self._txid: int | None = None  # of the lot
        self._take: Callable[[bytes], None] = _no_lot
        self._lot: _Row | None = None
        self._has_turn = False  # waited for room, and has not taken anything since
        self._taken = 0  # records that are numbered: all but those in the lot
        self._told = 0  # records told of
        self._rows: deque[_Row] = deque()  # not told yet, in order
        self._hole: int | None = None  # number of a record that failed; nothing from it on is sent any more
        self._cause: Exception | None = None  # why the first one in order failed
        self._fates: list[Fate] = []  # of the records from that one on
        self._failure: Exception | None = None  # all fates are known: whoever calls hears it, from then on
        self._waiting: list[asyncio.Future[None]] = []  # for news

    @property
    def obstacle(self) -> DLogError | None:
        """Why nothing was acknowledged lately, as far as a proxy said or its silence shows; None: nothing is wrong."""
        return self._producer.obstacle

    @property
    def fates(self) -> tuple[Fate, ...]:
        """Once a call raised the failure: what became of each record taken that `on_written` was not told of, in order.

        So also of a failure that `on_written` itself raised. A DLogError has the same as `error.fates`.
        """
        return tuple(self._fates)

    def append(self, payload: bytes, *, txid: int | None = None) -> bool:
        """Take one record into the batch under way; False if there is no room, then nothing was taken: see `room`.

        What became of it is told to `on_written`, in a row with its neighbours. Records of one turn of the loop travel
        together, as do all that come while the pipe is busy. payload, txid: see `Client.append`.
        Raises RecordTooLargeError, InvalidRequestError, ClosedError (nothing taken), and the first failure among the
        records before it (nothing taken), with the fate of each of these: `error.fates`. If its `outcome_unknown` is
        False, all that `on_written` was not told of is certainly not written and may be sent again.
        """
        if type(payload) is not bytes:
            payload = checked_payload(payload)
        left = self._left - len(payload)
        if left >= 0 and txid == self._txid:
            self._left = left - SLOT_BYTES
            self._take(payload)
            return True
        return self._append_first(payload, txid)

    async def room(self) -> None:
        """Wait until `append` may take a record, in turn with others who wait. Append at once after the return.

        Somebody else may still be quicker: `while not pipeline.append(record): await pipeline.room()`.
        Raises the first failure among the records taken, once the fate of all of them is known. Cancelling gives the
        turn to the next and loses nothing.
        """
        await self._settled()
        if not self._producer.has_room:
            await self._producer.wait_room()
            self._has_turn = True
            await self._settled()

    async def put(self, payloads: Sequence[bytes], *, txid: int | None = None) -> None:
        """Take one batch (see `Client.append_batch`), waiting while too much is under way.

        Raises the first failure among what was taken before it; then nothing was taken. A cancelled caller may assume
        the same: it was waiting for room.
        """
        await self._settled()
        records = checked_batch(payloads)
        check_txid(txid)
        if not self._producer.has_room:
            await self._producer.wait_room()
            await self._settled()
        row = _Row(self, 0)
        row.count = len(records)
        self._producer.add_whole(records, txid, row)
        self._number(row)

    async def drain(self) -> None:
        """Wait until all that was taken before this call is durable, and told. The pipeline may be used on.

        Raises the first failure, once the fate of all that was taken is known. A cancelled caller stops to wait: all
        that was taken is still written.
        """
        self._producer.settle()
        taken = self._taken
        while self._told < taken and self._failure is None:
            await self._news()
        await self._settled()

    async def finish(self) -> None:
        """As `drain`."""
        await self.drain()

    # ---- what the producer says (Filler) --------------------------------------------------------------------------

    def lend(self, slot: int, take: Callable[[bytes], None], bytes_max: int) -> Teller:
        row = self._lot = _Row(self, slot)
        self._take = take
        self._left = self._granted = bytes_max - SLOT_BYTES
        return row

    def settle(self, slots: int) -> int:
        row, self._lot = self._lot, None
        assert row is not None, "what is settled was lent"
        used = self._granted - self._left
        self._left, self._granted, self._take = -1, -1, _no_lot
        row.count = slots - row.slot
        self._number(row)
        return used

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _append_first(self, payload: bytes, txid: int | None) -> bool:
        """Take a record that begins a lot."""
        self._check()
        checked_payload(payload)
        check_txid(txid)
        if self._hole is not None:
            return False  # until `room` raises why
        producer = self._producer
        producer.check_open()
        if not producer.has_room and not (self._has_turn and producer.is_below_bound):
            return False
        self._has_turn = False
        producer.add_lot(payload, txid, self)
        self._txid = txid
        return True

    def _number(self, row: _Row) -> None:
        row.index = self._taken
        self._taken += row.count
        self._rows.append(row)

    def _on_failed(self, index: int) -> None:
        """A record failed: what was taken behind it is not to be written any more."""
        if self._hole is None or index < self._hole:
            self._hole = index
            self._producer.withdraw()
        self._on_answered()

    def _on_answered(self) -> None:
        """Tell the rows whose turn it is; behind a failure, note what became of them."""
        rows = self._rows
        while rows and rows[0].is_answered:
            row = rows.popleft()
            if self._cause is None and row.result is not None:
                self._tell(row, row.result)
            else:
                self._cause = self._cause or row.error
                self._fates.append(row.fate())
        if self._cause is not None and self._failure is None and not rows:
            self._failure = failure_of(self._cause, self._told, self._fates)
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():
                news.set_result(None)

    def _tell(self, row: _Row, result: BatchResult) -> None:
        self._told += row.count
        if self._on_written is None:
            return
        try:
            self._on_written(result)
        except Exception as error:  # noqa: BLE001  # the caller's own, and its next call raises it
            self._cause = error
            self._on_failed(self._told)

    async def _settled(self) -> None:
        """Return if nothing failed; else raise, once the fates are known."""
        while self._hole is not None and self._failure is None:
            await self._news()
        self._check()

    async def _news(self) -> None:
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(news)
        await news

    def _check(self) -> None:
        failure = self._failure
        if failure is not None:
            # what the application itself raised is told as it is
            raise to_raise(failure) if isinstance(failure, DLogError) else failure


class _Row:
    """Consecutive records of a pipeline in one batch."""

    __slots__ = ("count", "error", "index", "pipeline", "result", "slot")

    def __init__(self, pipeline: Pipeline, slot: int) -> None:
        self.pipeline = pipeline
        self.slot = slot  # of the first, in the batch
        self.count = 0
        self.index = 0  # the first one's number
        self.result: BatchResult | None = None
        self.error: DLogError | None = None

    @property
    def is_answered(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def is_withdrawn(self) -> bool:
        hole = self.pipeline._hole
        return hole is not None and self.index >= hole

    def fate(self) -> Fate:
        if self.result is not None:
            return Fate(self.index, self.count, Outcome.WRITTEN, self.result)
        is_unknown = self.error is not None and self.error.outcome_unknown
        return Fate(self.index, self.count, Outcome.UNKNOWN if is_unknown else Outcome.NOT_WRITTEN)

    def written(self, batch: DLSN, txid: int, duplicate: bool) -> None:
        self.result = result_of(batch, self.slot, self.count, txid, duplicate, self.index)
        self.pipeline._on_answered()

    def failed(self, error: DLogError) -> None:
        self.error = error
        self.pipeline._on_failed(self.index)

    def withdrawn(self) -> None:
        self.error = DLogError("not sent: a record before it failed", outcome_unknown=False)
        self.pipeline._on_answered()


def _no_lot(payload: bytes) -> None:
    raise AssertionError("a record is taken only into a lot")
