"""Import of stages (closed segments written elsewhere for the stream), and batches of sinks, each written once.

Invariants:
- imported segments come after all acknowledged records and before all later ones: writes wait, admitted batches are
  confirmed and the current segment is sealed; then one compare-and-set completes it, lists the stages and records the
  sink's batch; then the next segment is started as after a recovery;
- the contents of a stage are read from its store, not taken from the request;
- a sink's batch is judged by the sink's record in metadata when it is admitted; requests are handled one at a time, so
  a program that was shut out adds nothing later.

Source: ours; docs/decisions/0021.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dlog.errors import (
    DamagedError,
    DLogError,
    InvalidRequestError,
    OverCapacityError,
    ProducerUnknownError,
    Remedy,
    StreamUnavailableError,
    TruncatedError,
    TxidOutOfOrderError,
)
from dlog.events import LacMoved, SegmentCompleted
from dlog.log.changes import (
    CompleteSegment,
    DropEmptySegment,
    ListImportedSegments,
    RecordSinkBatch,
    SegmentEnd,
    SetSegmentLocation,
    Stage,
    allocated_name,
)
from dlog.log.contents import read_contents
from dlog.log.messages import (
    STORE,
    AppendSinkBatch,
    BatchWritten,
    ExamineStage,
    ImportStages,
    MoveListedSegment,
    SegmentsImported,
    StageExamined,
)
from dlog.log.owner_context import OwnerContext
from dlog.log.packing import OpenSegment
from dlog.log.takeover import NO_OWNER, Takeover, Writer
from dlog.machine import Answer, Emit, Send, Ticket
from dlog.model.dlsn import DLSN_INVALID
from dlog.model.ids import NO_ENTRY, NO_TXID, SegmentNumber, Txid
from dlog.model.segment import Location
from dlog.model.sink import SINKS_MAX, SinkBatch, SinkRecord, Standing, standing

WAITING_MAX = 64
_EXAMINED_AT_ONCE = 16


@dataclass(slots=True)
class _PendingImport:
    """A request to import stages, maybe none. asked, found: by location. change: being written to metadata."""

    ticket: Ticket
    request: ImportStages
    asked: set[str] = field(default_factory=set)
    found: dict[str, Stage] = field(default_factory=dict)
    error: DLogError | None = None
    lacks_stage: bool = False  # a stage does not exist (any more): a later owner may have imported it
    is_confirmed: bool = False  # metadata that was read after the request came shows our claim
    change: ListImportedSegments | RecordSinkBatch | None = None


@dataclass(slots=True)
class _Appending:
    """A batch to be appended. change: being written to metadata."""

    ticket: Ticket
    request: AppendSinkBatch
    change: RecordSinkBatch | None = None


class SegmentImport:
    """Imports stages and appends sinks' batches. taking: admits writes that waited, and starts the next segment once
    the current one is completed. writer: the owner."""

    __slots__ = ("_context", "_moving", "_taking", "_waiting", "_writer")

    def __init__(self, context: OwnerContext, taking: Takeover, writer: Writer) -> None:
        self._context = context
        self._taking = taking
        self._writer: Writer = writer
        self._waiting: tuple[_PendingImport | _Appending, ...] = ()
        self._moving: tuple[tuple[Ticket, SetSegmentLocation], ...] = ()

    @property
    def is_sealing(self) -> bool:
        """Whether the current segment is being sealed for an import."""
        return self._context.writes_wait and self._head is not None

    @property
    def _head(self) -> _PendingImport | None:
        head = self._waiting[0] if self._waiting else None
        return head if isinstance(head, _PendingImport) else None

    def ask(self, ticket: Ticket, request: ImportStages | AppendSinkBatch, *, is_confirmed: bool = False) -> None:
        """Queue the request behind those that wait, or refuse it. is_confirmed: metadata that was read since it came
        shows our claim (see dlog/log/deferred_refusals.py)."""
        if len(self._waiting) >= WAITING_MAX:
            self._answer(ticket, OverCapacityError("too many sink batches wait for this stream, try later"))
        elif isinstance(request, ImportStages) and len(dict(request.parts)) < len(request.parts):
            self._answer(ticket, InvalidRequestError("a stage is named more than once"))
        elif isinstance(request, ImportStages) and not request.parts and request.batch is None:
            self._answer(ticket, InvalidRequestError("no stage is named, and no batch"))
        elif isinstance(request, ImportStages):
            self._waiting += (_PendingImport(ticket, request, is_confirmed=is_confirmed),)
        else:
            self._waiting += (_Appending(ticket, request),)

    # ---- progress ---------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Handle the waiting requests in order, as far as possible now. Not called during a roll."""
        while self._waiting and self._is_dealt_with(self._waiting[0]):
            pass

    def _is_dealt_with(self, head: _PendingImport | _Appending) -> bool:
        """Handle the first request; whether it is answered or admitted."""
        if head.change is not None:
            return False  # being written to metadata
        verdict = self._judge(head.request.batch)
        if isinstance(verdict, DLogError):
            return self._drop(verdict)
        if isinstance(head, _Appending):
            return self._is_appended(head, verdict)
        if not head.request.parts:
            return self._is_empty(head, verdict)
        listed = self._listed(head.request)
        if verdict is Standing.DONE or (head.request.batch is None and len(listed) == len(head.request.parts)):
            return self._drop(SegmentsImported(SegmentNumber(0), len(head.request.parts), 0, True))
        if listed:
            return self._drop(
                InvalidRequestError(f"these stages are segments already: locations={', '.join(listed)[:100]}")
            )
        return self._is_taken_in(head)

    def _judge(self, batch: SinkBatch | None) -> Standing | DLogError:
        if batch is None:
            return Standing.NEW
        value = self._context.value
        record = value.sink(batch.sink)
        if record is None:
            full = f"a stream records at most {SINKS_MAX} sinks, see `dlog sink retire`: sink={batch.sink}"
            return Standing.NEW if len(value.sinks) < SINKS_MAX else InvalidRequestError(full)
        verdict = standing(record, batch)
        if verdict is Standing.SHUT_OUT:
            return InvalidRequestError(
                f"this sink was taken over by another program: sink={batch.sink} epoch={batch.epoch} "
                f"newer={record.last.epoch}"
            )
        if verdict is Standing.ANOTHER:
            return InvalidRequestError(
                f"another program writes under the name of this sink, a higher epoch shuts it out: sink={batch.sink} "
                f"epoch={batch.epoch} query={record.last.query}"
            )
        return verdict

    # ---- small batches, appended ------------------------------------------------------------------------------------

    def _is_appended(self, head: _Appending, verdict: Standing) -> bool:
        t = self._context
        if verdict is Standing.DONE:
            return self._drop(BatchWritten(DLSN_INVALID, head.request.write.count, NO_TXID, True))
        if verdict is Standing.REPEATED:
            record = t.value.sink(head.request.batch.sink)
            assert record is not None
            self._append(record)
            return True
        refusal = self._writer.refusal()
        if refusal is not None:
            return self._drop(refusal)
        head.change = RecordSinkBatch(SinkRecord(head.request.batch, t.writing.next_entry_floor))
        t.register.want(head.change)
        return False

    def remembered(self, change: RecordSinkBatch) -> None:
        """The sink's batch is recorded: append it; an empty one is done."""
        head = self._waiting[0]
        assert head.change is change
        head.change = None
        if self._context.value.sink(change.record.last.sink) != change.record:
            return  # metadata has another record: judge the request again
        if isinstance(head, _Appending):
            self._append(change.record)
        else:
            self._drop(SegmentsImported(SegmentNumber(0), 0, 0))

    def _append(self, record: SinkRecord) -> None:
        head, self._waiting = self._waiting[0], self._waiting[1:]
        assert isinstance(head, _Appending)
        since = _later(record.since, head.request.write.since)
        write = replace(head.request.write, producer=record.last.producer, sequence=0, since=since)
        self._writer.write(head.ticket, write)

    # ---- empty batches ----------------------------------------------------------------------------------------------

    def _is_empty(self, head: _PendingImport, verdict: Standing) -> bool:
        """Record an empty batch, which shuts out earlier programs of its sink."""
        t, batch = self._context, head.request.batch
        assert batch is not None, "refused on arrival otherwise"
        if verdict is Standing.DONE:
            return self._drop(SegmentsImported(SegmentNumber(0), 0, 0, True))
        if verdict is Standing.REPEATED:
            return self._drop(
                InvalidRequestError(f"this batch was recorded for appending: sink={batch.sink} {batch.batch}")
            )
        refusal = self._writer.refusal()
        if refusal is not None:
            return self._drop(refusal)
        head.change = RecordSinkBatch(SinkRecord(batch))
        t.register.want(head.change)
        return False

    # ---- segments ---------------------------------------------------------------------------------------------------

    def _listed(self, request: ImportStages) -> list[str]:
        """Locations of the request that are, or were, those of listed segments: a segment that was moved names its
        former ledger until it leaves the list, and that ledger is deleted before."""
        value = self._context.value
        return [name for name, _ in request.parts if value.segment_at(Location(request.store, name)) is not None]

    def _is_taken_in(self, head: _PendingImport) -> bool:
        """Take the next step of an import. True only if it was refused; a success is answered after the change."""
        t = self._context
        if t.is_seal_asked:
            return False
        if head.lacks_stage and not head.is_confirmed:
            self._waiting = self._waiting[1:]
            self._writer.defer(head.ticket, head.request)
            self._release_held()
            return True
        error = self._writer.refusal() or head.error or self._doubt(head.request)
        if error is not None:
            return self._let_on(error)
        for name, _ in head.request.parts:
            if name not in head.asked and len(head.asked) - len(head.found) < _EXAMINED_AT_ONCE:
                head.asked.add(name)
                t.out.append(Send(STORE, ExamineStage(Location(head.request.store, name))))
        if len(head.found) < len(head.request.parts):
            return False
        t.writes_wait = True  # from here on until the import is decided, no txid is assigned
        if not t.writing.is_drained:
            return False
        error = self._order(head)
        if error is not None:
            return self._let_on(error)
        t.writing.accepts_entries = False
        t.ask_seal()
        return False

    def _doubt(self, request: ImportStages) -> DLogError | None:
        """The error if the batch may have been appended before: an import needs certainty that it was not."""
        t, batch = self._context, request.batch
        record = None if batch is None else t.value.sink(batch.sink)
        if record is None or record.last != batch or record.since is None:
            return None
        if t.table.has_certainly_not_written(record.last.producer, _later(record.since, request.since)):
            return None
        text = f"this batch was appended before, or may have been, read the log: batch={record.last.batch}"
        return ProducerUnknownError(text, since=t.writing.next_entry_floor)

    def _order(self, head: _PendingImport) -> DLogError | None:
        """The error if txids decrease, from written records to the first stage or between stages."""
        last = self._context.writing.txid
        for name, _ in head.request.parts:
            stage = head.found[name]
            if stage.first_txid < last:
                return TxidOutOfOrderError(
                    f"txids may not decrease: location={name} txid={stage.first_txid} last={last}", last=last
                )
            last = stage.end.last_txid
        return None

    def handle(self, message: StageExamined) -> None:
        """The store examined a stage; ignored if no request waits for it."""
        head = self._head_for(message.location)
        if head is None:
            return
        name = message.location.name
        expected = dict(head.request.parts)[name]
        if message.last_entry != expected or not message.payloads:
            head.error = InvalidRequestError(
                f"a stage ends at another entry than requested: location={name} requested={expected} "
                f"found={message.last_entry}"
            )
            return
        try:
            head.found[name] = _stage_of(message)
        except DamagedError as error:
            head.error = InvalidRequestError(f"a stage cannot be read: location={name}: {error.message}")

    def failed(self, question: ExamineStage, error: DLogError) -> None:
        head = self._head_for(question.location)
        if head is not None:
            head.lacks_stage = error.remedy is Remedy.STOP
            gone = InvalidRequestError(f"no such stage, it may have been swept: location={question.location.name}")
            head.error = gone if head.lacks_stage else error

    def lost(self) -> None:
        """The store is lost: requests in flight are not answered, send them again."""
        head = self._head
        if head is not None and head.change is None:
            head.asked = set(head.found)

    def _head_for(self, location: Location) -> _PendingImport | None:
        head = self._head
        if head is None or location.store != head.request.store or location.name in head.found:
            return None
        return head if any(location.name == known for known, _ in head.request.parts) else None

    def sealed(self, segment: OpenSegment, end: SegmentEnd) -> None:
        """The current segment is sealed for the import: write it all in one change."""
        t, head = self._context, self._head
        assert head is not None and head.change is None
        number, location = SegmentNumber(segment.number), segment.location
        if end.last_entry != NO_ENTRY:
            t.register.want(CompleteSegment(number, location, end, t.unix_ms))
        else:
            t.register.want(DropEmptySegment(number, location, allocated_name(location)))
        record = None if head.request.batch is None else SinkRecord(head.request.batch)
        stages = tuple(head.found[name] for name, _ in head.request.parts)
        head.change = ListImportedSegments(stages, record, t.unix_ms)
        t.register.want(head.change)

    def taken_in(self, change: ListImportedSegments) -> None:
        """The change was applied: the stages are listed, or another writer was faster."""
        t, head = self._context, self._head
        assert head is not None and head.change is change
        found = [s for stage in change.stages if (s := t.value.segment_at(stage.location)) is not None]
        t.report_dropped()  # before its number is reported again
        for s in found:
            t.out.append(Emit(SegmentCompleted(t.stream, s.number, s.last_entry, s.record_count)))
            t.out.append(Emit(LacMoved(t.stream, s.number, s.last_entry, True)))
        t.writing.txid = max(t.writing.txid, *(s.end.last_txid for s in change.stages))
        if change.was_made(t.value):
            first = found[0].number if found else SegmentNumber(0)
            self._drop(SegmentsImported(first, len(change.stages), sum(s.end.records for s in change.stages)))
        else:
            self._drop(StreamUnavailableError("not imported, another writer is active on the stream: try again"))
        self._release_held()
        self._taking.restart()

    def refused(self, change: ListImportedSegments | RecordSinkBatch | SetSegmentLocation, error: DLogError) -> None:
        """Metadata refused the change for good: answer the request with the error."""
        if isinstance(change, SetSegmentLocation):
            self._answer_move(change, error)
            return
        self._waiting[0].change = None
        self._drop(error)
        if isinstance(change, ListImportedSegments):
            self._release_held()
            self._taking.restart()

    # ---- locations --------------------------------------------------------------------------------------------------

    def move_segment(self, ticket: Ticket, request: MoveListedSegment) -> None:
        if not self._context.is_held:
            self._answer(ticket, StreamUnavailableError("the stream is being taken over: try again"))
            return
        change = SetSegmentLocation(
            request.number, Location(request.store, request.name), Location(request.to_store, request.to_name)
        )
        self._moving += ((ticket, change),)
        self._context.register.want(change)

    def segment_moved(self, change: SetSegmentLocation) -> None:
        """The change was applied to metadata read after the request, or changes nothing there."""
        is_done = change.was_made(self._context.value)
        self._answer_move(change, None if is_done else self._not_moved(change))

    def _answer_move(self, change: SetSegmentLocation, result: DLogError | None) -> None:
        answered = [ticket for ticket, asked in self._moving if asked is change]
        self._moving = tuple(waiting for waiting in self._moving if waiting[1] is not change)
        for ticket in answered:
            self._answer(ticket, result)

    def _not_moved(self, change: SetSegmentLocation) -> DLogError:
        segment = self._context.value.segment(change.number)
        if segment is not None:
            where = f"segment={change.number} store={change.at.store} location={change.at.name}"
            if segment.completed and segment.location == change.at:
                return InvalidRequestError(
                    f"a segment moves into a ledger only if it was written there: {where} to={change.to.name}"
                )
            return InvalidRequestError(f"the segment is not completed, or has another location: {where}")
        if change.number <= self._context.value.max_segment:
            return TruncatedError(f"no such segment, it was truncated: segment={change.number}")
        return InvalidRequestError(f"no such segment: segment={change.number}")

    # ---- giving up --------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The current segment failed. A change being written is decided by metadata; other imports start again."""
        head = self._head
        if head is None or head.change is None:
            self._release_held()

    def fail(self, error: DLogError, unknown: DLogError) -> None:
        """Fail all requests. unknown: the error for those whose change is being written."""
        for waiting in self._waiting:
            is_on_its_way = isinstance(waiting, _PendingImport) and waiting.change is not None
            self._answer(waiting.ticket, unknown if is_on_its_way else error)
        for ticket, _ in self._moving:
            self._answer(ticket, unknown)
        self._waiting = ()
        self._moving = ()
        self._context.writes_wait = False

    def let_go(self) -> None:
        """Drop the reference to the owner."""
        self._writer = NO_OWNER

    def _let_on(self, error: DLogError) -> bool:
        """Refuse the first request, and let writes go on."""
        self._drop(error)
        self._release_held()
        return True

    def _release_held(self) -> None:
        if self._context.writes_wait:
            self._context.writes_wait = False
            self._taking.admit_early()

    def _drop(self, result: object) -> bool:
        head, self._waiting = self._waiting[0], self._waiting[1:]
        self._answer(head.ticket, result)
        return True

    def _answer(self, ticket: Ticket, result: object) -> None:
        self._context.out.append(Answer(ticket, result))


def _later(remembered: tuple[int, int] | None, sent: tuple[int, int] | None) -> tuple[int, int] | None:
    return remembered if remembered is None or sent is None else max(remembered, sent)


def _stage_of(found: StageExamined) -> Stage:
    """Raises DamagedError."""
    first, last = read_contents(found.payloads[0]), read_contents(found.payloads[-1])
    if not first.txids:
        raise DamagedError("its first entry has no records")
    end = SegmentEnd(found.last_entry, last.last_slot, Txid(last.last_txid), last.position)
    return Stage(found.location, Txid(first.txids[0]), end)
