"""When a bookie looks for ledgers that are gone, and whom it asks: performs the rounds of dlog/bookie/collecting.py.

Two kinds of round. A look makes ledgers that are new here count as seen. A collection lists all of metadata. One round
at a time; every answer is handed in before the next question is asked, so no answer of an earlier round is heard by a
later one. A collection is due by time, at once when the machine says so (CollectDue: the disk is nearly full), and when
somebody asks for one; it is the same then.

Beside the rounds, metadata of a new ledger is read at once, before somebody deletes it. Looks read what that missed.

After a collection entry logs are compacted that are mostly of ledgers that are gone, in parts, each followed by a pause
as long as `gc_bytes_s` asks for. Flushes and rounds go on in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from dlog.bookie.bookie import Bookie
from dlog.bookie.collecting import (
    NEVER_SEEN,
    BuryLedgers,
    Collector,
    ContactLost,
    HeardRead,
    KeepMark,
    LedgersHeard,
    LedgersListed,
    LedgersRead,
    LedgersSeen,
    ListLedgers,
    MarkKept,
    MarkRead,
    MarkRecord,
    MarkWritten,
    ReadLedgers,
    ReadMark,
    RoundDue,
    RoundEnded,
    WriteMark,
)
from dlog.bookie.messages import BuryDue, Freed, SeenInMetadata
from dlog.bookie.options import BookieOptions
from dlog.errors import DLogError, MetadataUnavailableError
from dlog.io import metrics
from dlog.io.clock import unix_ms
from dlog.io.metadata import Metadata, SessionState
from dlog.machine import Missing, OutcomeUnknown, Tell, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey
from dlog.wire.bookie import Code, CollectionReport, CollectionState

_AT_ONCE = 64  # reads of ledgers' znodes under way
_PART_BYTES = 4 << 20  # copied between two flushes at most
_SHORT_OF_ROOM_S = 30.0  # between collections while the disk is nearly full
_REPORTS_KEPT = 16  # of the newest collections


class Collection:
    """One bookie's collections.

    due: set by others when a collection is due at once, cleared here as it begins. new: set by others when the machine
    has ledgers that are new, cleared here when they are taken.
    perform: hands a fact to the bookie's machine. keep: puts a record on disk; returns why it could not for want of
    room, raises OSError for any other failure. free: frees what buried ledgers hold. compact: empties logs of which
    less than this share lives by so many bytes; returns the bytes copied, None if there is nothing to do.
    """

    def __init__(
        self,
        options: BookieOptions,
        metadata: Metadata,
        bookie: BookieId,
        machine: Bookie,
        collector: Collector,
        due: asyncio.Event,
        new: asyncio.Event,
        *,
        perform: Callable[[Any], None],
        keep: Callable[[MarkRecord], Awaitable[str]],
        free: Callable[[], Awaitable[Freed]],
        compact: Callable[[float, int], Awaitable[int | None]],
    ) -> None:
        self._options = options
        self._metadata = metadata
        self._bookie = bookie
        self._machine = machine
        self._collector = collector
        self._due = due
        self._new = new
        new.set()  # those that a restart found
        self._perform_fact = perform
        self._keep = keep
        self._free = free
        self._compact = compact
        self._number = 0  # of the collection that runs, or ran last
        self._is_collecting = False
        self._reports: dict[int, CollectionReport] = {}
        self._collected = asyncio.Event()  # since the last compaction
        self._facts: deque[Any] = deque()
        self._unseen: set[int] = set()  # new ledgers that no look was through with yet

    async def run(self) -> None:
        """Look, collect and compact, by time, for ever. Raises OSError when the disk fails."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_compacting(), name="bookie compaction")
            tasks.create_task(self._keep_reading_new(), name="bookie new ledgers")
            await self._keep_collecting()

    async def _keep_collecting(self) -> None:
        unsubscribe = self._metadata.on_state(self._contact)
        loop, options = asyncio.get_running_loop(), self._options
        collected_s = loop.time()
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(options.gc_look_s, options.gc_s)):
                        await self._due.wait()
                wait_s = min(options.gc_s, _SHORT_OF_ROOM_S) if self._machine.is_short_of_room else options.gc_s
                if self._due.is_set() or loop.time() - collected_s >= wait_s:
                    self._due.clear()  # before it begins: what comes meanwhile asks for another one
                    await self.collect()
                    collected_s = loop.time()
                else:
                    await self.look()
        finally:
            unsubscribe()

    async def _keep_compacting(self) -> None:
        loop, options = asyncio.get_running_loop(), self._options
        major_s = loop.time()
        while True:
            await self._collected.wait()
            self._collected.clear()
            share = options.gc_minor_share
            if self._machine.is_short_of_room or loop.time() - major_s >= options.gc_major_s:
                share, major_s = options.gc_major_share, loop.time()
            part_bytes = min(_PART_BYTES, options.gc_bytes_s)
            copied: int | None = 0
            while copied is not None:
                copied = await self._compact(share, part_bytes)
                await asyncio.sleep((copied or 0) / options.gc_bytes_s)

    async def _keep_reading_new(self) -> None:
        """Of each new ledger once; what cannot be read is left to the looks."""
        while True:
            await self._new.wait()
            self._new.clear()
            heard = frozenset(self._machine.take_new())
            self._unseen |= heard
            for effect in self._collector.handle(LedgersHeard(heard)):
                answer = await self._read(effect.ledgers)
                self._collector.handle(HeardRead(answer.present, effect.contact))

    def asked(self, number: int) -> CollectionReport:
        """The answer to a Collect; number 0 makes a collection due unless one runs, or is due already."""
        if number == 0 and self._is_collecting:
            return CollectionReport(self._number, CollectionState.RUNNING)
        if number == 0:
            state = CollectionState.RUNNING if self._due.is_set() else CollectionState.STARTED
            self._due.set()
            return CollectionReport(self._number + 1, state)
        report = self._reports.get(number)
        if report is not None:
            return report
        is_next = number == self._number + 1 and self._due.is_set()
        if is_next or (number == self._number and self._is_collecting):
            return CollectionReport(number, CollectionState.RUNNING)
        return CollectionReport(number, CollectionState.UNKNOWN, code=Code.BAD_REQUEST)

    async def collect(self) -> None:
        """A look, so that ledgers that are new here and gone already can go, too; then one round over all ledgers.

        Also frees what was buried before and is still held.
        """
        self._number += 1
        self._is_collecting = True
        await self.look()
        ended = await self._round(RoundDue(self._machine.known(), collects=True))
        freed = await self._free()
        self._collected.set()
        known = self._machine.known()
        unseen = sum(seen == NEVER_SEEN for seen in known.values())
        metrics.GC_LEDGERS.set(len(known))
        metrics.GC_UNSEEN_LEDGERS.set(unseen)
        metrics.GC_LAST_RUN_SECONDS.set(unix_ms() / 1000)
        is_done = ended.is_complete and not freed.failure
        self._reports[self._number] = CollectionReport(
            self._number,
            CollectionState.DONE if is_done else CollectionState.FAILED,
            freed.ledgers,
            freed.reclaimed_bytes,
            len(known),
            unseen,
            "; ".join(filter(None, (ended.reason, freed.failure))),
        )
        self._reports.pop(self._number - _REPORTS_KEPT, None)
        self._is_collecting = False

    async def look(self) -> None:
        """One round over the ledgers that are new since the last."""
        if self._unseen:
            await self._round(RoundDue(dict.fromkeys(self._unseen, 0), collects=False))

    def _contact(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            return
        if self._collector.is_idle:
            self._collector.handle(ContactLost())
        else:
            self._facts.append(ContactLost())

    async def _round(self, due: RoundDue) -> RoundEnded:
        ended: RoundEnded | None = None
        facts = self._facts
        facts.clear()
        facts.append(due)
        while facts:
            for effect in self._collector.handle(facts.popleft()):
                if isinstance(effect, RoundEnded):
                    ended = effect
                answer = await self._perform(effect)
                if answer is not None:
                    facts.append(answer)
        assert ended is not None, "a round ends when nothing is left to be answered"
        if ended.is_complete:
            self._unseen -= due.known.keys()  # what was missing will be looked for by collections only
        return ended

    async def _perform(self, effect: Any) -> Any:
        match effect:
            case ReadMark():
                return await self._read_mark()
            case ListLedgers(known):
                return await self._list(known)
            case ReadLedgers(ledgers):
                return await self._read(ledgers)
            case KeepMark(record):
                return MarkKept(await self._keep(record))
            case WriteMark(text, version):
                return MarkWritten(await self._metadata.write_mark(self._bookie, text, version))
            case LedgersSeen(ledgers, chain):
                self._perform_fact(SeenInMetadata(ledgers, chain))
            case BuryLedgers(ledgers):
                self._perform_fact(BuryDue(ledgers))
            case Tell():
                self._perform_fact(effect)
        return None

    async def _read_mark(self) -> MarkRead:
        try:
            instance = await self._metadata.instance_id()
            return MarkRead(instance, await self._metadata.read_mark(self._bookie))
        except DLogError as error:
            return MarkRead("", OutcomeUnknown(error.message))

    async def _list(self, known: frozenset[int]) -> LedgersListed:
        present: set[int] = set()
        try:
            async for ledger in self._metadata.ledgers():
                if ledger in known:
                    present.add(ledger)
        except MetadataUnavailableError:
            return LedgersListed(None)
        return LedgersListed(frozenset(present))

    async def _read(self, ledgers: Iterable[int]) -> LedgersRead:
        present: set[int] = set()
        missing: set[int] = set()
        left = sorted(ledgers)

        async def read_next() -> None:
            while left:
                ledger = left.pop()
                try:
                    outcome = await self._metadata.read(LedgerKey(LedgerId(ledger)))
                except MetadataUnavailableError:
                    continue
                except DLogError:  # there is something, whatever it is
                    present.add(ledger)
                    continue
                if isinstance(outcome, Versioned):
                    present.add(ledger)
                elif isinstance(outcome, Missing):
                    missing.add(ledger)

        async with asyncio.TaskGroup() as readers:
            for number in range(min(_AT_ONCE, len(left))):
                readers.create_task(read_next(), name=f"read ledgers {number}")
        return LedgersRead(frozenset(present), frozenset(missing))
