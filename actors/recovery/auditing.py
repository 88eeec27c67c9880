"""Runs the auditor: stands for election, and while elected performs the effects of dlog/ledger/auditor.py.

Invariants:
- The state machine exists only while this process is elected and repair is not disabled; at the next election another
  one begins, with every delay.
- A scan keeps one page of ledgers in memory. Of each marked ledger a few numbers are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from actors.recovery.counting import MarkCounter
from actors.recovery.options import RecoveryOptions
from dlog.errors import DLogError, MetadataUnavailableError
from dlog.events import Event
from dlog.io import metrics
from dlog.io.bookie_locations import BookieLocations
from dlog.io.clock import unix_ms
from dlog.io.metadata import LedgerMetadataStore, Membership
from dlog.io.zookeeper_election import AuditorElection
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.ledger.auditor import (
    Auditor,
    AuditorEffect,
    AuditorOptions,
    BookiesListed,
    LedgerMarked,
    LedgersRead,
    MarkLedger,
    Scan,
    ScanEnded,
)
from dlog.ledger.events import AuditorElected
from dlog.ledger.missing_copies import MissingCopies
from dlog.machine import Emit, Refused, SeenOutcome
from dlog.model.ids import LedgerId
from dlog.model.ledger import LedgerKey

_PAGE = 64  # ledgers read, and marked, at the same time
_COUNT_S = 5.0  # between two counts of all marks


class AuditedMetadata(LedgerMetadataStore, Membership, Protocol):
    """The metadata that an audit reads: ledgers, and changes of the registrations."""


class Auditing:
    """The auditor of one process."""

    def __init__(
        self,
        options: RecoveryOptions,
        metadata: AuditedMetadata,
        marks: ZooKeeperUnderreplication,
        election: AuditorElection,
        on_event: Callable[[Event], None],
    ) -> None:
        self._options = options
        self._metadata = metadata
        self._marks = marks
        self._election = election
        self._locations = BookieLocations(metadata)
        self._on_event = on_event
        self._machine: Auditor | None = None  # None: not elected, or repair is disabled
        self._tasks: asyncio.TaskGroup
        self._scanning: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._counter = MarkCounter(marks, self._read)
        self._count_due_s = 0.0

    @property
    def is_auditor(self) -> bool:
        return self._machine is not None

    async def run(self) -> None:
        """Audit whenever elected, for ever."""
        unsubscribe = self._metadata.on_members(self._news.set)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                while True:
                    self._news.clear()
                    await self._look()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._options.look_s):
                            await self._news.wait()
        finally:
            unsubscribe()
            self._locations.close()
            self._stop()

    async def _look(self) -> None:
        """Vote, list registrations, count marks."""
        try:
            if not await self._election.is_elected() or await self._marks.is_disabled():
                self._stop()
                return
            if self._machine is None:
                await self._marks.prepare_delay()
            paused = frozenset(await self._marks.pauses.expire())  # first: a bookie whose return ended one is listed
            registered, delay_s = await self._marks.registered(), await self._marks.lost_bookie_delay_s()
            listed = BookiesListed(_now_s(), registered, float(delay_s), paused)
            counted = await self._count()
        except MetadataUnavailableError:
            if self._machine is not None:
                self._perform(self._machine, self._machine.handle(BookiesListed(_now_s(), None)))
            return
        if self._machine is None:
            options = self._options
            self._machine = Auditor(
                AuditorOptions(
                    lost_after_s=options.lost_after_s,
                    check_s=options.check_s,
                    retry_s=options.retry_s,
                    placement_check_s=options.placement_check_s,
                ),
                self._locations.locate,
            )
            self._on_event(AuditorElected())
        if counted is not None:
            ledgers, age_s = counted
            metrics.UNDER_REPLICATED_LEDGERS.set(ledgers)
            metrics.OLDEST_MARK_SECONDS.set(age_s)
        self._perform(self._machine, self._machine.handle(listed))
        if counted is not None:
            _show_missing(await self._counter.count())

    def _stop(self) -> None:
        self._machine = None
        if self._scanning is not None:
            self._scanning.cancel()
            self._scanning = None
        metrics.UNDER_REPLICATED_LEDGERS.set(0)  # the elected auditor counts
        metrics.OLDEST_MARK_SECONDS.set(0)
        _show_missing(MissingCopies())
        metrics.MISPLACED_LEDGERS.set(0)
        self._count_due_s = 0.0

    async def _count(self) -> tuple[int, float] | None:
        """The number of marks, and the oldest one's age in seconds; None: counted a moment ago."""
        if _now_s() < self._count_due_s:
            return None
        found = await self._counter.read_marks()
        self._count_due_s = _now_s() + _COUNT_S
        age_ms = 0 if found.oldest_ctime_ms is None else unix_ms() - found.oldest_ctime_ms
        return found.ledgers, max(0, age_ms) / 1000

    # ---- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, machine: Auditor, effects: Sequence[AuditorEffect]) -> list[MarkLedger]:
        """Perform effects, except for marks, which the scan performs that caused them."""
        marks: list[MarkLedger] = []
        for effect in effects:
            match effect:
                case Emit(event):
                    self._on_event(event)
                case Scan(number):
                    self._scanning = self._tasks.create_task(self._scan(machine, number), name="audit of all ledgers")
                case MarkLedger():
                    marks.append(effect)
        return marks

    async def _scan(self, machine: Auditor, number: int) -> None:
        reason, page = "", list[LedgerId]()
        try:
            async for ledger in self._metadata.ledgers():
                page.append(ledger)
                if len(page) == _PAGE:
                    await self._judge(machine, number, page)
                    page.clear()
            await self._judge(machine, number, page)
        except DLogError as error:
            reason = error.message
        self._count_due_s = 0.0  # count what was marked
        self._news.set()
        self._perform(machine, machine.handle(ScanEnded(number, reason)))
        metrics.MISPLACED_LEDGERS.set(machine.misplaced)

    async def _judge(self, machine: Auditor, number: int, page: Sequence[LedgerId]) -> None:
        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(self._read(ledger), name=f"audit ledger {ledger}") for ledger in page]
        outcomes = tuple(zip(page, (read.result() for read in reads), strict=True))
        marks = self._perform(machine, machine.handle(LedgersRead(number, outcomes)))
        async with asyncio.TaskGroup() as tasks:
            marking = [tasks.create_task(self._mark(mark), name=f"mark ledger {mark.ledger}") for mark in marks]
        for marked in marking:
            self._perform(machine, machine.handle(marked.result()))

    async def _read(self, ledger: LedgerId) -> SeenOutcome:
        try:
            return await self._metadata.read(LedgerKey(ledger))
        except DLogError as error:
            return Refused(error)

    async def _mark(self, effect: MarkLedger) -> LedgerMarked:
        try:
            is_new = await self._marks.mark(effect.ledger, effect.bookies, unix_ms())
        except DLogError as error:
            return LedgerMarked(effect.scan, effect.ledger, False, error)
        return LedgerMarked(effect.scan, effect.ledger, is_new)


def _show_missing(missing: MissingCopies) -> None:
    metrics.UNDER_REPLICATED_BYTES.set(missing.length)
    metrics.ENTRIES_BELOW_WRITE_QUORUM.set(missing.below_write_quorum)
    metrics.ENTRIES_BELOW_ACK_QUORUM.set(missing.below_ack_quorum)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
