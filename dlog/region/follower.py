"""Follows a region that other processes may own: its state, its newest entries, and the ends of its tables.

A state machine. Its peers are the two topics. It ends tables whose writer is gone, drops those that nobody needs, and
deletes what no table needs, also beside a living owner: all of that are records, and the order of the topic decides.

Invariants:
- What is answered of a table's end was read from the topic up to a record that ends the table. So all who ask get the
  same answer, and nothing that is acknowledged lies behind it. A table that was not found is never begun.
- The front of the data topic is deleted only behind a durable snapshot and a check-point, and only what no table needed
  when they were made.
- A region may be deleted only once a fence with FINAL_EPOCH is in force and no table is left: no owner can begin one
  any more, not even one that opens the region later.
- Records of other programs are passed over; a record of a region that does not decode ends all reading, as the end of
  a table could lie in front of entries that were acknowledged.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlog.errors import DamagedError, DLogError, InvalidRequestError, UnavailableError, UnsupportedVersionError
from dlog.events import RegionCleaned, RegionRecordIgnored
from dlog.machine import Asked, Effect, Fact, PeerLost, Received
from dlog.region.counting import (
    FINAL_EPOCH,
    Checkpoint,
    Item,
    Placed,
    PlacedEntry,
    RegionFence,
    TableDropped,
    TableEnd,
)
from dlog.region.items import ItemReader, Unusable, records_of
from dlog.region.loading import Asking, RegionLoader
from dlog.region.maintenance import tables_that_pin
from dlog.region.messages import (
    AppendRecords,
    AskOffsets,
    CatchUp,
    DeleteBefore,
    OffsetsFound,
    ReadOn,
    ReadRecords,
    RecordsAppended,
    RecordsRead,
    RecoverTable,
    RemoveTable,
    Reply,
    RetireRegion,
    TableFound,
    Topic,
    TrimRegion,
)
from dlog.region.options import FollowerOptions
from dlog.region.outbox import Outbox
from dlog.region.state import RegionState
from dlog.region.topics import OffsetOutOfRangeError
from dlog.wire.region import NONCE_BYTES, ForeignRecordError, RecordKind, RegionRecord, encode_record, encode_snapshot

ENTRY_OVERHEAD_BYTES = 150  # of a kept entry, about
_NO_NONCE = bytes(NONCE_BYTES)


class TableNotFoundError(InvalidRequestError):
    """There is no such table in the region: it was dropped, or it was never begun and cannot be begun any more."""

    code = 565


class Phase(enum.Enum):
    """CLOSED: nothing is known; the next request begins to load."""

    CLOSED = "closed"
    LOADING = "loading"
    FOLLOWING = "following"


TRANSITIONS = {
    Phase.CLOSED: {Phase.LOADING},
    Phase.LOADING: {Phase.FOLLOWING, Phase.CLOSED},
    Phase.FOLLOWING: {Phase.CLOSED},
}


@dataclass(frozen=True, slots=True)
class _Wish:
    """An item that a caller wants in the topic. ticket: gets the error. then: called once everything up to it is
    applied, or more: the topic may be read faster than the answer of the append comes."""

    ticket: int
    item: Item
    then: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Goal:
    """Somebody waits until everything below `upto` is applied."""

    ticket: int
    upto: int
    then: Callable[[], None]


class RecentEntries:
    """The entries that were added last, of all tables, for readers: some bytes of them at most."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._order: deque[tuple[int, int]] = deque()
        self._payloads: dict[tuple[int, int], bytes] = {}

    def add(self, table: int, sequence: int, payload: bytes) -> None:
        """Keep an entry unless it is kept already, and drop the oldest ones if there are too many."""
        if (table, sequence) in self._payloads:
            return
        self._order.append((table, sequence))
        self._payloads[table, sequence] = payload
        self._bytes += len(payload) + ENTRY_OVERHEAD_BYTES
        while self._bytes > self._bytes_max:
            dropped = self._payloads.pop(self._order.popleft())
            self._bytes -= len(dropped) + ENTRY_OVERHEAD_BYTES

    def find(self, table: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """Entries from `first` to `last`, contiguous: at most bytes_max bytes of them, but at least one; none if the
        first one is not kept."""
        found: list[bytes] = []
        while first <= last and (payload := self._payloads.get((table, first))) is not None:
            bytes_max -= len(payload)
            if found and bytes_max < 0:
                break
            found.append(payload)
            first += 1
        return found

    def clear(self) -> None:
        self._order.clear()
        self._payloads.clear()
        self._bytes = 0


class RegionFollower:
    """See the module's docstring. region: its number. nonce: makes a nonce that was never used. state: what is known,
    None before the first request was answered."""

    def __init__(self, region: int, nonce: Callable[[], bytes], options: FollowerOptions) -> None:
        self.phase = Phase.CLOSED
        self.state: RegionState | None = None
        self.recent = RecentEntries(options.recent_bytes)
        self.first = 0  # of the data topic, as far as is known
        self.read_bytes = 0  # of records
        self._region = region
        self._make_nonce = nonce
        self._options = options
        self._out = Outbox()
        self._loader: RegionLoader | None = None
        self._loads = 0  # since the state was last complete
        self._waiting: list[tuple[int, Any]] = []  # requests that wait for the state
        self._reader = ItemReader(region, 0)
        self._is_reading = False
        self._read_upto = 0  # of the read under way: the topic had these offsets before it was asked
        self._goals: list[_Goal] = []
        self._read_ons: list[int] = []  # tickets
        self._wishes: list[_Wish] = []
        self._sent: list[_Wish] = []  # those of the append under way

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Asked(ticket, request):
                self._waiting.append((ticket, request))
            case Received(_, message):
                self._out.receive(message)
            case PeerLost(peer, reason):
                self._out.lost(peer, reason)
        self._settle()
        return self._out.take()

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"no such transition: {self.phase} -> {phase}"
        self.phase = phase

    def _settle(self) -> None:
        """Begin what can begin: loading, requests, an append, a read."""
        if self.phase is Phase.CLOSED and (self._waiting or self._goals or self._wishes or self._read_ons):
            self._load()
        if self.phase is not Phase.FOLLOWING:
            return
        waiting, self._waiting = self._waiting, []
        for ticket, request in waiting:
            self._take(ticket, request)
        if self._wishes and not self._sent:
            self._append()
        if not self._is_reading and (self._goals or self._read_ons):
            self._is_reading = True
            self._read_upto = min((goal.upto for goal in self._goals), default=0)
            question = ReadRecords(self._out.number(), self._reader.offset)
            self._out.ask(Topic.DATA, question, self._read, self._read_failed)

    # ---- requests ----------------------------------------------------------------------------------------------------

    @property
    def _state(self) -> RegionState:
        assert self.state is not None, "a following machine has the state"
        return self.state

    def _take(self, ticket: int, request: Any) -> None:
        match request:
            case CatchUp():
                self._catch_up(ticket, lambda: self._out.answer([ticket], None))
            case ReadOn():
                self._read_ons.append(ticket)
            case RecoverTable(table):
                self._recover(ticket, table)
            case RemoveTable(table):
                self._remove(ticket, table)
            case RetireRegion():
                self._retire(ticket)
            case TrimRegion():
                self._trim(ticket)
            case _:
                raise AssertionError(f"not a request to a follower: {request}")

    def _catch_up(self, ticket: int, then: Callable[[], None]) -> None:
        """Call `then` once everything is applied that the topic has now."""

        known = self._reader.offset

        def end_found(reply: OffsetsFound) -> None:
            if reply.next < known:
                self._out.answer([ticket], self._lost_end_error(reply.next, known))
                return
            self._goals.append(_Goal(ticket, reply.next, then))
            self._check_goals()

        self._out.ask(
            Topic.DATA, AskOffsets(self._out.number()), end_found, lambda error: self._out.answer([ticket], error)
        )

    def _recover(self, ticket: int, table: int) -> None:
        if table in self._state.rule.ended:
            self._answer_end(ticket, table)
        else:  # also if it was never begun: its owner may be about to
            self._wishes.append(_Wish(ticket, TableEnd(table), lambda: self._answer_end(ticket, table)))

    def _answer_end(self, ticket: int, table: int) -> None:
        found = self._state.meta.tables.get(table)
        if table not in self._state.rule.ended:
            self._out.answer([ticket], self._vanished_error())
        elif found is None:
            error = TableNotFoundError(f"no such table, it was never begun or was dropped: table={table}")
            self._out.answer([ticket], error)
        else:
            self._out.answer([ticket], TableFound(found.next_seq_num - 1, found.payload_bytes))

    def _is_removed(self, table: int) -> bool:
        return table in self._state.rule.ended and table not in self._state.meta.tables

    def _remove(self, ticket: int, table: int) -> None:
        if self._is_removed(table):
            self._out.answer([ticket], None)
        else:  # also if it was never begun
            self._wishes.append(_Wish(ticket, TableDropped(table), lambda: self._answer_removed(ticket, table)))

    def _answer_removed(self, ticket: int, table: int) -> None:
        self._out.answer([ticket], None if self._is_removed(table) else self._vanished_error())

    def _vanished_error(self) -> UnavailableError:
        """The topic answered that a record was appended, and everything up to there is read without it."""
        return UnavailableError(f"a record that was appended is not in the topic: region={self._region}")

    def _retire(self, ticket: int) -> None:
        def fence() -> None:
            if self._state.meta.tables:
                self._out.answer([ticket], False)
            elif self._state.rule.epoch == FINAL_EPOCH:
                self._out.answer([ticket], True)
            else:
                self._wishes.append(_Wish(ticket, RegionFence(self._make_nonce(), FINAL_EPOCH), fenced))

        def fenced() -> None:
            state = self._state
            is_final = state.rule.epoch == FINAL_EPOCH
            self._out.answer([ticket], not state.meta.tables if is_final else self._vanished_error())

        self._catch_up(ticket, fence)

    def _trim(self, ticket: int) -> None:
        state = self._state
        for pinning in tables_that_pin(self._region, state, self._options.pinned_records):
            self._out.emit(pinning)
        safe = state.meta.safe_offset
        if safe <= self.first:
            self._out.answer([ticket], None)
            return
        try:
            made = encode_snapshot(state.snapshot())
        except ValueError as error:
            self._out.answer([ticket], InvalidRequestError(str(error)))
            return
        record = RegionRecord(kind=RecordKind.CHECKPOINT, region=self._region, payload=made, nonce=_NO_NONCE)

        def failed(error: DLogError) -> None:
            self._out.answer([ticket], error)

        def saved(_: RecordsAppended) -> None:
            self._wishes.append(_Wish(ticket, Checkpoint(made), delete))

        def delete() -> None:
            self._out.ask(Topic.DATA, DeleteBefore(self._out.number(), safe), deleted, failed)

        def deleted(_: Any) -> None:
            self.first = max(self.first, safe)
            self._out.emit(RegionCleaned(self._region, safe))
            self._out.answer([ticket], safe)

        self._out.ask(Topic.META, AppendRecords(self._out.number(), (encode_record(record),)), saved, failed)

    # ---- loading -----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._enter(Phase.LOADING)
        self._loads += 1
        self._loader = RegionLoader(
            self._region, self._out.number, map_every=self._options.map_every, skipped=(ForeignRecordError,)
        )
        self._ask_loader(self._loader.begin())

    def _ask_loader(self, asking: Asking) -> None:
        topic, question = asking
        self._out.ask(topic, question, self._loaded, self._loading_failed)

    def _loaded(self, reply: Reply) -> None:
        loader = self._loader
        assert loader is not None, "only a loading follower asks"
        try:
            asking = loader.handle(reply)
        except DLogError as error:
            self._loading_failed(error)
            return
        if asking is not None:
            self._ask_loader(asking)
            return
        assert loader.state is not None, "the loader is done"
        for problem in loader.problems:
            self._out.emit(RegionRecordIgnored(self._region, problem))
        self._loader = None
        self._loads = 0
        self.read_bytes += loader.scanned_bytes
        self.state, self.first = loader.state, loader.first
        self.recent.clear()
        self._reader = ItemReader(self._region, self.state.offset)
        self._enter(Phase.FOLLOWING)
        self._check_goals()

    def _loading_failed(self, error: DLogError) -> None:
        self._loader = None
        self._enter(Phase.CLOSED)
        if not isinstance(error, OffsetOutOfRangeError) or self._loads >= self._options.load_attempts:
            self._fail(error)  # else the front was deleted meanwhile: a newer snapshot has the state

    def _fail(self, error: DLogError) -> None:
        """Answer all waiting requests with an error. The records that they wanted to append may be in the topic."""
        self._loads = 0
        tickets = [ticket for ticket, _ in self._waiting]
        tickets += [goal.ticket for goal in self._goals] + self._read_ons + [wish.ticket for wish in self._wishes]
        self._waiting, self._goals, self._read_ons, self._wishes = [], [], [], []
        self._out.answer(tickets, error)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _check_goals(self) -> None:
        if self.phase is not Phase.FOLLOWING:
            return
        offset = self._reader.offset
        reached = [goal for goal in self._goals if goal.upto <= offset]
        self._goals = [goal for goal in self._goals if goal.upto > offset]
        for goal in reached:
            goal.then()

    def _read(self, reply: RecordsRead) -> None:
        self._is_reading = False
        self.read_bytes += sum(len(stored.key) + len(stored.value) for stored in reply.records)
        try:
            for found in self._reader.feed(reply.records):
                self._apply(found)
        except (DamagedError, UnsupportedVersionError) as error:
            self._enter(Phase.CLOSED)  # what was applied of this read is not whole
            self._fail(error)
            return
        if not reply.records:  # what is left of them are offsets without records
            self._reader.offset = max(self._reader.offset, self._read_upto)
        tickets, self._read_ons = self._read_ons, []
        self._out.answer(tickets, bool(reply.records))
        self._check_goals()

    def _apply(self, found: Placed | Unusable) -> None:
        if isinstance(found, ForeignRecordError):
            self._out.emit(RegionRecordIgnored(self._region, found.message))
        elif isinstance(found, DLogError):
            raise found
        else:
            self._keep(self._state.apply(found))

    def _keep(self, counting: tuple[PlacedEntry, ...]) -> None:
        for _, entry in counting:
            if entry.sequence:
                self.recent.add(entry.table, entry.sequence, entry.payload)

    def _read_failed(self, error: DLogError) -> None:
        self._is_reading = False
        if isinstance(error, OffsetOutOfRangeError):
            self._enter(Phase.CLOSED)
            if error.next < self._reader.offset:
                self._fail(self._lost_end_error(error.next, self._reader.offset))
            # else the front was deleted before this machine read it: load again
        else:
            self._fail(error)

    def _lost_end_error(self, end: int, known: int) -> DamagedError:
        return DamagedError(
            f"the data topic ends before what was read of it, as if it was deleted and created again: "
            f"region={self._region} end={end} read={known}"
        )

    # ---- appending ---------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        """Append what all callers want, together."""
        self._sent, self._wishes = self._wishes, []
        epoch = self._state.rule.epoch
        records = [one for wish in self._sent for one in records_of(self._region, epoch, _NO_NONCE, wish.item)]
        question = AppendRecords(self._out.number(), tuple(records))
        self._out.ask(Topic.DATA, question, self._appended, self._append_failed)

    def _appended(self, reply: RecordsAppended) -> None:
        sent, self._sent = self._sent, []
        for number, wish in enumerate(sent, 1):
            self._goals.append(_Goal(wish.ticket, reply.offset + number, wish.then))
        self._check_goals()

    def _append_failed(self, error: DLogError) -> None:
        sent, self._sent = self._sent, []
        self._out.answer([wish.ticket for wish in sent], error)
