"""Appends records without waiting for each acknowledgement, one by one or in batches.

    async with client.pipeline("orders", on_written) as pipeline:
        for record in records:
            await pipeline.append(record)

`append` only puts the record into the open batch, without a future, task or tuple for each. For this the producer lends
the open batch: a loan is a number of bytes that may be added without calling the producer. Its queue ends the loan
(`end_loan`) before it looks at the batch or at the room in the buffer.

Invariants:
- Records are numbered in the order of the calls. `on_written` gets runs of consecutive numbers in consecutive slots of
  one entry ("rows"), in order, each record once, and none after the first failure.
- After a record failed, no later one is sent: those certainly not written are withdrawn, those pending are waited for.
- A failure is raised when the outcome of every record is known, and lists these outcomes (`fates`).
- A pipeline whose block has ended takes no more records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType

from dlog.client.batch import SLOT_BYTES, BatchListener, BatchResult, result_of
from dlog.client.check import check_txid, checked_batch, checked_payload
from dlog.client.fate import Fate, Outcome, failure_of
from dlog.client.producer import Producer
from dlog.errors import ClosedError, DLogError, to_raise
from dlog.model.dlsn import DLSN


class Pipeline:
    """Appends to one stream without waiting. Made by `Client.pipeline`, for use in `async with`. Several pipelines may
    write one stream, each with its own order and its own failure.

    The end of the block waits until all records are durable, and raises the first failure (see `drain`). If the block
    is left by an exception, also a cancellation, even of that wait, the exception is raised at once: records that were
    not sent yet are withdrawn, those that were sent may still be written, and `on_written` is not called any more.
    """

    def __init__(self, producer: Producer, on_written: Callable[[BatchResult], None] | None = None) -> None:
        self._producer = producer
        self._on_written = on_written
        self._left = -1  # bytes left of the loan, less one slot; below 0: no loan, or none left
        self._granted = 0  # initial value of `_left`
        self._txid: int | None = None  # of the loan's batch
        self._take: Callable[[bytes], None] = _no_loan
        self._loan: _RecordRun | None = None
        self._has_turn = False  # `room` admitted us, and nothing was appended since
        self._taken = 0  # records with a number: all but those of the present loan
        self._reported = 0  # records passed to `on_written`
        self._rows: deque[_RecordRun] = deque()  # not reported yet, in order
        self._first_failed: int | None = (
            None  # number of the first failed record; from it on no record is sent any more
        )
        self._cause: BaseException | None = None  # why the first record in order failed
        self._fates: list[Fate] = []  # of the records from that one on
        self._failure: BaseException | None = None  # set when all fates are known; every later call raises it
        self._has_raised = False  # a call has raised it
        self._waiting: list[asyncio.Future[None]] = []  # woken after each reply
        self._until_failure: asyncio.Timeout | None = None  # expires once a record fails

    async def __aenter__(self) -> Pipeline:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_drained = False
        try:
            if error is None:
                await self.drain()
                is_drained = True
        finally:
            if not is_drained and self._cause is None:
                self._producer.queue.end_loan()
                self._cause = ClosedError("the block of this pipeline was left by an exception")
                self._on_failed(self._reported)
            self._failure = self._failure or ClosedError("the block of this pipeline has ended; make another pipeline")

    @property
    def obstacle(self) -> DLogError | None:
        """The latest error that delays the stream's appends, or None if the last reply was an acknowledgement."""
        return self._producer.obstacle

    @property
    def fates(self) -> tuple[Fate, ...]:
        """After a call raised the failure: the outcomes of the records not passed to `on_written`, in order.

        Also after an exception from `on_written` itself. A DLogError has the same list as `error.fates`.
        """
        return tuple(self._fates)

    async def append(self, payload: bytes, *, txid: int | None = None) -> None:
        """Buffer one record, after waiting for room in the buffer.

        `on_written` reports it when it is durable. Records appended in one loop iteration, or while earlier batches
        are pending, share a batch. payload, txid: see `Client.append`. Raises RecordTooLargeError, InvalidRequestError,
        ClosedError; and the first failure of an earlier record, with the outcomes in `error.fates` (if its
        `outcome_unknown` is False, no record that was not passed to `on_written` is written, and all may be sent
        again). If it raises or is cancelled, this record was not buffered.
        """
        while not self.append_nowait(payload, txid=txid):
            await self.room()

    def append_nowait(self, payload: bytes, *, txid: int | None = None) -> bool:
        """As `append`, without waiting: False if the record was not buffered, since there is no room or an earlier one
        failed. Then await `room` and try again. Saves the cost of a coroutine for each record."""
        if type(payload) is not bytes:
            payload = checked_payload(payload)
        left = self._left - len(payload)
        if left >= 0 and txid == self._txid:
            self._left = left - SLOT_BYTES
            self._take(payload)
            return True
        return self._append_first(payload, txid)

    async def room(self) -> None:
        """Wait for room in the buffer, in turn with other callers. Append at once after the return.

        Another caller may still be faster: `while not pipeline.append_nowait(record): await pipeline.room()`.
        Raises the first failure, once the outcomes of all records are known. Cancelling passes the turn on and loses
        no record.
        """
        await self._wait_fates()
        if not self._producer.queue.has_room:
            await self._producer.queue.room.wait()
            self._has_turn = True
            await self._wait_fates()

    async def put(self, payloads: Sequence[bytes], *, txid: int | None = None) -> None:
        """Buffer one batch (see `Client.append_batch`), after waiting for room in the buffer.

        Raises the first failure of earlier records. If it raises or is cancelled, nothing of the batch was buffered.
        """
        await self._wait_fates()
        records = checked_batch(payloads)
        check_txid(txid)
        if not self._producer.queue.has_room:
            await self._producer.queue.room.wait()
            await self._wait_fates()
        row = _RecordRun(self, 0)
        row.count = len(records)
        self._producer.add_whole(records, txid, row)
        self._number(row)

    async def drain(self) -> None:
        """Wait until all records appended before this call are durable and reported. The pipeline stays usable.

        Raises the first failure, once the outcomes of all records are known. Cancelling stops the wait only: buffered
        records are still written.
        """
        self._producer.queue.end_loan()
        taken = self._taken
        while self._reported < taken and self._failure is None:
            await self._news()
        await self._wait_fates()

    # ---- called by the queue (BatchBorrower) -------------------------------------------------------------------------

    def lend(self, slot: int, take: Callable[[bytes], None], bytes_max: int) -> BatchListener:
        row = self._loan = _RecordRun(self, slot)
        self._take = take
        self._left = self._granted = bytes_max - SLOT_BYTES
        return row

    def return_loan(self, slots: int) -> int:
        row, self._loan = self._loan, None
        assert row is not None, "only a loan is returned"
        used = self._granted - self._left
        self._left, self._granted, self._take = -1, -1, _no_loan
        row.count = slots - row.slot
        self._number(row)
        return used

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _append_first(self, payload: bytes, txid: int | None) -> bool:
        """Append a record that needs a new loan."""
        self._check()
        checked_payload(payload)
        check_txid(txid)
        if self._first_failed is not None:
            return False  # until `room` raises why
        producer = self._producer
        producer.check_open()
        if not producer.queue.has_room and not (self._has_turn and producer.queue.is_below_bound):
            return False
        self._has_turn = False
        producer.append_and_lend(payload, txid, self)
        self._txid = txid
        return True

    def _number(self, row: _RecordRun) -> None:
        row.index = self._taken
        self._taken += row.count
        self._rows.append(row)

    def _on_failed(self, index: int) -> None:
        """A record failed: withdraw the later ones."""
        block, self._until_failure = self._until_failure, None
        if block is not None:
            block.reschedule(0.0)
        if self._first_failed is None or index < self._first_failed:
            self._first_failed = index
            self._producer.withdraw()
        self._on_answered()

    def _on_answered(self) -> None:
        """Report answered rows in order; after a failure, collect their fates."""
        rows = self._rows
        while rows and rows[0].is_answered:
            row = rows.popleft()
            if self._cause is None and row.result is not None:
                self._report(row, row.result)
            else:
                self._cause = self._cause or row.error
                self._fates.append(row.fate())
        if self._cause is not None and self._failure is None and not rows:
            self._failure = failure_of(self._cause, self._reported, self._fates)
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():
                news.set_result(None)

    def _report(self, row: _RecordRun, result: BatchResult) -> None:
        self._reported += row.count
        if self._on_written is None:
            return
        try:
            self._on_written(result)
        except BaseException as error:  # noqa: BLE001  # of the user's callback; the next call raises it
            self._cause = error
            self._on_failed(self._reported)

    async def _wait_fates(self) -> None:
        """If a record failed, wait until all fates are known and raise the failure."""
        while self._first_failed is not None and self._failure is None:
            await self._news()
        self._check()

    async def _news(self) -> None:
        self._producer.check_place(outcome_unknown=True)
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(news)
        await news

    def _check(self) -> None:
        failure = self._failure
        if failure is not None:
            self._has_raised = True
            # an exception of the user's callback is raised unchanged
            raise to_raise(failure) if isinstance(failure, DLogError) else failure


