"""Workers that give marked ledgers their copies again.

A worker locks a marked ledger, has the lost bookies' copies made on other bookies, and deletes the mark. A marked
bookie that is registered keeps its place: its copies are read, and missing ones are written again. If one of them does
not match the ledger's digest, the bookie is replaced, for it never overwrites a copy.

The last ensemble of a ledger that is not closed belongs to its writer, which replaces a lost bookie when it appends
next. After `open_grace_s` the ledger is fenced and recovered instead.

Invariants:
- A ledger is fenced only while other bookies could replace all lost ones of its last ensemble: otherwise its
  writer would be stopped, no copy made, and perhaps no new ledger could be created.
- No copy of a bookie is moved while its planned restart is not over: it may be back in a moment. A ledger that lacks
  only such bookies waits; one that lost others, too, is repaired for those, and keeps its mark.
- A mark is deleted only after a repair that left nothing out; after a failure it stays, an event says why, and the
  ledger waits: `backoff_s`, doubled after each further failure. If it failed for want of bookies, the wait ends as soon
  as bookies can be read or written that could not, all together, in any attempt that failed so: one that comes and
  goes, or changes between writable and read-only, ends it once.
- A worker that ends anywhere leaves a lock that ends with the session; nothing else needs cleaning up.
- A ledger that fails does not keep others waiting: all marked ledgers are listed in turn, CANDIDATES_MAX at once.
- State is kept of the ledgers that failed or wait, PUT_OFF_MAX at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from actors.recovery.options import RecoveryOptions
from dlog.errors import DLogError, LedgerNotFoundError, MetadataUnavailableError, UnavailableError
from dlog.events import Event
from dlog.io import metrics
from dlog.io.zookeeper_underreplication import MarkedLedger, ZooKeeperUnderreplication
from dlog.ledger.events import EntriesUnreadable, MarkCompleted, RepairFailed
from dlog.ledger.repair import OPEN_LEDGER, Repaired
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import Fragment, LedgerMetadata
from dlog.model.verification import BadRange, Verified

CANDIDATES_MAX = 500  # marked ledgers that are listed at once
PUT_OFF_MAX = 10_000  # ledgers whose failures are remembered
STATES_MAX = 4  # sets of bookies with which a ledger failed that are told apart

_NO_BOOKIE = (
    "the ledger's mark names no bookie, as Java's check of placement policies writes it: let Java's AutoRecovery move "
    "its copies, or delete the mark (docs/operations.md)"
)
_OPEN = (
    "a bookie of its last ensemble is back and lacks entries: it gets them once the ledger's writer has closed the "
    "ledger or replaced the bookie; nothing has to be done"
)
_MORE = "more ranges of copies are missing on bookies that are back than one verification lists; the rest follows"
_GRACE = "its writer may still replace the lost bookie"
_NO_REPLACEMENT = (
    "no bookie can replace the lost ones of its last ensemble, start more where its placement policy allows them; the "
    "ledger stays open for its writer"
)


#: What bookies are there for: (bookie, False) if it can be read, also (bookie, True) if it can be written
BookieStates = frozenset[tuple[BookieId, bool]]


class RepairableLedgers(Protocol):
    """The calls of a ledger client (dlog/io/ledgers.py) that a worker needs."""

    async def metadata_of(self, ledger: LedgerId) -> LedgerMetadata: ...

    async def verify(self, ledger: LedgerId) -> Verified: ...

    async def repair(
        self, ledger: LedgerId, gone: frozenset[BookieId], *, bad: tuple[BadRange, ...] = ()
    ) -> Repaired: ...

    async def can_replace(self, metadata: LedgerMetadata, gone: frozenset[BookieId]) -> bool: ...

    async def recover(self, ledger: LedgerId) -> object: ...

    def available_bookies(self) -> frozenset[tuple[BookieId, bool]]: ...


@dataclass(slots=True)
class _PutOff:
    """A ledger that failed or waits."""

    failures: int = 0
    not_before_s: float = 0.0
    #: The bookies with which it failed, if others might help
    bookies_at_failure: tuple[BookieStates, ...] = ()
    open_since_s: float | None = None  # when its last ensemble, not closed, was first found with a lost bookie
    #: last ensemble of an open ledger, and bookies that are back and have all their copies below it
    verified_below: tuple[Fragment, frozenset[BookieId]] | None = None
    unreadable: int = 0

    def is_due(self, now_s: float, available: BookieStates) -> bool:
        failed = self.bookies_at_failure
        return self.not_before_s <= now_s or (bool(failed) and not any(available <= states for states in failed))

    def note_failure(self, available: BookieStates | None) -> None:
        """An attempt failed with these bookies, so fewer will not do. None: others would not help."""
        if available is None:
            self.bookies_at_failure = ()
        elif not any(available <= states for states in self.bookies_at_failure):
            failed = [states for states in self.bookies_at_failure if not states <= available]
            if len(failed) == STATES_MAX:
                failed[:2] = [failed[0] | failed[1]]  # too many to tell apart: as if it had failed with both
            self.bookies_at_failure = (*failed, available)


class RepairWorkers:
    """The workers of one process."""

    def __init__(
        self,
        options: RecoveryOptions,
        marks: ZooKeeperUnderreplication,
        ledgers: RepairableLedgers,
        on_event: Callable[[Event], None],
        rng: random.Random,
    ) -> None:
        self._options = options
        self._marks = marks
        self._ledgers = ledgers
        self._on_event = on_event
        self._rng = rng
        self._choosing = asyncio.Lock()
        self._candidates: deque[LedgerId] = deque()
        self._listed_to: LedgerId | None = None  # the next list begins behind it; None: at the lowest id
        self._list_due_s = 0.0
        self._put_off: dict[LedgerId, _PutOff] = {}
        self._available: BookieStates = frozenset()
        self.repairing = 0  # ledgers

    async def run(self) -> None:
        """Repair what is marked, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._options.workers):
                tasks.create_task(self._work(), name=f"repair worker {number}")

    async def _work(self) -> None:
        while True:
            marked = await self._take()
            if marked is None:
                await asyncio.sleep(self._options.look_s)
                continue
            self.repairing += 1
            try:
                await self._repair(marked)
            finally:
                self.repairing -= 1
            with contextlib.suppress(MetadataUnavailableError):  # the lock is taken over by the next attempt
                await self._marks.release(marked.ledger)

    # ---- choosing ----------------------------------------------------------------------------------------------------

    async def _take(self) -> MarkedLedger | None:
        """Lock a marked ledger that is due; None: there is none now."""
        async with self._choosing:
            try:
                if not self._candidates:
                    await self._list()
                while self._candidates:
                    if await self._marks.is_disabled():
                        self._candidates.clear()
                        break
                    marked = await self._marks.lock(self._candidates.popleft())
                    if marked is not None:
                        return marked
            except MetadataUnavailableError:
                self._candidates.clear()
        return None

    async def _list(self) -> None:
        """List marked ledgers that are due and not locked, at most every `look_s`."""
        now_s = _now_s()
        if now_s < self._list_due_s:
            return
        self._list_due_s = now_s + self._options.look_s
        if await self._marks.is_disabled():
            return
        locked = await self._marks.locked()
        available = self._look_available()
        found: list[LedgerId] = []
        seen: set[LedgerId] = set()
        async for ledger in self._marked():
            put_off = self._put_off.get(ledger)
            if put_off is not None:
                seen.add(ledger)
            if ledger not in locked and (put_off is None or put_off.is_due(now_s, available)):
                found.append(ledger)
                if len(found) == CANDIDATES_MAX:
                    self._listed_to = ledger
                    break
        else:
            self._listed_to = None
            for ledger in self._put_off.keys() - seen:
                self._forget(ledger)  # repaired by another process, or deleted
        self._rng.shuffle(found)  # so that processes seldom try the same one
        self._candidates.extend(found)

    def _look_available(self) -> BookieStates:
        """The registered bookies now; the same object as before if they have not changed."""
        registered = self._ledgers.available_bookies()
        now = registered.union((bookie, False) for bookie, _ in registered)
        if now != self._available:
            self._available = now
        return self._available

    async def _marked(self) -> AsyncIterator[LedgerId]:
        """All marked ledgers once, from the one behind the last list on."""
        begin = self._listed_to
        async for ledger in self._marks.marked(begin):
            yield ledger
        if begin is None:
            return
        async for ledger in self._marks.marked():
            if ledger > begin:
                return
            yield ledger

    # ---- repairing ---------------------------------------------------------------------------------------------------

    async def _repair(self, marked: MarkedLedger) -> None:
        """Try to repair a locked ledger; complete its mark or put it off."""
        ledger, available = marked.ledger, self._look_available()
        try:
            total = await self._attempt(marked, available)
            if total is None:
                return
            is_complete = await self._marks.complete(marked)
        except LedgerNotFoundError:
            with contextlib.suppress(MetadataUnavailableError):
                await self._marks.complete(marked)
            self._forget(ledger)
        except DLogError as error:
            self._fail(ledger, error.message, available if isinstance(error, UnavailableError) else None)
        else:
            self._forget(ledger)
            if is_complete:  # else it is marked anew, and soon repaired again
                metrics.REPAIRED_LEDGERS.inc()
                self._on_event(MarkCompleted(ledger, total.copied_entries, total.copied_bytes))

    async def _attempt(self, marked: MarkedLedger, available: BookieStates) -> Repaired | None:
        """Repair the ledger; None: it is put off. available: the registered bookies when the attempt began. Raises
        DLogError."""
        ledger = marked.ledger
        if marked.mark is None:
            self._fail(ledger, self._marks.damage(ledger))
            return None
        bookies = frozenset(marked.mark.bookies)
        if not bookies:
            self._fail(ledger, _NO_BOOKIE)
            return None
        paused = bookies & (await self._marks.pauses.current()).keys()  # first: one that came back is registered
        registered = await self._marks.registered()
        gone, back, paused = bookies - registered - paused, bookies & registered, paused - registered
        total = Repaired(ledger)
        if paused and not gone:
            self._stop_grace(ledger)
            self._wait(replace(total, waits=_paused(paused)), available)
            return None
        if gone:
            total = await self._add(total, gone)
        if total.waits:
            total = await self._end_writing(total, gone)
        else:
            self._stop_grace(ledger)
        if back:
            total = await self._complete_copies(total, back)
        if paused:
            total = replace(total, waits=total.waits or _paused(paused))
        if total.unreadable:
            self._report_unreadable(total, available)
        elif total.waits:
            self._wait(total, available)
        elif not back <= await self._marks.registered():
            self._fail(ledger, "a bookie that was back was lost again during the repair")
        else:
            return total
        return None

    async def _end_writing(self, total: Repaired, gone: frozenset[BookieId]) -> Repaired:
        """Repair the last ensemble of an open ledger, which is recovered first, or say what it waits for."""
        ledger = total.ledger
        metadata = await self._ledgers.metadata_of(ledger)
        lost = frozenset[BookieId]()
        if not metadata.is_closed:
            lost = frozenset(metadata.fragments[-1].ensemble) - await self._marks.registered()
        if not lost & gone:
            self._stop_grace(ledger)
        elif waits := await self._why_not_recover(metadata, ledger, lost):
            return replace(total, waits=waits)
        else:
            await self._ledgers.recover(ledger)
        return await self._add(replace(total, unreadable=(), waits=""), gone)  # it reports what is unreadable again

    async def _why_not_recover(self, metadata: LedgerMetadata, ledger: LedgerId, lost: frozenset[BookieId]) -> str:
        """Why an open ledger that lost bookies of its last ensemble is not fenced yet; empty: it may be. The grace
        begins when a bookie is there that its writer can take."""
        if not await self._ledgers.can_replace(metadata, lost):
            self._stop_grace(ledger)
            return f"{_NO_REPLACEMENT}: bookies={','.join(sorted(lost))}"
        put_off, now_s = self._state(ledger), _now_s()
        if put_off.open_since_s is None:
            put_off.open_since_s = now_s
        return _GRACE if now_s < put_off.open_since_s + self._options.open_grace_s else ""

    async def _complete_copies(self, total: Repaired, back: frozenset[BookieId]) -> Repaired:
        """Write again what bookies lack that are back. All entries are read for that; but not once more while only the
        same last ensemble of the open ledger waits."""
        ledger = total.ledger
        metadata = await self._ledgers.metadata_of(ledger)
        verified_below = None if metadata.is_closed else (metadata.fragments[-1], back)
        put_off = self._put_off.get(ledger)
        if put_off is not None and verified_below is not None and put_off.verified_below == verified_below:
            return replace(total, waits=total.waits or OPEN_LEDGER)
        verified = await self._ledgers.verify(ledger)
        wrong = frozenset(found.bookie for found in verified.ranges if found.is_wrong and found.bookie in back)
        bad = tuple(found for found in verified.ranges if found.bookie in back - wrong)
        done = await self._add(total, frozenset(), bad) if bad else total
        if wrong:
            replaced = await self._add(done, wrong)
            done = replace(replaced, waits=done.waits or replaced.waits)
        if any(bookie in back for bookie, _ in verified.omitted):
            return replace(done, waits=_MORE)
        done = replace(done, waits=total.waits or done.waits)
        if done.waits and done.unreadable == total.unreadable:
            self._state(ledger).verified_below = verified_below
        return done

    async def _add(self, before: Repaired, gone: frozenset[BookieId], bad: tuple[BadRange, ...] = ()) -> Repaired:
        """Repair once, and return the result with the copies of this attempt's earlier repairs added."""
        repaired = await self._ledgers.repair(before.ledger, gone, bad=bad)
        metrics.REPAIRED_ENTRIES.inc(repaired.copied_entries)
        metrics.REPAIRED_BYTES.inc(repaired.copied_bytes)
        return replace(
            repaired,
            copied_entries=before.copied_entries + repaired.copied_entries,
            copied_bytes=before.copied_bytes + repaired.copied_bytes,
            replaced=(*before.replaced, *repaired.replaced),
            unreadable=(*before.unreadable, *repaired.unreadable),
        )

    def _stop_grace(self, ledger: LedgerId) -> None:
        """The writer of an open ledger has the whole grace when it next has to replace a bookie."""
        put_off = self._put_off.get(ledger)
        if put_off is not None:
            put_off.open_since_s = None

    def _wait(self, total: Repaired, available: BookieStates) -> None:
        """Put off a ledger that has to wait; within its writer's grace that is no failure."""
        put_off = self._state(total.ledger)
        if total.waits == _GRACE and put_off.open_since_s is not None:
            put_off.not_before_s = put_off.open_since_s + self._options.open_grace_s
            put_off.note_failure(None)
        else:
            reason = _OPEN if total.waits == OPEN_LEDGER else total.waits
            self._fail(total.ledger, reason, None if reason in (_OPEN, _MORE) else available)

    def _report_unreadable(self, repaired: Repaired, available: BookieStates) -> None:
        first = repaired.unreadable[0]
        entries = sum(found.last - found.first + 1 for found in repaired.unreadable)
        self._on_event(EntriesUnreadable(repaired.ledger, first.first, first.last, first.bookie, entries, first.reason))
        self._fail(repaired.ledger, f"no replica can serve some of its entries: {first.reason}", available)
        put_off = self._state(repaired.ledger)
        metrics.UNREADABLE_ENTRIES.inc(entries - put_off.unreadable)
        put_off.unreadable = entries

    # ---- what failed -------------------------------------------------------------------------------------------------

    def _fail(self, ledger: LedgerId, reason: str, available: BookieStates | None = None) -> None:
        """Put off a ledger. available: the bookies that were registered, if others might help; else None."""
        put_off = self._state(ledger)
        put_off.note_failure(available)
        again_s = min(self._options.backoff_max_s, self._options.backoff_s * 2.0**put_off.failures)
        again_s *= self._rng.uniform(0.75, 1.0)
        put_off.failures = min(put_off.failures + 1, 30)
        put_off.not_before_s = _now_s() + again_s
        self._on_event(RepairFailed(ledger, reason, round(again_s, 1)))

    def _state(self, ledger: LedgerId) -> _PutOff:
        put_off = self._put_off.get(ledger)
        if put_off is None:
            if len(self._put_off) >= PUT_OFF_MAX:
                last_due = max(self._put_off, key=lambda other: self._put_off[other].not_before_s)
                self._forget(last_due)  # it is tried too early; most others keep their turn
            put_off = self._put_off[ledger] = _PutOff()
        return put_off

    def _forget(self, ledger: LedgerId) -> None:
        put_off = self._put_off.pop(ledger, None)
        if put_off is not None:
            metrics.UNREADABLE_ENTRIES.inc(-put_off.unreadable)


def _paused(bookies: frozenset[BookieId]) -> str:
    return f"a planned restart is not over (`dlog bookie pause`): bookies={','.join(sorted(bookies))}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
