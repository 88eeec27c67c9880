"""When a bookie looks for ledgers that are gone, and whom it asks: performs the rounds of dlog/bookie/collecting.py.

Two kinds of round. A look reads metadata of ledgers that are new here, so that they count as seen before somebody
deletes them. A collection lists all of metadata. One round at a time; every answer is handed in before the next
question is asked, so no answer of an earlier round is ever heard by a later one. A collection is due by time, and at
once when the machine says so (CollectDue: the disk is nearly full).

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
    KeepMark,
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
from dlog.bookie.messages import BuryDue, SeenInMetadata
from dlog.bookie.options import BookieOptions
from dlog.errors import DLogError, MetadataUnavailableError
from dlog.io import metrics
from dlog.io.clock import unix_ms
from dlog.io.metadata import Metadata, SessionState
from dlog.machine import Missing, OutcomeUnknown, Tell, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey

_AT_ONCE = 64  # reads of ledgers' znodes under way
_PART_BYTES = 4 << 20  # copied between two flushes at most
_SHORT_OF_ROOM_S = 30.0  # between collections while the disk is nearly full


class Collection:
    """One bookie's collections.

    due: set by others when a collection is due at once, cleared here as it begins.
    perform: hands a fact to the bookie's machine. keep: puts a record on disk; returns why it could not for want of
    room, raises OSError for any other failure. compact: empties logs of which less than this share lives by so many
    bytes; returns the bytes copied, None if there is nothing to do.
    """

    def __init__(
        self,
        options: BookieOptions,
        metadata: Metadata,
        bookie: BookieId,
        machine: Bookie,
        collector: Collector,
        due: asyncio.Event,
        *,
        perform: Callable[[Any], None],
        keep: Callable[[MarkRecord], Awaitable[str]],
        compact: Callable[[float, int], Awaitable[int | None]],
    ) -> None:
        self._options = options
        self._metadata = metadata
        self._bookie = bookie
        self._machine = machine
        self._collector = collector
        self._due = due
        self._perform_fact = perform
        self._keep = keep
        self._compact = compact
        self._collected = asyncio.Event()  # since the last compaction
        self._facts: deque[Any] = deque()
        self._unseen: set[int] = set()  # new ledgers that a look has not been able to see yet

    async def run(self) -> None:
        """Look, collect and compact, by time, for ever. Raises OSError when the disk fails."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_compacting(), name="bookie compaction")
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

    async def collect(self) -> None:
        """One round over all ledgers; also frees what was buried before and is still held."""
        self._machine.take_new()
        self._unseen.clear()
        await self._round(RoundDue(self._machine.known(), collects=True))
        self._perform_fact(BuryDue(frozenset()))
        self._collected.set()
        known = self._machine.known()
        metrics.GC_LEDGERS.set(len(known))
        metrics.GC_UNSEEN_LEDGERS.set(sum(seen == NEVER_SEEN for seen in known.values()))
        metrics.GC_LAST_RUN_SECONDS.set(unix_ms() / 1000)

    async def look(self) -> None:
        """One round over the ledgers that are new since the last."""
        self._unseen |= self._machine.take_new()
        if self._unseen:
            await self._round(RoundDue(dict.fromkeys(self._unseen, 0), collects=False))

    def _contact(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED and not self._collector.is_idle:
            self._facts.append(ContactLost())

    async def _round(self, due: RoundDue) -> None:
        facts = self._facts
        facts.clear()
        facts.append(due)
        while facts:
            for effect in self._collector.handle(facts.popleft()):
                answer = await self._perform(effect)
                if answer is not None:
                    facts.append(answer)

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
            case RoundEnded(is_complete):
                if is_complete:
                    self._unseen.clear()  # what was missing will be looked for by collections only
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