@asynccontextmanager
async def until_failure(pipeline: Pipeline) -> AsyncGenerator[None, None]:
    """Cancel the block once a record of the pipeline has failed or `on_written` has raised. Then the block raises
    TimeoutError, and the pipeline's next call the failure. Use it once for a pipeline."""
    async with asyncio.timeout(None) as block:
        pipeline._until_failure = block
        try:
            yield
        finally:
            pipeline._until_failure = None


async def finish_after(error: Exception, pipeline: Pipeline) -> None:
    """Called by `append_many` after `error`, raised by its pipeline or by the source of its records: wait until all
    records appended before are written and reported.

    If one of them fails, or `on_written` raises, raises that failure. Otherwise raises a copy of `error` that says how
    many are written if it is a DLogError; if not, adds that to it as a note, and returns. Returns at once if `error` is
    the pipeline's failure. Cancelling stops the wait only.
    """
    if pipeline._has_raised:
        return  # `error` is the failure
    await pipeline.drain()
    failure = failure_of(error, pipeline._reported, ())
    if failure is not error:
        raise failure from error


class _RecordRun:
    """Consecutive records of a pipeline in one batch: a BatchListener."""

    __slots__ = ("count", "error", "index", "pipeline", "result", "slot")

    def __init__(self, pipeline: Pipeline, slot: int) -> None:
        self.pipeline = pipeline
        self.slot = slot  # of its first record, in the batch
        self.count = 0
        self.index = 0  # number of its first record
        self.result: BatchResult | None = None
        self.error: DLogError | None = None

    @property
    def is_answered(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def is_withdrawn(self) -> bool:
        hole = self.pipeline._first_failed
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


def _no_loan(payload: bytes) -> None:
    raise AssertionError("records are added only during a loan")
