"""The owner of a stream: a state machine that claims, recovers, serves, rolls and hands over one stream.

Its phases and what may follow each: TRANSITIONS in dlog/log/owner_context.py; ARCHITECTURE.md has the diagram.

Invariants:
- an owner never answers anything that a later owner could contradict;
- take-over: claim by compare-and-set, fence and end every segment in progress, read the producer table back, then one
  compare-and-set that completes those segments and starts the next one, then serve;
- roll: the next segment is listed, the old one is sealed, only then is the next one appended to;
- every change of the segment list names the version it was computed from, so a deposed owner's change conflicts;
- after the claim is lost no batch is answered as written.

One StreamOwnerMachine serves one claim: a new claim is a new instance with a new nonce. The segment store is the peer
STORE (dlog/log/messages.py). Facts: Asked with AcquireStream first, then WriteBatch, ImportStages, AppendSinkBatch,
MoveListedSegment, TruncateBefore, AlterStream, SealStream, HandOverStream, StatStream; Received(STORE, ...);
Received(HINTS, StreamChanged()); PeerLost(STORE); MetadataSeen; TimerFired. Once `has_ended` is true, everything is
answered: discard the instance.

Source: DistributedLog's write handler; docs/decisions/0004 says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlog.errors import (
    ClaimLostError,
    DamagedError,
    DLogError,
    EndOfStreamError,
    NotReadyError,
    OverCapacityError,
    OwnedElsewhereError,
    Remedy,
    StreamNotFoundError,
    StreamUnavailableError,
)
from dlog.events import ChangeRefused, ClaimLost, LacMoved, SegmentCompleted, StreamOwned, StreamReleased, StreamSealed
from dlog.log import recovery
from dlog.log.altering import SettingsAlteration
from dlog.log.changes import (
    Allocate,
    AlterSettings,
    Change,
    CompleteSegment,
    Deallocate,
    DropEmptySegment,
    Expire,
    ForgetTruncated,
    ListImportedSegments,
    MarkReleased,
    MarkTruncated,
    RecordSinkBatch,
    Refresh,
    SetSegmentLocation,
    StartSegment,
    Touch,
    TruncateTo,
)
from dlog.log.deferred_refusals import DeferredRefusals, Refusable
from dlog.log.messages import (
    AcquireStream,
    AlterStream,
    AppendEntry,
    AppendSinkBatch,
    CreateSegment,
    DeleteSegment,
    EntriesRead,
    EntryAppended,
    ExamineStage,
    HandOverStream,
    ImportStages,
    MoveListedSegment,
    ReadEntries,
    RecoverSegment,
    SealSegment,
    SealStream,
    SegmentCreated,
    SegmentDeleted,
    SegmentRecovered,
    SegmentSealed,
    StageExamined,
    StatStream,
    StoreFailed,
    StreamAcquired,
    StreamChanged,
    StreamStat,
    TruncateBefore,
    WriteBatch,
)
from dlog.log.options import OwnerOptions
from dlog.log.owner_context import OwnerContext, Phase
from dlog.log.retention import DUE_TIMER, RETENTION_TIMER, RetentionChecker
from dlog.log.rolling import AGE_TIMER, Roll, SegmentRoller
from dlog.log.segment_import import SegmentImport
from dlog.log.takeover import RECHECK_TIMER, Takeover
from dlog.log.truncating import StreamTruncation
from dlog.log.writing import CONTROL_TIMER, states_absence_from_log
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    Effect,
    Emit,
    Fact,
    MetadataSeen,
    PeerLost,
    Received,
    Ticket,
    TimerFired,
)
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber
from dlog.model.segment import Segment, StoreSettings, StreamKey, StreamMetadata
from dlog.ownership.claim import Claimant, ClaimState
from dlog.stores.contract import (
    Capabilities,
    MisconfiguredError,
    SegmentCorruptError,
    StoreOutOfReachError,
    StoreTooSmallError,
)


class StreamOwnerMachine:
    """Owns one stream under one claim.

    claimant: this proxy, with a nonce never used before. stores: capabilities of the stores that this process knows, by
    name.
    """

    __slots__ = (
        "_altering",
        "_confirming",
        "_context",
        "_expiring",
        "_importing",
        "_releasers",
        "_rolling",
        "_sealers",
        "_takeover",
        "_takers",
        "_truncating",
    )

    def __init__(
        self,
        key: StreamKey,
        claimant: Claimant,
        options: OwnerOptions | None = None,
        *,
        stores: Mapping[str, Capabilities],
    ) -> None:
        self._context = context = OwnerContext(key, claimant, options or OwnerOptions(), stores)
        self._takeover = Takeover(context, self)
        self._rolling = SegmentRoller(context)
        self._truncating = StreamTruncation(context)
        self._altering = SettingsAlteration(context)
        self._expiring = RetentionChecker(context)
        self._importing = SegmentImport(context, self._takeover, self)
        self._confirming = DeferredRefusals(context, self)
        self._takers: tuple[Ticket, ...] = ()  # tuples: an empty list takes 72 B, and there are thousands of streams
        self._sealers: tuple[Ticket, ...] = ()
        self._releasers: tuple[Ticket, ...] = ()

    @property
    def phase(self) -> Phase:
        return self._context.phase

    @property
    def has_ended(self) -> bool:
        return self._context.has_ended

    @property
    def epoch(self) -> Epoch:
        """Epoch of this claim; 0 until it is held."""
        return self._context.claim.epoch

    @property
    def nonce(self) -> str:
        """Nonce of this claim."""
        return self._context.claim.claimant.nonce

    @property
    def incarnation(self) -> str | None:
        """Incarnation of the owned stream, once known."""
        return self._context.claim.incarnation

    @property
    def damage(self) -> DLogError | None:
        """The error that ended the claim if it was damage of the stream, which the next owner would meet, too; else
        None."""
        error = self._context.claim.error
        return error if isinstance(error, DamagedError | SegmentCorruptError) else None

    @property
    def location(self) -> str | None:
        """host:port of the newest claim seen, unless it is this one."""
        newest = self._context.claim.newest
        return (newest.address or None) if newest.claim != self.nonce else None

    @property
    def value(self) -> StreamMetadata | None:
        """The stream as last read or written under this claim; None while it is not held."""
        return self._context.value if self._context.is_held else None

    @property
    def stores_in_use(self) -> frozenset[tuple[str, StoreSettings]]:
        """The stores, each with its settings, of the stream's next segment and of its last one; empty while the claim
        is not held."""
        value = self.value
        if value is None:
            return frozenset()
        settings = value.settings
        last = value.segments[-1].store if value.segments else settings.store
        return frozenset(
            (name, settings.store_settings if name == settings.store else ()) for name in (settings.store, last)
        )

    def let_go(self) -> None:
        """Drop the references between components: no further calls, and no reference cycle remains."""
        self._takeover.let_go()
        self._importing.let_go()
        self._confirming.let_go()

    # ---- facts ------------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        out: list[Effect] = []
        self._context.out = out
        if type(fact) is Asked and type(fact.request) is WriteBatch:
            self.write(fact.ticket, fact.request)
            if not self._confirming.is_waiting:
                return out  # the batch has no further consequence before the store confirms its entry
        elif type(fact) is Received and type(fact.message) is EntryAppended:
            self._appended(fact.message.number, fact.message.entry)
        else:
            self._note(fact)
        self._settle()
        return out

    def _note(self, fact: Fact) -> None:
        match fact:
            case Received(_, StreamChanged()):
                self._check_claim()
            case Received(_, message, now_s):
                if now_s:
                    self._context.saw_monotonic(now_s)  # a segment that ends now is not labelled as completed earlier
                self._handle_store(message)
            case Asked(ticket, request, now_s):
                self._asked(ticket, request, now_s)
            case MetadataSeen(("claim", _)):
                self._context.out += self._context.claim.handle(fact)
            case MetadataSeen():
                self._context.out += self._context.register.handle(fact)
            case TimerFired():
                self._fired(fact)
            case PeerLost():
                self._store_lost()
            case _:
                raise AssertionError(f"not a fact of this machine: {fact}")

    def _asked(self, ticket: Ticket, request: Any, now_s: float) -> None:
        t = self._context
        match request:
            case StatStream():
                t.out.append(Answer(ticket, self._stat()))
            case AcquireStream(if_epoch, now_unix_ms):
                t.saw_clock(now_unix_ms, now_s)
                self._take(ticket, if_epoch)
            case _ if self.has_ended or t.phase is Phase.IDLE:
                t.out.append(Answer(ticket, self.refusal()))
            case _ if not self._is_of_this_incarnation(request):
                t.out.append(Answer(ticket, StreamUnavailableError("not owned here in this incarnation, ask again")))
                self._check_claim()  # the owned incarnation may be the deleted one
            case ImportStages() | AppendSinkBatch():
                self._importing.ask(ticket, request)
            case MoveListedSegment():
                self._importing.move_segment(ticket, request)
            case TruncateBefore(dlsn):
                if not self._truncating.ask(ticket, dlsn):
                    self._confirming.defer(ticket, request)
            case AlterStream():
                self._altering.ask(ticket, request)
            case SealStream():
                self._sealers += (ticket,)
                self._drain()
            case HandOverStream():
                self._releasers += (ticket,)
                self._drain()
            case _:
                raise AssertionError(f"not a request to a stream's owner: {request}")

    def _take(self, ticket: Ticket, if_epoch: Epoch | None) -> None:
        t = self._context
        if self.has_ended:
            t.out.append(Answer(ticket, self.refusal()))
            return
        self._takers += (ticket,)
        if t.phase is Phase.IDLE:
            t.enter(Phase.CLAIMING)
            t.out += t.claim.begin(if_epoch)

    def _fired(self, fact: TimerFired) -> None:
        t = self._context
        t.saw_monotonic(fact.now_s)
        match fact.key:
            case ("claim", _):
                t.out += t.claim.handle(fact)
            case ("register", _):
                t.out += t.register.handle(fact)
            case ("control",):
                t.writing.append_control(t.out)
            case ("recovery",):
                self._takeover.ask_again()
            case ("allocation",):
                t.allocation.retry()
            case ("disposal",):
                t.disposal.retry()
            case ("mend",):
                self._takeover.look_again()
            case ("age",):
                self._rolling.aged()
            case ("retention",):
                self._expiring.judge(fact.now_s)
            case ("due",):
                self._expiring.due(fact.now_s)

    def _handle_store(self, message: Any) -> None:
        t = self._context
        match message:
            case SegmentRecovered() | EntriesRead():
                self._takeover.obstacle = None
                self._takeover.handle(message)
            case SegmentCreated(number, location):
                self._takeover.obstacle = None
                unwanted = t.allocation.created(number, location)
                if unwanted is not None:
                    t.disposal.add(unwanted)
            case SegmentSealed(number, last_entry):
                self._segment_sealed(number, last_entry)
            case StageExamined():
                self._importing.handle(message)
            case SegmentDeleted(location):
                self._truncating.deleted(t.disposal.deleted(location))
            case StoreFailed():
                self._store_failed(message)
            case _:
                raise AssertionError(f"not a message of a segment store: {message}")

    # ---- settle -----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Derive every consequence of the facts so far."""
        t = self._context
        claim = t.claim
        if not t.is_held:
            if self.has_ended or t.phase is Phase.IDLE or claim.state is ClaimState.CLAIMING:
                return
            if claim.state is ClaimState.HELD:
                self._hold()
        while claim.error is None:
            self._progress()
            if self._confirming.progress():
                continue
            if t.phase is not Phase.RECOVERING or self._takeover.is_stalled:  # else deleting can wait
                t.out += t.disposal.effects()
            if t.register.is_at_rest:
                break
            t.out += t.register.effects()
            done = t.register.take_done()
            for change, error in t.register.take_refused():
                self._refused(change, error)
            if not done:
                break
            for change in done:
                self._changed(change)
        if claim.error is not None and not self.has_ended:
            self._lose()

    def _hold(self) -> None:
        """The claim succeeded: delete what earlier owners left, and recover the stream."""
        t = self._context
        t.became_owner()
        t.out.append(Emit(StreamOwned(t.stream, t.claim.epoch, t.claim.previous.proxy)))
        if t.value.allocated:
            self._truncating.delete_allocated(t.value.allocated, t.value.max_segment + 1)
        self._truncating.delete_next()
        self._takeover.begin()

    def _progress(self) -> None:
        t = self._context
        match t.phase:
            case Phase.SERVING | Phase.DRAINING:
                self._rolling.progress()
                if self._rolling.state is Roll.NONE:
                    self._importing.progress()
                if t.phase is Phase.DRAINING:
                    self._progress_draining()
            case Phase.RECOVERING:
                self._takeover.progress()
            case Phase.CLOSING:
                self._importing.progress()
            case Phase.SEALED | Phase.RELEASING:
                self._progress_sealed()

    def _changed(self, change: Change) -> None:
        """A change is applied, or had nothing to change: act on what metadata shows now."""
        t = self._context
        match change:
            case StartSegment(segment) if change.was_made(t.value):
                self._takeover.started(segment)
                self._rolling.started(segment)
            case StartSegment(segment, name):
                self._truncating.delete_allocated(name, segment.number)
                self._trouble()  # another writer took the number: recover the segment that it began
            case CompleteSegment(number, _, end):
                t.out.append(Emit(SegmentCompleted(t.stream, number, end.last_entry, end.records)))
                self._expiring.look()
            case DropEmptySegment(number, location, name):
                if t.value.has_dropped(number, location):  # false if a Java writer completed the empty segment
                    self._truncating.delete_allocated(name, number)
            case MarkReleased():
                self._end_released()
            case TruncateTo():
                self._truncating.done(change)
            case AlterSettings():
                self._altering.done(change)
                self._expiring.look()
            case ListImportedSegments():
                self._importing.taken_in(change)
            case RecordSinkBatch():
                self._importing.remembered(change)
            case SetSegmentLocation():
                self._importing.segment_moved(change)
            case Touch():
                self._expiring.look()
            case Expire():
                self._truncating.delete_next()
            case MarkTruncated():
                self._truncating.marked()
            case ForgetTruncated():
                self._truncating.forgotten()
            case Refresh():
                if t.value.is_sealed and (t.phase is Phase.CLOSING or self._takeover.has_found_end_of_stream):
                    self._end_sealed()
                else:
                    self._takeover.refreshed()
            case _:
                t.allocation.recorded(change)

    def _refused(self, change: Change, error: DLogError) -> None:
        """Metadata refused a change for good; it was not made."""
        t = self._context
        match change:
            case TruncateTo():
                self._truncating.refused(change, error)
            case AlterSettings():
                self._altering.refused(change, error)
            case ListImportedSegments() | RecordSinkBatch() | SetSegmentLocation():
                self._importing.refused(change, error)
            case Touch() | Expire() | MarkTruncated() | ForgetTruncated() | Allocate() | Deallocate():
                t.out.append(Emit(ChangeRefused(t.stream, type(change).__name__, error.message)))
            case _:
                t.claim.lose(error)  # without this change no segment can be started or completed

    # ---- serving ----------------------------------------------------------------------------------------------------

    def serving(self, segment: Segment) -> None:
        """Recovery is over: `segment` takes entries from now on."""
        self._rolling.restart()
        self._expiring.look()
        self._answer_takers(segment.number)
        self._drain()

    def _answer_takers(self, number: SegmentNumber) -> None:
        self._context.out.extend(Answer(ticket, StreamAcquired(self.epoch, number)) for ticket in self._takers)
        self._takers = ()

    def write(self, ticket: Ticket, request: WriteBatch, *, is_confirmed: bool = False) -> None:
        """Admit a batch, queue it, or refuse it. is_confirmed: see dlog/log/deferred_refusals.py."""
        t, taking = self._context, self._takeover
        refusal = self.refusal()
        if t.is_held and request.incarnation not in (None, self.incarnation):
            self._write_of_another_incarnation(ticket, request, is_confirmed=is_confirmed)
        elif taking.table_known and not t.writes_wait and not self.has_ended:
            if not t.writing.admit(ticket, request, refusal, t.out, is_confirmed=is_confirmed):
                self._confirming.defer(ticket, request)
        elif refusal is not None and (self.has_ended or not states_absence_from_log(refusal, request)):
            t.out.append(Answer(ticket, _not_taken(refusal) if self.has_ended else refusal))
        elif taking.early and taking.early_bytes + len(request.body) > t.options.pending_bytes_max:
            t.out.append(Answer(ticket, OverCapacityError("too many bytes wait for this stream's recovery, try later")))
        else:
            taking.early.append((ticket, request))
            taking.early_bytes += len(request.body)

    def defer(self, ticket: Ticket, request: ImportStages) -> None:
        """Judge the request again once the claim is confirmed."""
        self._confirming.defer(ticket, request)

    def judge_confirmed(self, ticket: Ticket, request: Refusable) -> None:
        """Answer or admit a request that came before the read that confirmed the claim."""
        match request:
            case WriteBatch():
                self.write(ticket, request, is_confirmed=True)
            case TruncateBefore(dlsn):
                self._truncating.ask(ticket, dlsn, is_confirmed=True)
            case ImportStages():
                self._importing.ask(ticket, request, is_confirmed=True)

    def _write_of_another_incarnation(self, ticket: Ticket, request: WriteBatch, *, is_confirmed: bool) -> None:
        """Refuse a batch for another incarnation, once metadata, read since, confirms that this one still exists."""
        if is_confirmed:
            text = f"the stream this batch is for was deleted, another one has its name: stream={self._context.stream}"
            self._context.out.append(Answer(ticket, StreamNotFoundError(text)))
        else:
            self._confirming.defer(ticket, request)

    def _check_claim(self) -> None:
        """Read metadata again: another proxy may own the stream."""
        t = self._context
        if t.is_held and not t.register.wants(Refresh):
            t.register.want(Refresh())

    def refusal(self) -> DLogError | None:
        """The error for new writes; None while they are admitted."""
        t = self._context
        match t.phase:
            case Phase.SERVING:  # a seal or a hand-over leads to DRAINING at once
                return self._takeover.obstacle
            case Phase.IDLE:
                return NotReadyError("the stream is not claimed yet, try again")
            case Phase.SEALED | Phase.RELEASING:
                return EndOfStreamError("the stream is sealed and takes no more records")
            case Phase.LOST:
                assert t.claim.error is not None
                return t.claim.error
        if self._sealers:
            return EndOfStreamError("the stream is being sealed and takes no more records")
        if self._releasers or t.phase is Phase.RELEASED:
            return StreamUnavailableError("the stream is being handed over, ask again for its owner")
        return self._takeover.obstacle

    def _is_of_this_incarnation(self, request: Any) -> bool:
        """Whether the request names the owned incarnation of the stream, or none."""
        match request:
            case (
                TruncateBefore()
                | AlterStream()
                | ImportStages()
                | AppendSinkBatch()
                | MoveListedSegment()
                | SealStream()
            ):
                return request.incarnation is None or request.incarnation == self.incarnation
        return True

    def _appended(self, number: int, entry: int) -> None:
        t = self._context
        if t.phase in (Phase.SERVING, Phase.DRAINING):
            self._takeover.calm()
            t.writing.appended(number, entry, t.out)

    def _segment_sealed(self, number: int, last_entry: int) -> None:
        """The store sealed the current segment: go on with what needed it."""
        t = self._context
        if not t.awaits_seal(number):
            return
        segment = t.writing.current
        assert segment is not None
        if last_entry != segment.lac:
            self._trouble()  # the store reports another end than expected: recovery decides
            return
        end = t.writing.end_of_current()
        t.out.append(Emit(LacMoved(t.stream, number, end.last_entry, True)))
        if self._importing.is_sealing:
            self._importing.sealed(segment, end)
            return
        if end.last_entry != NO_ENTRY:
            t.register.want(CompleteSegment(SegmentNumber(number), segment.location, end, t.unix_ms))
        if self._rolling.state is Roll.CLOSING:
            self._rolling.closed(end)
            return
        t.enter(Phase.CLOSING)
        t.writing.lose_segment()
        t.register.want(Refresh() if segment.end_of_stream else MarkReleased())

    # ---- store failures ---------------------------------------------------------------------------------------------

    def _store_failed(self, failed: StoreFailed) -> None:
        t, question, error = self._context, failed.question, failed.error
        match question:
            case AppendEntry(number) | SealSegment(number):
                segment = t.writing.current
                if segment is None or segment.number != number:
                    return
                if error.remedy is Remedy.FIX:
                    t.claim.lose(error)  # a retry would fail in the same way
                else:
                    self._trouble()
            case RecoverSegment() | ReadEntries():
                if error.remedy is Remedy.REOPEN and t.is_held:
                    t.register.want(Refresh())  # the fencing party may have claimed the stream
                self._takeover.handle(failed)
            case CreateSegment():
                t.out += t.allocation.failed()
            case ExamineStage():
                self._importing.failed(question, error)
                return  # what is examined or deleted may be in another store than the one that is written to
            case DeleteSegment():
                self._truncating.deleted(t.disposal.failed(question, error))
                t.out += t.disposal.later()
                return
        is_refused = isinstance(question, CreateSegment) and isinstance(error, MisconfiguredError)
        if is_refused or isinstance(error, StoreTooSmallError | StoreOutOfReachError):
            is_new = self._takeover.obstacle is None
            self._takeover.stall(error)
            if is_new and self._takeover.obstacle is not None:
                self._expiring.look_when_due()

    def _store_lost(self) -> None:
        t = self._context
        unlisted = t.allocation.lost()
        if unlisted is not None:
            t.disposal.add(unlisted)
        t.disposal.lost()
        t.out += t.disposal.later()
        self._importing.lost()
        if t.phase in (Phase.RECOVERING, Phase.SERVING, Phase.DRAINING, Phase.CLOSING):
            self._trouble()

    def _trouble(self) -> None:
        if self.has_ended:
            return  # a change written together with the release shows another writer: nothing is left to recover
        self._rolling.abandon()
        self._takeover.trouble()
        self._importing.abandon()

    # ---- ends -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """If a seal or a hand-over is asked for: admit no more batches. Before SERVING, `refusal` alone does so."""
        t = self._context
        if t.phase is Phase.SERVING and (self._sealers or self._releasers):
            t.enter(Phase.DRAINING)

    def _progress_draining(self) -> None:
        """Sealing or handing over: finish admitted batches, then seal the segment."""
        t, segment = self._context, self._context.writing.current
        if segment is None or t.is_seal_asked:
            return
        if self._rolling.state is not Roll.NONE or not t.writing.is_drained:
            return
        if self._sealers and not segment.end_of_stream:
            t.writing.append_end_of_stream(t.out)
        elif segment.end_of_stream and not segment.lac_is_carried:
            t.writing.append_control(t.out)
        else:
            t.writing.accepts_entries = False
            t.ask_seal()

    def _progress_sealed(self) -> None:
        t = self._context
        t.out.extend(Answer(ticket, None) for ticket in self._sealers)
        self._sealers = ()
        self._importing.progress()
        if self._releasers and t.phase is Phase.SEALED:
            t.enter(Phase.RELEASING)
            t.register.want(MarkReleased())

    def _end_sealed(self) -> None:
        t = self._context
        t.enter(Phase.SEALED)
        self._takeover.stop()
        t.out.append(Emit(StreamSealed(t.stream, t.value.max_segment)))
        self._cancel_timers()
        self._expiring.look()
        self._answer_takers(t.value.max_segment)
        self._takeover.admit_early()
        ended = EndOfStreamError("the stream is sealed and takes no more records")
        t.writing.fail_all(ended, ended, t.out)

    def _end_released(self) -> None:
        t = self._context
        t.enter(Phase.RELEASED)
        t.out.append(Emit(StreamReleased(t.stream, self.epoch)))
        t.out.extend(Answer(ticket, None) for ticket in self._releasers)
        self._releasers = ()
        gone = StreamUnavailableError("the stream was handed over, ask again for its owner")
        self._fail_everybody(gone, gone, gone)

    def _lose(self) -> None:
        """The claim is lost: fail every waiting request."""
        t, error = self._context, self._context.claim.error
        assert error is not None
        certain, was_held = error, t.is_held
        t.enter(Phase.LOST)
        if was_held:
            t.out.append(Emit(ClaimLost(t.stream, self.epoch, error.message)))
            if isinstance(error, OwnedElsewhereError):
                certain = _lost(error)
        self._fail_everybody(certain, ClaimLostError(error.message, location=error.location), _not_taken(certain))

    def _fail_everybody(self, error: DLogError, unknown: DLogError, not_taken: DLogError) -> None:
        """Fail all waiting requests. unknown: for those whose entry or import is in flight. not_taken: for batches that
        are in no entry. error: for all others."""
        t, early = self._context, self._takeover.early
        t.writing.fail_all(not_taken, unknown, t.out)
        self._confirming.fail(error, not_taken)
        t.out.extend(Answer(ticket, not_taken) for ticket, _ in early)
        waiting = [*self._takers, *self._sealers, *self._releasers]
        t.out.extend(Answer(ticket, error) for ticket in waiting)
        self._truncating.fail(error)
        self._altering.fail(unknown)
        self._importing.fail(error, unknown)
        self._takers = self._sealers = self._releasers = ()
        early.clear()
        self._takeover.stop()
        self._cancel_timers()

    def _cancel_timers(self) -> None:
        keys = (AGE_TIMER, RETENTION_TIMER, DUE_TIMER, RECHECK_TIMER, CONTROL_TIMER, recovery.TIMER)
        self._context.out.extend(CancelTimer(key) for key in keys)

    def _stat(self) -> StreamStat:
        t, segment = self._context, self._context.writing.current
        last: DLSN | None = None
        if segment is not None and segment.lac >= 0 and segment.is_drained:
            last = of(segment.number, segment.lac, segment.last_slot)
        return StreamStat(
            self.epoch,
            _STATES.get(t.phase, t.phase.value),
            SegmentNumber(segment.number if segment else 0),
            EntryId(segment.lac if segment else -1),
            last,
            t.writing.written_records,
            t.writing.written_bytes,
            len(t.table),
        )


#: What StreamStat says of the phases that last one write of metadata.
_STATES = {Phase.CLOSING: "draining", Phase.RELEASING: "sealed"}


def _lost(error: DLogError) -> ClaimLostError:
    """The error for a batch that this attempt did not write; an earlier one may have."""
    return ClaimLostError(f"not written, {error.message}", location=error.location, outcome_unknown=False)


def _not_taken(error: DLogError) -> DLogError:
    """The error for a batch after the claim ended. The reason was found before the batch came, so it does not show
    what the log holds now: a final error becomes 504, and a retry is judged by metadata read since."""
    return _lost(error) if error.remedy in (Remedy.FIX, Remedy.STOP, Remedy.REPORT) else error
