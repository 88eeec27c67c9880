"""Owns a region: opens it, and appends what callers write. Snapshots and deletions are in maintenance.py.

A state machine. Its peers are the two topics (`Topic`); each answers questions in any order, late, or not at all.

Invariants:
- A write is answered as written only if the counting rule, applied to every offset up to the write, counts it.
- One append to the data topic is under way at a time. If its outcome is unknown, a new fence under a new nonce ends
  everything sent before; the topic up to that fence shows whether the append is in it. If not, it is sent again with
  the same sequences.
- Once another owner's fence is in force, nothing more is acknowledged.
- Once the data topic refuses this owner (OwnerRefusedError), it appends nothing more, and ends. It looks for the other
  owner's fence first, which shows whether its append is in the topic.
- With format 0 there is no fence of this owner: in its place the topic is read to its end. An append that is not found
  there is sent again with the same sequences; of two copies the first one counts. If another writer's record has one of
  these sequences, this owner ends.

Source: HoraeDB's write-ahead log on Kafka; the fences are our own (docs/decisions/0037).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from dlog.errors import (
    DamagedError,
    DLogError,
    FencedError,
    InvalidRequestError,
    Remedy,
    UnavailableError,
    UnsupportedVersionError,
)
from dlog.events import (
    RegionAppendInDoubt,
    RegionFenced,
    RegionOpened,
    RegionRecordIgnored,
)
from dlog.machine import Asked, Effect, Fact, PeerLost, Received, SetTimer, TimerFired
from dlog.region.counting import (
    FINAL_EPOCH,
    Batch,
    Checkpoint,
    Item,
    Placed,
    PlacedEntry,
    PlainEntry,
    RegionFence,
    RegionWriter,
    TableDropped,
    TableEnd,
)
from dlog.region.items import ItemReader, records_of
from dlog.region.loading import UNUSABLE, Asking, RegionLoader
from dlog.region.maintenance import Maintenance
from dlog.region.messages import (
    AppendRecords,
    AskOffsets,
    AwaitWrites,
    BeginTable,
    CleanRegion,
    DropTable,
    EndTable,
    FindStart,
    MarkDeleted,
    OffsetsFound,
    OpenRegion,
    ReadRecords,
    RecordsAppended,
    RecordsRead,
    Reply,
    SaveSnapshot,
    Topic,
    WriteEntries,
)
from dlog.region.options import RegionOptions
from dlog.region.outbox import Outbox
from dlog.region.reading import find_start
from dlog.region.state import RegionState
from dlog.region.topics import OffsetOutOfRangeError, OwnerRefusedError
from dlog.region.waiting import Append, End, TableEndedError, WaitingAppends
from dlog.wire.region import NONCE_BYTES


class RegionFencedError(FencedError):
    """This process no longer owns the region: another owner opened it, it was retired, or its topic is lost. The
    message says which. A write that gets this error is not in the region, unless `outcome_unknown`."""

    code = 563
    outcome_unknown = False


class Phase(enum.Enum):
    """CLOSED: not opened, or the opening failed. FENCING: the owner appends its fence and reads up to it, when it opens
    the region and after an append of unknown outcome. DEPOSED: final."""

    CLOSED = "closed"
    LOADING = "loading"
    FENCING = "fencing"
    SERVING = "serving"
    DEPOSED = "deposed"


TRANSITIONS = {
    Phase.CLOSED: {Phase.LOADING},
    Phase.LOADING: {Phase.FENCING, Phase.CLOSED, Phase.LOADING},
    Phase.FENCING: {Phase.SERVING, Phase.DEPOSED, Phase.LOADING, Phase.CLOSED},
    Phase.SERVING: {Phase.FENCING, Phase.DEPOSED},
    Phase.DEPOSED: set[Phase](),
}


class RegionOwner:
    """See the module's docstring. region: its number, part of every key. nonce: makes a nonce that was never used.
    skips: open the region though records cannot be decoded, and leave them out."""

    def __init__(self, region: int, nonce: Callable[[], bytes], options: RegionOptions, *, skips: bool = False) -> None:
        self.phase = Phase.CLOSED
        self.state = RegionState(map_every=options.map_every)
        self._region = region
        self._make_nonce = nonce
        self._skips = skips
        self._why_ended = "another owner opened the region, open it again to take it back"
        self._options = options
        self._out = Outbox()
        self._maintenance = Maintenance(region, options, self._out)
        self._opening: list[int] = []  # tickets
        self._attempts = 0
        self._loader: RegionLoader | None = None
        self._is_plain = False  # writes entries in version 0
        self._nonce = b""
        self._nonces: set[bytes] = set()  # of all fences of this owner
        self._waiting = WaitingAppends(options, self._out)
        self._append: Append | None = None
        self._is_refused = False  # the data topic takes no more appends of this owner
        self._refused_reads = 0
        self._is_found = False  # the append under way was found while the topic was read up to a new fence
        self._found: tuple[PlacedEntry, ...] = ()
        self._found_ends: set[int] = set()  # tables that this owner's records ended, found likewise
        self._idle_tickets: list[int] = []  # that wait until no write is waiting or under way

    @property
    def is_deposed(self) -> bool:
        """Whether this owner has ended, see RegionFencedError."""
        return self.phase is Phase.DEPOSED

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Asked(ticket, request):
                self._take(ticket, request)
            case Received(_, message):
                self._out.receive(message)
            case PeerLost(peer, reason):
                self._out.lost(peer, reason)
            case TimerFired("retry"):
                self._retry()
        self._settle()
        return self._out.take()

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"no such transition: {self.phase} -> {phase}"
        self.phase = phase

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _take(self, ticket: int, request: Any) -> None:
        match request:
            case OpenRegion():
                self._take_opening(ticket)
            case _ if self.phase is Phase.DEPOSED:
                self._out.answer([ticket], self._fenced_error())
            case _ if self.phase in (Phase.CLOSED, Phase.LOADING) or self._opening:
                self._out.answer([ticket], UnavailableError(f"the region is not open: region={self._region}"))
            case WriteEntries(entries, sequence):
                assert sequence is None or (sequence > 0 and len(entries) == 1), "a sequence is of one entry"
                self._waiting.add_write(ticket, entries, sequence)
            case BeginTable() | EndTable() if self._is_plain:
                why = "tables are begun and ended by records of version 1, open the region with format 1"
                self._out.answer([ticket], InvalidRequestError(f"{why}: region={self._region}"))
            case BeginTable(table, payload):
                assert table not in self.state.meta.tables, f"a table is begun once: table={table}"
                self._waiting.add_write(ticket, ((table, payload),), 0)
            case EndTable(table):
                self._waiting.add_end(ticket, table)
            case AwaitWrites():
                self._idle_tickets.append(ticket)
            case MarkDeleted(table, below):
                self._mark(ticket, table, below)
            case DropTable(table):
                self._drop(ticket, table)
            case SaveSnapshot():
                self._maintenance.save(ticket)
            case CleanRegion():
                self._maintenance.clean(ticket, self.state)
            case FindStart():
                self._find_start(ticket, request)
            case _:
                raise AssertionError(f"not a request to a region: {request}")

    def _take_opening(self, ticket: int) -> None:
        if self.phase is Phase.DEPOSED:
            self._out.answer([ticket], self._fenced_error())
        elif self.phase is Phase.CLOSED:
            self._opening.append(ticket)
            self._attempts = 0
            self._load()
        elif self._opening:
            self._opening.append(ticket)
        else:
            self._out.answer([ticket], None)

    def _mark(self, ticket: int, table: int, below: int) -> None:
        try:
            self.state.meta.known(table).mark_deleted(below)
        except InvalidRequestError as error:
            self._out.answer([ticket], error)
            return
        self._maintenance.marked()
        self._out.answer([ticket], None)

    def _drop(self, ticket: int, table: int) -> None:
        try:
            known = self.state.meta.known(table)
        except InvalidRequestError as error:
            self._out.answer([ticket], error)
            return
        known.mark_deleted(known.next_seq_num)
        self._maintenance.drop(ticket)

    def _find_start(self, ticket: int, request: FindStart) -> None:
        try:
            self._out.answer([ticket], find_start(self.state, self._maintenance.first, request))
        except InvalidRequestError as error:
            self._out.answer([ticket], error)

    # ---- opening -----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._enter(Phase.LOADING)
        self._attempts += 1
        self._loader = RegionLoader(
            self._region, self._out.number, map_every=self._options.map_every, skipped=UNUSABLE if self._skips else ()
        )
        self._ask_loader(self._loader.begin())

    def _ask_loader(self, asking: Asking) -> None:
        topic, question = asking
        self._out.ask(topic, question, self._loaded, self._opening_failed)

    def _loaded(self, reply: Reply) -> None:
        loader = self._loader
        assert loader is not None, "only a loading owner asks"
        try:
            asking = loader.handle(reply)
        except DLogError as error:
            self._opening_failed(error)
            return
        if asking is not None:
            self._ask_loader(asking)
            return
        assert loader.state is not None, "the loader is done"
        self.state = loader.state
        self._maintenance.opened(loader.first, loader.snapshots, loader.scanned_bytes)
        for problem in loader.problems:
            self._out.emit(RegionRecordIgnored(self._region, problem))
        self._loader = None
        format_ = self._options.format
        self._is_plain = self.state.is_plain if format_ is None else format_ == 0
        self._enter(Phase.FENCING)
        self._fence()

    def _opening_failed(self, error: DLogError) -> None:
        can_retry = error.remedy is Remedy.RETRY or isinstance(error, OffsetOutOfRangeError)
        if can_retry and self._attempts < self._options.open_attempts:
            self._out.add(SetTimer("retry", self._options.retry_s))
            return
        tickets, self._opening = self._opening, []
        self._enter(Phase.CLOSED)
        self._out.answer(tickets, error)

    def _retry(self) -> None:
        if self._opening:
            self._load()
        elif self.phase is Phase.FENCING:
            self._fence()

    # ---- fencing -----------------------------------------------------------------------------------------------------

    def _fence(self) -> None:
        """Append a fence under a new nonce, and read the topic up to it. Behind a final fence it would be void."""
        if self._is_refused:
            self._out.ask(Topic.DATA, AskOffsets(self._out.number()), self._end_found, self._fencing_failed)
            return
        if self.state.rule.epoch == FINAL_EPOCH:
            if self._opening:
                self._opening_failed(self._fenced_error())
            else:
                self._depose(is_known=True)
            return
        if self._is_plain:
            self._nonce = bytes(NONCE_BYTES)  # of check-points and snapshots
            self._out.ask(Topic.DATA, AskOffsets(self._out.number()), self._end_found, self._fencing_failed)
            return
        self._nonce = self._make_nonce()
        self._nonces.add(self._nonce)
        epoch = self.state.rule.epoch + 1
        fence = RegionFence(self._nonce, epoch)
        records = tuple(records_of(self._region, epoch, self._nonce, fence))

        def appended(reply: RecordsAppended) -> None:
            if self._reaches_state(reply.offset):
                self._scan(reply.offset + 1, self._apply_scanned, self._fence_read)

        self._out.ask(Topic.DATA, AppendRecords(self._out.number(), records), appended, self._fencing_failed)

    def _end_found(self, reply: OffsetsFound) -> None:
        """In place of a fence, with format 0 or if the topic would refuse one: read the topic to its end."""
        if self._reaches_state(reply.next):
            self._scan(reply.next, self._apply_scanned, self._fence_read)

    def _reaches_state(self, end: int) -> bool:
        """Whether the data topic ends at or behind what was read of it; else the opening or fencing fails."""
        if end >= self.state.offset:
            return True
        self._fencing_failed(
            DamagedError(
                f"the data topic ends before what was read of it, as if it was deleted and created again: "
                f"end={end} read={self.state.offset}"
            )
        )
        return False

    def _fencing_failed(self, error: DLogError) -> None:
        if self._opening:
            self._opening_failed(self._fenced_error() if isinstance(error, OwnerRefusedError) else error)
        elif isinstance(error, OwnerRefusedError):
            self._is_refused = True
            self._fence()
        elif error.remedy in (Remedy.FIX, Remedy.REPORT):
            # another owner deleted what this one has not read, its records are of a newer release, or the topic is gone
            if not isinstance(error, OffsetOutOfRangeError):
                self._why_ended = error.message
            self._depose(is_known=False)
        elif self.phase is Phase.SERVING:
            self._doubt(error)
        else:
            self._out.add(SetTimer("retry", self._options.retry_s))

    def _apply_scanned(self, placed: Placed) -> None:
        append, item = self._append, placed[1]
        if isinstance(item, TableEnd) and self._is_own_end(item, item.table):
            self._found_ends.add(item.table)
        counting = self.state.apply(placed)
        if append is not None and isinstance(item, Batch) and item in append.items and counting:
            self._is_found, self._found = True, counting
        elif append is not None and isinstance(item, PlainEntry) and item in append.items:
            self._found += counting
            self._is_found = len(self._found) == len(append.items)

    def _is_own_end(self, item: Item, table: int) -> bool:
        """Whether an item behind the state is this owner's record that ends a table, not another one before."""
        is_own = isinstance(item, TableEnd) and item.table == table and item.nonce in self._nonces
        return is_own and table not in self.state.rule.ended

    def _fence_read(self) -> None:
        """The topic is read up to the fence, or to its end."""
        if self._is_refused:
            self._refused_read()
        elif self._is_plain:
            self._plain_read()
        elif self.state.rule.nonce == self._nonce:
            self._serve()
        elif self._opening and self._attempts < self._options.open_attempts:
            self._attempts += 1  # another owner opens at the same time
            self._fence()
        elif self.state.rule.nonce in self._nonces:
            self._fence()  # an earlier attempt of this owner came first
        elif self._opening:
            self._opening_failed(self._fenced_error())
        else:
            self._depose(is_known=True)

    def _refused_read(self) -> None:
        """The topic is read to its end, and refuses this owner. The other owner's fence may not be visible yet; if it
        does not come, the next opening decides on the append under way."""
        rule = self.state.rule
        is_known = bool(rule.nonce) and rule.nonce not in self._nonces
        if is_known or self._append is None or self._is_found or self._refused_reads >= self._options.open_attempts:
            self._depose(is_known=is_known)
        else:
            self._refused_reads += 1
            self._out.add(SetTimer("retry", self._options.retry_s))

    def _plain_read(self) -> None:
        if self._append is not None and not self._is_found and self._found:
            self._end_plain()
        elif not self.state.rule.nonce:
            self._serve()
        elif self._opening:
            why = "a fence is in the region, so no record of version 0 counts any more, open it with format 1"
            self._opening_failed(InvalidRequestError(f"{why}: region={self._region}"))
        else:
            self._depose(is_known=True)

    def _serve(self) -> None:
        self._enter(Phase.SERVING)
        tickets, self._opening = self._opening, []
        if tickets:
            self._out.emit(RegionOpened(self._region, self.state.rule.epoch, self.state.offset))
            self._out.answer(tickets, None)
        append, self._append = self._append, None
        if append is None:
            return
        if self._is_found:
            self._finish(append, self._found)
            return
        if self._is_plain and append.writes:
            self._send_append(append)  # before all others, as no fence keeps the first copy from counting
            return
        ends = self._finish_found_ends(append)
        self._waiting.put_back([*(write for write, _ in append.writes), *ends])
        self._maintenance.checkpoint_undone(append.drops)

    def _finish_found_ends(self, append: Append) -> list[End]:
        """Answer the ends that were found while the topic was read up to a new fence; returns the others."""
        others: list[End] = []
        for end in append.ends:
            if end.table in self._found_ends:
                self._finish_end(end)
            else:
                others.append(end)
        return others

    def _depose(self, *, is_known: bool) -> None:
        """End this owner. is_known: the topic was read up to another's fence, so what was appended is known."""
        self._enter(Phase.DEPOSED)
        self._out.emit(RegionFenced(self._region, self.state.rule.epoch))
        append, self._append = self._append, None
        if append is not None and self._is_found:
            self._finish(append, self._found)
        elif append is not None:
            error = self._fenced_error() if is_known else self._fenced_error(outcome_unknown=True)
            ends = self._finish_found_ends(append)
            tickets = [*(write.ticket for write, _ in append.writes), *(end.ticket for end in ends), *append.drops]
            self._out.answer(tickets, error)
        tickets = self._waiting.take_all() + self._idle_tickets
        self._idle_tickets = []
        self._out.answer(tickets, self._fenced_error())
        self._maintenance.end(self._fenced_error())

    def _fenced_error(self, *, outcome_unknown: bool = False) -> RegionFencedError:
        why = "the region was retired, use another one" if self.state.rule.epoch == FINAL_EPOCH else self._why_ended
        return RegionFencedError(f"{why}: region={self._region}", outcome_unknown=outcome_unknown)

    # ---- reading the data topic --------------------------------------------------------------------------------------

    def _scan(self, upto: int, each: Callable[[Placed], None], then: Callable[[], None]) -> None:
        """Read the data topic from the state's offset up to `upto`."""
        reader = ItemReader(self._region, self.state.offset, upto)

        def go_on() -> None:
            if reader.offset >= upto:
                then()
                return
            self._out.ask(Topic.DATA, ReadRecords(self._out.number(), reader.offset), read, self._fencing_failed)

        def read(reply: RecordsRead) -> None:
            for found in reader.feed(reply.records):
                if isinstance(found, DamagedError):  # of another program: all records of owners decode
                    self._out.emit(RegionRecordIgnored(self._region, found.message))
                    continue
                try:
                    if isinstance(found, UnsupportedVersionError):
                        raise found
                    each(found)  # a check-point may be of a newer release, too
                except UnsupportedVersionError as error:
                    self._fencing_failed(error)
                    return
            if not reply.records:
                reader.offset = upto
            go_on()

        go_on()

    # ---- appending ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Begin what can begin: a snapshot, an append, a deletion."""
        if self.phase is not Phase.SERVING:
            return
        self._maintenance.settle(self.state, self._nonce)
        if self._append is not None:
            return
        if self._maintenance.wants_checkpoint:
            item, drops = self._maintenance.checkpoint(self.state)
            self._send_append(Append((item,), drops=drops))
        while self._append is None and self._waiting:
            append = self._waiting.next_append(self.state, self._writer, is_plain=self._is_plain)
            if append is not None:
                self._send_append(append)
        if self._append is None:
            idle, self._idle_tickets = self._idle_tickets, []
            self._out.answer(idle, None)

    @property
    def _writer(self) -> RegionWriter:
        return RegionWriter(self._nonce, self.state.rule, self.state.offset)

    def _send_append(self, append: Append) -> None:
        self._append, self._is_found, self._found, self._found_ends = append, False, (), set()
        try:
            epoch = self.state.rule.epoch
            records = tuple(one for item in append.items for one in records_of(self._region, epoch, self._nonce, item))
        except ValueError as error:
            self._append_failed(InvalidRequestError(str(error)))
            return
        self._maintenance.logged(sum(len(key) + len(value) for key, value in records))
        question = AppendRecords(self._out.number(), records)
        self._out.ask(Topic.DATA, question, self._appended, self._append_failed)

    def _append_failed(self, error: DLogError) -> None:
        append = self._append
        assert append is not None, "an append is under way"
        if error.remedy is Remedy.FIX and not error.outcome_unknown:  # refused, so it never will be there
            self._append = None
            if isinstance(append.items[0], Checkpoint):
                self._maintenance.checkpoint_refused(append.drops, error)
            else:
                self._out.answer(append.tickets, error)
            return
        self._is_refused = isinstance(error, OwnerRefusedError)
        self._doubt(error)

    def _doubt(self, error: DLogError) -> None:
        """The append under way may be in the topic, or may get there: end it by a new fence."""
        self._out.emit(RegionAppendInDoubt(self._region, error.message))
        self._enter(Phase.FENCING)
        self._fence()

    def _appended(self, reply: RecordsAppended) -> None:
        append = self._append
        assert append is not None, "an append is under way"
        others: list[Placed] = []
        if reply.offset < self.state.offset:
            self._doubt(UnavailableError(f"the topic answered an offset in the past: offset={reply.offset}"))
        elif reply.offset == self.state.offset:
            self._take_offset(append, reply.offset, others)
        else:
            self._scan(reply.offset, others.append, lambda: self._take_offset(append, reply.offset, others))

    def _take_offset(self, append: Append, offset: int, others: list[Placed]) -> None:
        """The append lies at an offset, and everything in front of it is known."""
        if self._is_plain:
            self._take_plain(append, offset, others)
            return
        self._found_ends = set()
        for end in append.ends:
            if end.table not in self._found_ends and not self._had_ended(end.table, others):
                self._found_ends.add(end.table)
        own: tuple[PlacedEntry, ...] = ()
        for number, item in enumerate(append.items):
            writer, own, counting = self._writer.appended(item, offset + number, () if number else others)
            self.state.rule, self.state.offset = writer.rule, writer.expected
            self.state.add(counting)
        for _, item in others:
            self.state.note(item)
        is_deposed = self._writer.is_deposed
        if not is_deposed or own or append.ends:
            self._append = None
            self._finish(append, own)
        if is_deposed:
            self._depose(is_known=True)

    def _take_plain(self, append: Append, offset: int, others: list[Placed]) -> None:
        """`_take_offset` with format 0. A first copy of the append may lie among the others."""
        for placed in (*others, *((offset + number, item) for number, item in enumerate(append.items))):
            self._apply_scanned(placed)
        is_fenced, expected = bool(self.state.rule.nonce), self._expected(append)
        if len(self._found) < expected:
            self._end_plain()
            return
        if expected or not is_fenced:
            self._append = None
            self._finish(append, self._found)
        if is_fenced:
            self._depose(is_known=True)

    def _expected(self, append: Append) -> int:
        """How many entries of an append in version 0 count if there is no other writer."""
        ended = self.state.rule.ended
        return sum(isinstance(item, PlainEntry) and item.entry.table not in ended for item in append.items)

    def _end_plain(self) -> None:
        """Not all entries of an append in version 0 count: end."""
        self._is_found = False
        if not self.state.rule.nonce:
            self._why_ended = "another process writes the region in version 0, see that only one does"
        self._depose(is_known=not self._found)

    def _had_ended(self, table: int, others: list[Placed]) -> bool:
        """Whether a table had ended in front of an append that ends it, but not by an earlier copy of it."""
        ends = [item for _, item in others if isinstance(item, TableEnd | TableDropped) and item.table == table]
        return table in self.state.rule.ended or (bool(ends) and not self._is_own_end(ends[0], table))

    def _finish(self, append: Append, counting: tuple[PlacedEntry, ...]) -> None:
        """Answer an append whose fate is known."""
        item = append.items[0]
        if isinstance(item, Batch) and len(counting) == len(item.entries) and not append.has_beginning:
            for write, sequences in append.writes:
                self._out.answer([write.ticket], sequences)
            return
        counted = {(entry.table, entry.sequence): offset for offset, entry in counting}
        for write, sequences in append.writes:
            missing = [
                table
                for (table, _), sequence in zip(write.entries, sequences, strict=True)
                if (table, sequence) not in counted
            ]
            if missing:
                self._out.answer([write.ticket], TableEndedError(f"the table has ended: table={missing[0]}"))
            elif write.begins:
                self._out.answer([write.ticket], counted[write.entries[0][0], 0])
            else:
                self._out.answer([write.ticket], sequences)
        if isinstance(append.items[0], Checkpoint):
            self._maintenance.checkpoint_appended(append.drops)
        for end in append.ends:
            self._finish_end(end)

    def _finish_end(self, end: End) -> None:
        """Answer the end of a table: the first caller, if this owner's record ended it."""
        found = self.state.meta.tables.get(end.table)
        if found is None or end.table not in self._found_ends:
            self._out.answer([end.ticket], TableEndedError(f"the table has ended: table={end.table}"))
        else:
            self._found_ends.discard(end.table)
            self._out.answer([end.ticket], found.next_seq_num - 1)
