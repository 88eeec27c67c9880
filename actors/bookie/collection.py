"""Runs garbage collection of one bookie: performs the rounds of dlog/bookie/garbage_collection.py against ZooKeeper.

There are two kinds of round. A look reads metadata of new ledgers of this bookie. A collection lists all ledgers in
metadata and deletes those of this bookie that are gone. It starts by time, on request, and when the bookie's state
machine asks for it (CollectDue: the disk is nearly full).

Beside the rounds, metadata of a new ledger is read at once, before it can be deleted. Looks read what that missed.

After a collection, entry logs that hold mostly deleted ledgers are compacted in parts, each followed by a pause that
keeps the rate at `gc_bytes_s`. Flushes and rounds go on in between.

Invariants:
- one round runs at a time, and each reply is handled before the next request, so no reply reaches a later round.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from dlog.bookie.bookie import Bookie
from dlog.bookie.garbage_collection import (
    HELD_BEFORE,
    NEVER_SEEN,
    ChainEnded,
    ContactLost,
    DeleteLedgers,
    GarbageCollector,
    LedgersListed,
    LedgersRead,
    LedgersSeen,
    ListLedgers,
    MarkRead,
    MarkRecord,
    MarkStored,
    MarkWritten,
    NewLedgersRead,
    NewLedgersSeen,
    ReadLedgers,
    ReadMark,
    RoundDue,
    RoundEnded,
    StoreMark,
    WriteMark,
)
from dlog.bookie.messages import CollectionResult, LedgersToDelete, SeenInMetadata
from dlog.bookie.options import BookieOptions
from dlog.errors import DLogError, MetadataUnavailableError
from dlog.io import metrics
from dlog.io.clock import unix_ms
from dlog.io.metadata import Cookies, LedgerMetadataStore, SessionState
from dlog.machine import Emit, Missing, OutcomeUnknown, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey
from dlog.wire.bookie import Code, CollectionReport, CollectionState

_AT_ONCE = 64  # concurrent reads of ledger znodes
_PART_BYTES = 4 << 20  # most bytes copied between two flushes
_SHORT_OF_ROOM_S = 30.0  # between collections while the disk is nearly full
_REPORTS_KEPT = 16  # newest reports kept


class CollectionMetadata(LedgerMetadataStore, Cookies, Protocol):
    """The metadata that garbage collection needs: ledgers, and this bookie's mark."""


class GarbageCollection:
    """Garbage collection of one bookie.

    due: set by others when a collection is due at once, cleared here when it begins. new: set by others when the state
    machine has new ledgers, cleared here when they are taken.
    perform: gives a fact to the state machine. keep: writes a record to disk; returns the reason if there is no room,
    raises OSError for other failures. free: frees the space of deleted ledgers. compact: copies at most so many live
    bytes out of logs with a lower live share; returns the bytes copied, None if nothing is left to do.
    """

    def __init__(
        self,
        options: BookieOptions,
        metadata: CollectionMetadata,
        bookie: BookieId,
        machine: Bookie,
        collector: GarbageCollector,
        due: asyncio.Event,
        new: asyncio.Event,
        *,
        perform: Callable[[Any], None],
        keep: Callable[[MarkRecord], Awaitable[str]],
        free: Callable[[], Awaitable[CollectionResult]],
        compact: Callable[[float, int], Awaitable[int | None]],
    ) -> None:
        self._options = options
        self._metadata = metadata
        self._bookie = bookie
        self._machine = machine
        self._collector = collector
        self._due = due
        self._new = new
        new.set()  # for ledgers found at the start
        self._perform_fact = perform
        self._keep = keep
        self._free = free
        self._compact = compact
        self._number = 0  # of the current or last collection
        self._is_collecting = False
        self._reports: dict[int, CollectionReport] = {}
        self._collected = asyncio.Event()  # set by a collection, cleared by the compaction after it
        self._facts: deque[Any] = deque()
        self._unseen: set[int] = set()  # new ledgers that no complete look covered yet

    async def run(self) -> None:
        """Look, collect and compact periodically, for ever. Raises OSError when the disk fails."""
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
                    self._due.clear()  # first: a request during this collection starts another
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
        """Read metadata of each new ledger once; looks cover those that cannot be read."""
        while True:
            await self._new.wait()
            self._new.clear()
            new = frozenset(self._machine.take_new())
            self._unseen |= new
            for effect in self._collector.handle(NewLedgersSeen(new)):
                answer = await self._read(effect.ledgers)
                self._collector.handle(NewLedgersRead(answer.present, effect.contact))

    def asked(self, number: int) -> CollectionReport:
        """The reply to a Collect; number 0 makes a collection due unless one is running or due."""
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
        """A look, so that new ledgers deleted meanwhile can be collected, then one round over all ledgers.

        Also frees space that earlier deleted ledgers still hold.
        """
        self._number += 1
        self._is_collecting = True
        await self.look()
        ended = await self._round(RoundDue(self._machine.known(), collects=True))
        freed = await self._free()
        self._collected.set()
        known = self._machine.known()
        unseen = sum(seen in (NEVER_SEEN, HELD_BEFORE) for seen in known.values())
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
        """One round over ledgers new since the last complete look."""
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
        assert ended is not None, "a round ends with its last reply"
        if ended.is_complete:
            self._unseen -= due.known.keys()  # only collections look for the missing ones from now on
        return ended

    async def _perform(self, effect: Any) -> Any:
        match effect:
            case ReadMark():
                return await self._read_mark()
            case ListLedgers(known):
                return await self._list(known)
            case ReadLedgers(ledgers):
                return await self._read(ledgers)
            case StoreMark(record):
                return MarkStored(await self._keep(record))
            case WriteMark(text, version):
                return MarkWritten(await self._metadata.write_gc_mark(self._bookie, text, version))
            case ChainEnded():
                never = frozenset(number for number, seen in self._machine.known().items() if seen == NEVER_SEEN)
                self._perform_fact(SeenInMetadata(never, HELD_BEFORE))
            case LedgersSeen(ledgers, chain):
                self._perform_fact(SeenInMetadata(ledgers, chain))
            case DeleteLedgers(ledgers):
                self._perform_fact(LedgersToDelete(ledgers))
            case Emit():
                self._perform_fact(effect)
        return None

    async def _read_mark(self) -> MarkRead:
        try:
            instance = await self._metadata.instance_id()
            return MarkRead(instance, await self._metadata.read_gc_mark(self._bookie))
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
        elsewhere: set[int] = set()
        left = sorted(ledgers)

        async def read_next() -> None:
            while left:
                ledger = left.pop()
                try:
                    outcome = await self._metadata.read(LedgerKey(LedgerId(ledger)))
                except MetadataUnavailableError:
                    continue
                except DLogError:  # unreadable, but present
                    present.add(ledger)
                    elsewhere.add(ledger)  # as far as can be known
                    continue
                if isinstance(outcome, Versioned):
                    present.add(ledger)
                    if not any(self._bookie in fragment.ensemble for fragment in outcome.value.fragments):
                        elsewhere.add(ledger)
                elif isinstance(outcome, Missing):
                    missing.add(ledger)

        async with asyncio.TaskGroup() as readers:
            for number in range(min(_AT_ONCE, len(left))):
                readers.create_task(read_next(), name=f"read ledgers {number}")
        return LedgersRead(frozenset(present), frozenset(missing), frozenset(elsewhere))
