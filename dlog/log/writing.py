"""Writing: admits batches, packs them into entries, appends the entries, and answers each batch when it is durable.

Invariants:
- a batch is answered as written only after the store confirmed its entry, or a recovery found its entry at or below
  the segment's final end;
- admitted batches keep their order: a batch whose entry did not survive is packed again before any later batch.

There is no linger: an entry is packed when fewer are in flight than the store can use, or `cut_bytes` wait.
"""

from __future__ import annotations

from dlog.errors import (
    DamagedError,
    DLogError,
    InvalidRequestError,
    OverCapacityError,
    ProducerUnknownError,
    RecordTooLargeError,
    Remedy,
    SequenceGapError,
    TxidOutOfOrderError,
)
from dlog.events import LacMoved
from dlog.log.changes import SegmentEnd
from dlog.log.messages import STORE, AppendEntry, BatchWritten, WriteBatch
from dlog.log.options import OwnerOptions
from dlog.log.packing import Buffer, OpenSegment, Packer, PendingEntry
from dlog.log.producer_table import Batch, EntryPosition, Producer, ProducerTable
from dlog.machine import Answer, Effect, Emit, Send, SetTimer, Ticket
from dlog.model.dlsn import of
from dlog.model.ids import TXID_MAX, EntryId, SegmentNumber, Txid
from dlog.model.segment import Location
from dlog.wire.entry import RECORD_BYTES_MAX, record_set_count

CONTROL_TIMER = ("control",)


