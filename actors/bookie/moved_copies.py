"""Runs the freeing of copies that were moved to other bookies: performs dlog/bookie/moved_copies.py against ZooKeeper,
the other bookies and this bookie's index.

Every `gc_moved_s` it reads the metadata of all ledgers of this bookie. The copies of those that two looks, one after
the other, found moved away are freed.

Invariants:
- nothing is freed while the metadata store's instance id differs from that of the bookie's cookie, or while the store
  lacks this bookie's last mark, because it was restored to an earlier state (dlog/bookie/garbage_collection.py).
- copies of a ledger that the bookie held at such a restore are freed only once metadata has named this bookie for the
  ledger since then: metadata that names other bookies may be of a new ledger with the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dlog.bookie.bookie import Bookie
from dlog.bookie.events import MovedCopiesFreed
from dlog.bookie.garbage_collection import NEVER_SEEN, MarkRecord
from dlog.bookie.messages import CopiesToFree, CopiesToSeal, CopiesToUnseal
from dlog.bookie.moved_copies import (
    CompareCopies,
    CopiesCompared,
    CopiesFreed,
    FreeCopies,
    FreeMoved,
    Locked,
    LockLedger,
    MovedCopies,
    MovedFreed,
    Sealed,
    SealLedger,
    UnlockLedger,
    UnsealLedger,
    is_moved_away,
)
from dlog.bookie.options import BookieOptions
from dlog.errors import DLogError
from dlog.events import Event
from dlog.io import metrics
from dlog.io.metadata import Cookies, LedgerMetadataStore
from dlog.ledger.comparing import Compared
from dlog.machine import Answer, Asked, CompareAndSet, MetadataSeen, OutcomeUnknown, ReadMetadata, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey

_AT_ONCE = 8  # concurrent reads of ledger znodes


class OtherCopies(Protocol):
    """What a bookie asks of the rest of the cluster about one ledger. All raise DLogError."""

    async def lock(self, ledger: LedgerId) -> bool:
        """Take the ledger's lock of the under-replication tree. False: another process has it."""
        ...

    async def unlock(self, ledger: LedgerId) -> None: ...

    async def compare(self, ledger: LedgerId) -> Compared:
        """Compare the copies on the bookies that metadata names."""
        ...


class MarkedLedgers(LedgerMetadataStore, Cookies, Protocol):
    """Metadata of ledgers, and this bookie's mark in it."""


class MovedCopiesCollection:
    """Looks for copies that were moved away from one bookie, and frees them.

    instance: of the cluster, from the bookie's cookie. record: returns its current marks. perform: gives a fact to the
    state machine of the bookie. drop: gives it CopiesToFree, and returns the ledgers whose copies could not be freed,
    once the index is rewritten.
    """

    def __init__(
        self,
        options: BookieOptions,
        metadata: MarkedLedgers,
        bookie: BookieId,
        instance: str,
        machine: Bookie,
        record: Callable[[], MarkRecord],
        others: OtherCopies,
        *,
        perform: Callable[[Any], None],
        drop: Callable[[CopiesToFree], Awaitable[frozenset[LedgerId]]],
        on_event: Callable[[Event], None],
    ) -> None:
        self._options = options
        self._metadata = metadata
        self._bookie = bookie
        self._instance = instance
        self._machine = machine
        self._record = record
        self._moved = MovedCopies(bookie)
        self._others = others
        self._perform_fact = perform
        self._drop = drop
        self._on_event = on_event
        self._before: frozenset[LedgerId] = frozenset()  # found moved away by the last look

    async def run(self) -> None:
        """Look periodically, for ever."""
        while True:
            await asyncio.sleep(self._options.gc_moved_s)
            await self.look()

    async def look(self) -> MovedFreed | None:
        """One look at all ledgers. None: metadata cannot be trusted now."""
        try:
            if await self._metadata.instance_id() != self._instance:
                return None  # garbage collection reports it
            mark = await self._metadata.read_gc_mark(self._bookie)
            record = self._record()
            if not isinstance(mark, Versioned) or mark.value not in (record.mark, record.next):
                return None
            found = await self._find(record.chain)
        except DLogError:
            return None
        due, self._before = found & self._before, found
        if not due:
            return MovedFreed()
        freed = await self._free(tuple(sorted(due)))
        self._before -= due  # those that were kept are found anew
        kept = sum(freed.kept.values())
        why = max(freed.kept, key=lambda reason: freed.kept[reason], default="")
        metrics.GC_MOVED_LEDGERS.inc(freed.ledgers)
        self._on_event(MovedCopiesFreed(freed.ledgers, kept, why))
        return freed

    async def _find(self, chain: int) -> frozenset[LedgerId]:
        """The ledgers of this bookie that are moved away, by their metadata. chain: the current chain of marks."""
        seen = self._machine.known()
        left = [ledger for ledger in self._machine.with_entries() if seen[ledger] in (NEVER_SEEN, chain)]
        found: set[LedgerId] = set()

        async def read_next() -> None:
            while left:
                ledger = LedgerId(left.pop())
                try:
                    outcome = await self._metadata.read(LedgerKey(ledger))
                except DLogError:
                    continue  # it stays
                if isinstance(outcome, Versioned) and is_moved_away(outcome.value, self._bookie):
                    found.add(ledger)

        async with asyncio.TaskGroup() as readers:
            for number in range(min(_AT_ONCE, len(left))):
                readers.create_task(read_next(), name=f"read ledgers {number}")
        return frozenset(found)

    async def _free(self, ledgers: tuple[LedgerId, ...]) -> MovedFreed:
        facts: deque[Any] = deque([Asked(0, FreeMoved(ledgers))])
        while True:
            for effect in self._moved.handle(facts.popleft()):
                if isinstance(effect, Answer):
                    assert isinstance(effect.result, MovedFreed)
                    return effect.result
                answer = await self._perform(effect)
                if answer is not None:
                    facts.append(answer)

    async def _perform(self, effect: Any) -> Any:
        match effect:
            case LockLedger(ledger):
                try:
                    return Locked(ledger, await self._others.lock(ledger))
                except DLogError:
                    return Locked(ledger, False)
            case UnlockLedger(ledger):
                with contextlib.suppress(DLogError):  # the lock ends with the session
                    await self._others.unlock(ledger)
            case ReadMetadata(token, key):
                try:
                    return MetadataSeen(token, await self._metadata.read(key))
                except DLogError as error:
                    return MetadataSeen(token, OutcomeUnknown(error.message))
            case CompareAndSet(token, key, value, version):
                try:
                    return MetadataSeen(token, await self._metadata.compare_and_set(key, value, version))
                except DLogError as error:
                    return MetadataSeen(token, OutcomeUnknown(error.message))
            case CompareCopies(ledger):
                try:
                    return CopiesCompared(ledger, (await self._others.compare(ledger)).doubt)
                except DLogError as error:
                    return CopiesCompared(ledger, error.message)
            case SealLedger(ledger):
                self._perform_fact(CopiesToSeal(ledger))
                return Sealed(ledger, self._machine.is_sealed(ledger))
            case UnsealLedger(ledger):
                self._perform_fact(CopiesToUnseal(ledger))
            case FreeCopies(wanted):
                return CopiesFreed(wanted, await self._drop(CopiesToFree(frozenset(wanted))))
        return None
