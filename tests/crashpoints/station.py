"""A bookie without threads: state machine, journal and ledger directories on a simulated disk, driven step by step."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from dlog.bookie.bookie import Bookie
from dlog.bookie.journal import Record
from dlog.bookie.listing import list_of
from dlog.bookie.messages import (
    CheckpointDue,
    Fetch,
    Fetched,
    Flush,
    Flushed,
    LedgersMarkedDeleted,
    LedgersToDelete,
    ListStored,
    MarkLedgersDeleted,
    PersistRefused,
    StoredListed,
    StoredSummarized,
    SummarizeStored,
)
from dlog.bookie.options import BookieOptions
from dlog.bookie.summaries import summary_of
from dlog.errors import DamagedError
from dlog.events import Event
from dlog.io.bookie_store import OpenedStorage, StoragePaths, open_storage
from dlog.io.disk import NO_SPACE
from dlog.machine import CancelTimer, Emit, Persist, Persisted, Received, Send, SetTimer, TimerFired, Token
from dlog.model.ids import EntryId, LedgerId
from dlog.wire.bookie import AddEntry, BatchRead, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.bookie_v3_messages import WriteLac
from tests.simulation.disk import Image, SimulatedDisk

KEY = b"k" * 20
PATHS = StoragePaths(("/journal",), ("/ledgers0", "/ledgers1"))
TWO_JOURNALS = StoragePaths(("/journal", "/journal1"), PATHS.ledgers)


def packet(ledger: int, entry: int, body: bytes = b"", lac: int | None = None) -> bytes:
    return struct.pack(">qqqq", ledger, entry, entry - 1 if lac is None else lac, 0) + body


def add(ledger: int, entry: int, body: bytes = b"", key: bytes = KEY, **flags: bool) -> AddEntry:
    return AddEntry(LedgerId(ledger), EntryId(entry), key, (packet(ledger, entry, body),), **flags)


def read(ledger: int, entry: int) -> ReadEntry:
    return ReadEntry(LedgerId(ledger), EntryId(entry))


def fence(ledger: int, entry: int, key: bytes = KEY) -> ReadEntry:
    return ReadEntry(LedgerId(ledger), EntryId(entry), True, key)


def batch(ledger: int, start: int, count: int = 0, size: int = 1 << 20) -> BatchRead:
    return BatchRead(LedgerId(ledger), EntryId(start), 77, count, size)


def write_lac(ledger: int, lac: int, digest: bytes = b"", key: bytes = KEY) -> WriteLac:
    return WriteLac(LedgerId(ledger), EntryId(lac), key, struct.pack(">qq", ledger, lac) + digest)


class Station:
    """One process of a bookie. `answers` collects (peer, message) in order; `waiting` holds what waits to be written to
    the journal, `timers` those that run."""

    def __init__(
        self,
        disk: SimulatedDisk,
        options: BookieOptions,
        opened: OpenedStorage | None = None,
        events: list[Event] | None = None,
        *,
        paths: StoragePaths = PATHS,
    ) -> None:
        """opened: storage that the caller has opened already, with its `events`; else it is opened at `paths`."""
        self.disk = disk
        self.events: list[Event] = [] if events is None else events
        self.opened = opened or open_storage(disk, options, paths, "bookie:1", self.events.append)
        self.journals = len(self.opened.journals)
        self.machine = Bookie(
            options,
            self.opened.rows,
            limbo=self.opened.limbo,
            gone=self.opened.dirs.gone(),
            journals=self.journals,
        )
        self.answers: list[tuple[Any, Any]] = []
        self.waiting: list[tuple[int, tuple[Record, ...]]] = []
        self.timers: dict[Token, float] = {}
        self.flushes: list[tuple[Flush | MarkLedgersDeleted, Any]] = []
        self._marks = list(self.opened.marks)
        self._flush_marks = self.opened.marks
        self._flush_number = 0

    def handle(self, fact: Any) -> None:
        for effect in self.machine.handle(fact):
            if isinstance(effect, Send):
                self.answers.append((effect.peer, effect.message))
            elif isinstance(effect, Persist):
                self.waiting.append((effect.token, effect.data))
            elif isinstance(effect, Fetch):
                self._fetch(effect)
            elif isinstance(effect, Flush):
                if effect.number != self._flush_number:
                    self._flush_number, self._flush_marks = effect.number, tuple(self._marks)
                self.flushes.append((effect, self._flush_marks))
            elif isinstance(effect, MarkLedgersDeleted):
                self.flushes.append((effect, None))
            elif isinstance(effect, ListStored):
                listed = list_of(self.opened.dirs.entry_runs(effect.ledger), effect.in_memory, 1000)
                self.handle(StoredListed(effect.token, listed))
            elif isinstance(effect, SummarizeStored):
                summary = summary_of(effect, self.opened.dirs.outlines(effect.wanted.ledger))
                self.handle(StoredSummarized(effect.token, summary))
            elif isinstance(effect, SetTimer):
                self.timers[effect.key] = effect.after_s
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
            elif isinstance(effect, Emit):
                self.events.append(effect.event)

    def ask(self, *requests: Any) -> None:
        for request in requests:
            self.handle(Received("client", request))

    def fire(self) -> None:
        """Let all timers fire."""
        timers, self.timers = self.timers, {}
        for key in timers:
            self.handle(TimerFired(key, 0.0))

    def commit(self, *journals: int) -> None:
        """Do the work of the threads of these journals, of all if none is named: write one group of everything that
        waits for it."""
        for journal in journals or range(self.journals):
            waiting = [one for one in self.waiting if one[0] % self.journals == journal]
            if not waiting:
                continue
            self.waiting = [one for one in self.waiting if one[0] % self.journals != journal]
            try:
                self._marks[journal] = self.opened.journals[journal].write(
                    [record for _, records in waiting for record in records]
                )
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self.handle(PersistRefused(str(error), journal))
                continue
            self.handle(Persisted(waiting[-1][0]))

    def mark_idle(self) -> None:
        for number, journal in enumerate(self.opened.journals):
            try:
                self._marks[number] = journal.write([])
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise

    def checkpoint(self) -> None:
        self.handle(CheckpointDue())
        self.flush()

    def bury(self, *ledgers: int) -> None:
        """Bury ledgers, as metadata says that they are gone."""
        self.handle(LedgersToDelete(frozenset(ledgers)))
        self.flush()

    def compact_some(self, below: float, bytes_max: int) -> bool:
        """Compact for a while. Returns whether there may be more to do."""
        try:
            copied = self.opened.dirs.compact(below, bytes_max)
            self.opened.dirs.merge_runs(self.events.append)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        return copied is not None

    def flush(self) -> None:
        """Do the flush thread's work."""
        while self.flushes:
            if not self._flush_one():
                return
            self._release()
            try:
                self.opened.dirs.merge_runs(self.events.append)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise

    def _release(self) -> None:
        for journal, mark in zip(self.opened.journals, self.opened.dirs.marks(self.journals), strict=True):
            journal.release(mark)

    def flush_only(self) -> None:
        """Do the first part of a flush, during which the journal may go on."""
        while self.flushes and self._flush_one():
            pass

    def _flush_one(self) -> bool:
        flush, marks = self.flushes.pop(0)
        if isinstance(flush, MarkLedgersDeleted):
            return self._bury(flush)
        try:
            self.opened.dirs.flush(flush.entries, flush.rows, marks)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.handle(Flushed(str(error)))
            return False
        self.handle(Flushed())
        return True

    def _bury(self, bury: MarkLedgersDeleted) -> bool:
        failed = self.opened.dirs.bury(bury.ledgers)
        self.handle(LedgersMarkedDeleted(bury.ledgers, frozenset(failed)))
        try:
            self.opened.dirs.collect()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        return True

    def prepare(self) -> None:
        for journal in self.opened.journals:
            try:
                journal.prepare()
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise

    def take_answers(self) -> list[Any]:
        taken, self.answers = self.answers, []
        return [message for _, message in taken]

    def answer(self, request: Any) -> Any:
        """The one answer to a request that needs no journal."""
        self.take_answers()
        self.ask(request)
        (only,) = self.take_answers()
        return only

    def code(self, request: Any) -> Code:
        answer = self.answer(request)
        assert isinstance(answer, EntryAdded | EntryRead)
        return answer.code

    def stored(self, ledger: int, entry: int) -> bytes | Code:
        answer = self.answer(read(ledger, entry))
        return bytes(answer.packet) if answer.code is Code.OK else answer.code

    def _fetch(self, fetch: Fetch) -> None:
        try:
            packets = self.opened.dirs.lookup(fetch.ledger, fetch.entry, fetch.entries_max, fetch.bytes_max)
        except DamagedError as error:
            self.handle(Fetched(fetch.token, (), error.message))
        except OSError as error:
            self.handle(Fetched(fetch.token, (), str(error)))
        else:
            self.handle(Fetched(fetch.token, tuple(packets)))


def fresh(options: BookieOptions, image: Image | None = None, paths: StoragePaths = PATHS) -> Station:
    return Station(SimulatedDisk(image), options, paths=paths)


def messages(answers: Iterable[Any], kind: type[Any]) -> list[Any]:
    return [answer for answer in answers if isinstance(answer, kind)]