class EntryWriter:
    """Batches of one owner, from admission to answer. Each call appends its effects to `out`.

    current: the segment being appended to, None while there is none. accepts_entries: whether it may take new entries.
    """

    __slots__ = (
        "_bytes_max",
        "_control_timer",
        "_inflight",
        "_options",
        "_waiting",
        "_waiting_bytes",
        "accepts_entries",
        "current",
        "next_entry_floor",
        "packer",
        "pending_bytes",
        "stream",
        "table",
        "txid",
        "written_bytes",
        "written_records",
    )

    def __init__(self, stream: str, table: ProducerTable, options: OwnerOptions) -> None:
        self.stream = stream
        self.table = table
        self.packer = Packer(table, options)
        self.current: OpenSegment | None = None
        self.accepts_entries = False
        self.txid = 0  # the last one assigned
        self.next_entry_floor: EntryPosition = (
            0,
            0,
        )  # (segment, entry): batches admitted from now on are written at or above this
        self.pending_bytes = 0  # of all unanswered batches
        self.written_records = 0
        self.written_bytes = 0
        self._options = options
        self._waiting: list[Batch] = []
        self._waiting_bytes = 0
        self._inflight: list[PendingEntry] = []
        self._control_timer = False
        self._bytes_max = RECORD_BYTES_MAX

    @property
    def is_drained(self) -> bool:
        """Whether every admitted batch is confirmed."""
        return not self._waiting and not self._inflight

    @property
    def pipe_is_empty(self) -> bool:
        """Whether every appended entry is confirmed."""
        return not self._inflight

    @property
    def under_way(self) -> PendingEntry | None:
        """The first appended and unconfirmed entry; all of these belong to one segment."""
        return self._inflight[0] if self._inflight else None

    # ---- admission --------------------------------------------------------------------------------------------------

    def admit(
        self, ticket: Ticket, request: WriteBatch, refusal: DLogError | None, out: list[Effect], *, is_confirmed: bool
    ) -> bool:
        """Admit a batch, or answer it at once. refusal: the error for a new batch; a repeated one is answered anyway.

        Returns False and does nothing if the answer would state that something is not in the log and not
        `is_confirmed` (see dlog/log/deferred_refusals.py).
        """
        verdict = self.table.judge(request)
        if type(verdict) is Producer:
            error = refusal or self._objection(request)
            if error is not None:
                return self._refuse(ticket, request, error, out, is_confirmed=is_confirmed)
            given, before = request.txid, self.txid
            self.txid = txid = given if given is not None else max(before, min(request.now_unix_ms, TXID_MAX))
            batch = Batch(ticket, request, verdict, txid, before)
            self.table.accept(batch)
            self.packer.saw_time(request.now_unix_ms)
            size = len(request.body)
            self._waiting.append(batch)
            self._waiting_bytes += size
            self.pending_bytes += size
            if self.accepts_entries:
                self.cut(out)
        elif type(verdict) is Batch:
            verdict.tickets.append(ticket)
        elif type(verdict) is BatchWritten:
            out.append(Answer(ticket, verdict))
        else:
            assert isinstance(verdict, DLogError)
            not_written = isinstance(verdict, SequenceGapError)  # so it is treated like a new batch
            if isinstance(verdict, ProducerUnknownError):
                verdict.since = self.next_entry_floor
            error = refusal if refusal is not None and not_written else verdict
            return self._refuse(ticket, request, error, out, is_confirmed=is_confirmed)
        return True

    def _refuse(
        self, ticket: Ticket, request: WriteBatch, error: DLogError, out: list[Effect], *, is_confirmed: bool
    ) -> bool:
        if not is_confirmed and states_absence_from_log(error, request):
            return False
        out.append(Answer(ticket, error))
        return True

    def _objection(self, request: WriteBatch) -> DLogError | None:
        size, txid = len(request.body), request.txid
        if size > self._bytes_max:
            return RecordTooLargeError(f"a batch has at most {self._bytes_max} bytes: bytes={size}")
        try:
            count = record_set_count(request.body)
        except DamagedError as error:
            return InvalidRequestError(f"the batch is not a valid record set: {error}")
        if count != request.count or count < 1:
            return InvalidRequestError(
                f"the batch's record count does not match its records: count={request.count} holds={count}"
            )
        if txid is not None and not self.txid <= txid <= TXID_MAX:
            return TxidOutOfOrderError(f"txids may not decrease or pass {TXID_MAX}: txid={txid} last={self.txid}")
        if self.pending_bytes + size > self._options.pending_bytes_max and self.pending_bytes:
            return OverCapacityError(f"too many bytes wait for this stream, try later: bytes={self.pending_bytes}")
        return None

    # ---- packing and appending --------------------------------------------------------------------------------------

    def cut(self, out: list[Effect]) -> None:
        """Pack and append entries, as many as the limits allow (see above)."""
        options, segment = self._options, self.current
        assert segment is not None
        while self._waiting and (
            len(self._inflight) < segment.entries_in_flight or self._waiting_bytes >= options.cut_bytes
        ):
            pending = self.packer.cut(self._waiting, segment)
            for batch in pending.batches:
                self._waiting_bytes -= len(batch.request.body)
            self._append(pending, out)

    def append_control(self, out: list[Effect]) -> None:
        """Append a control record with the LAC if no entry carries it and none is pending."""
        self._control_timer = False
        segment = self.current
        if segment is not None and self.accepts_entries and self.is_drained and not segment.lac_is_carried:
            self._append(self.packer.control(segment), out)

    def append_end_of_stream(self, out: list[Effect]) -> None:
        assert self.current is not None and self.is_drained
        self._append(self.packer.end_of_stream(self.current), out)

    def _append(self, pending: PendingEntry, out: list[Effect]) -> None:
        self._inflight.append(pending)
        out.append(Send(STORE, AppendEntry(SegmentNumber(pending.segment), EntryId(pending.entry), pending.parts)))

    # ---- confirming -------------------------------------------------------------------------------------------------

    def appended(self, number: int, entry: int, out: list[Effect]) -> None:
        """The store confirmed every entry up to `entry`; ignored if it belongs to another segment."""
        segment = self.current
        if segment is None or number != segment.number or entry <= segment.lac:
            return
        assert entry < segment.next_entry, "the store confirms what it was given"
        confirmed: list[tuple[Buffer, ...]] = []
        while self._inflight and self._inflight[0].entry <= entry:
            pending = self._inflight.pop(0)  # there are few
            self._written(pending, out)
            confirmed.append(pending.parts)
        segment.lac = entry
        self.next_entry_floor = (number, entry + 1)
        out.append(Emit(LacMoved(self.stream, number, entry, entries=tuple(confirmed))))
        if self.accepts_entries:
            self.cut(out)
            self._watch_lac(segment, out)

    def _written(self, pending: PendingEntry, out: list[Effect]) -> None:
        """Answer the batches of an entry that is durable for good."""
        table, number, entry, window = self.table, pending.segment, pending.entry, self._window()
        for batch in pending.batches:
            table.confirm(batch)
            count, size = batch.request.count, len(batch.request.body)
            self.pending_bytes -= size
            self.written_bytes += size
            self.written_records += count
            dlsn, txid = of(number, entry, batch.slot), Txid(batch.txid)
            tickets = batch.tickets  # none: see report_in_doubt
            out.extend(Answer(ticket, BatchWritten(dlsn, count, txid, False, window)) for ticket in tickets[:1])
            if len(tickets) > 1:
                repeated = BatchWritten(dlsn, count, txid, True, window)
                out.extend(Answer(ticket, repeated) for ticket in tickets[1:])

    def _window(self) -> int:
        """How many batches a producer may have unanswered: fewer if the room for those of all producers is half full,
        so that it suffices for more of them before batches are refused."""
        window, options = self.table.window, self._options
        return min(window, options.window_min) if 2 * self.pending_bytes > options.pending_bytes_max else window

    def _watch_lac(self, segment: OpenSegment, out: list[Effect]) -> None:
        if not self._control_timer and not self._inflight and not segment.lac_is_carried:
            self._control_timer = True
            out.append(SetTimer(CONTROL_TIMER, self._options.control_after_ms / 1000, can_wait=True))

    # ---- start and end of a segment ---------------------------------------------------------------------------------

    def begin_segment(self, segment: OpenSegment, out: list[Effect]) -> None:
        """Append to this segment from now on; the previous one has ended."""
        assert not self._inflight, "nothing is on its way to another segment"
        self.current = segment
        self.next_entry_floor = (segment.number, 0)
        self.accepts_entries = True
        self.cut(out)

    def end_of_current(self) -> SegmentEnd:
        """End of the current segment, once no entry is in flight."""
        segment = self.current
        assert segment is not None and self.pipe_is_empty and segment.lac == segment.next_entry - 1
        return SegmentEnd(EntryId(segment.lac), segment.last_slot, Txid(segment.last_txid), segment.records)

    def lose_segment(self) -> None:
        """The segment takes no more entries. Those in flight are decided by a recovery (see `resolve`)."""
        self.current = None
        self.accepts_entries = False
        self._control_timer = False

    def resolve(self, ends: dict[int, SegmentEnd | None], locations: dict[int, Location], out: list[Effect]) -> None:
        """A recovery found where segments end: answer the entries that survived, queue the rest in its old order.

        locations: of those segments. A Java writer that takes over deletes our empty segment and reuses
        its number: the end of that other segment decides nothing about ours.
        """
        lost: list[PendingEntry] = []
        for pending in self._inflight:
            end = ends.get(pending.segment) if locations.get(pending.segment) == pending.location else None
            if end is not None and pending.entry <= end.last_entry:
                assert not lost, "what survives is a prefix"
                self._written(pending, out)
            else:
                lost.append(pending)
        self._inflight.clear()
        again = [batch for pending in lost for batch in pending.batches]
        for batch in reversed(again):
            self.table.uncut(batch)
            self._waiting_bytes += len(batch.request.body)
        self._waiting[:0] = again

    def refuse_waiting(self, error: DLogError, out: list[Effect]) -> None:
        """Refuse the batches that are in no entry yet: they are not written and may be sent again."""
        for batch in reversed(self._waiting):
            self.table.withdraw(batch)
            self.txid = batch.txid_before
        for batch in self._waiting:
            self.pending_bytes -= len(batch.request.body)
            out.extend(Answer(ticket, error) for ticket in batch.tickets)
        self._waiting.clear()
        self._waiting_bytes = 0

    def report_in_doubt(self, error: DLogError, out: list[Effect]) -> None:
        """Answer the batches in flight with this error of unknown outcome. They stay in flight: a recovery decides
        about them, and a repetition waits for it."""
        for pending in self._inflight:
            for batch in pending.batches:
                out.extend(Answer(ticket, error) for ticket in batch.tickets)
                batch.tickets.clear()

    def fail_all(self, error: DLogError, unknown: DLogError, out: list[Effect]) -> None:
        """Fail every batch. unknown: the error for those whose entry is in flight."""
        for pending in self._inflight:
            for batch in pending.batches:
                out.extend(Answer(ticket, unknown) for ticket in batch.tickets)
        for batch in self._waiting:
            out.extend(Answer(ticket, error) for ticket in batch.tickets)
        self._inflight.clear()
        self._waiting.clear()
        self._waiting_bytes = self.pending_bytes = 0
        self.lose_segment()


def states_absence_from_log(error: DLogError, request: WriteBatch) -> bool:
    """Whether this refusal states that something is not in the log.

    Every refusal states that this attempt was not taken. For a batch sent for the first time that is all, and true
    even if this owner was deposed; what the client concludes about other batches from `expected` or `since` is checked
    when the producer's next generation begins. For a repeated batch, a final refusal (fix, stop, report) states that no
    attempt was written, since only new batches are refused so, and 530 and 535 are derived from the producer table.
    """
    final = (Remedy.FIX, Remedy.STOP, Remedy.REPORT)
    return request.retry and (isinstance(error, ProducerUnknownError) or error.remedy in final)
