"""Takes a stopped bookie out of a cluster: its ledgers are repaired on other bookies, then metadata forgets it.

Invariants:
- The bookie is forgotten only after a scan of all ledgers in which none named it, while it was not registered from
  before the scan on; so a bookie that is forgotten holds nothing that is needed.
- It registers, in every session, in one transaction that fails without its cookie and raises the cookie's version. The
  cookie is deleted in one that fails if it is registered, or if that version is not the one of before the scan. So one
  that is forgotten never serves again. (Java's bookies look at their cookie at their start only.)
- Nothing but marks and the bookie's own znodes is changed, so it may be interrupted anywhere and run again.
- Each look reads anew what the ledgers wait for. Failures of repairs are only in the memory of workers: of a ledger
  without another reason to wait it reports only that no worker has locked any ledger for `_IDLE_LOOKS` looks.

Source: BookKeeper `BookKeeperAdmin.decommissionBookie`, which does not say why it waits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from dlog.errors import DamagedError, DLogError, InvalidRequestError
from dlog.io.bookie_locations import BookieLocations
from dlog.io.clock import unix_ms
from dlog.io.metadata import LedgerMetadataStore
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_underreplication import PAGE, ZooKeeperUnderreplication
from dlog.ledger.placement_policy import RANDOM, PlacementPolicy, policy_of
from dlog.ledger.repair import decided_last
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.machine import Missing, OutcomeUnknown, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum

LOOK_S = 1.0  # between two looks at the marks
NAMED_MAX = 3  # ledgers that are named of those that wait for the same
_SCAN_LOOKS = 30  # looks until all ledgers are read again though marks are left, or though nothing was marked
_LOOKED_AT_MAX = 10_000  # ledgers whose marks are read by one look; the others count as left
_IDLE_LOOKS = 5  # without a lock of any worker, until ledgers are said to have failed

_UNREAD = "their metadata cannot be read (dlog ledger ls names them)"
_UNMARKED = "they could not be marked for repair; the first one: {}"
_LOCKED = "a worker has locked them and makes their copies"
_DISABLED = "repair is switched off for the cluster"
_NO_RECOVERY = "no recovery process runs, start one: dlog recovery run"
_BAD_MARK = "their marks in ZooKeeper cannot be read or decoded, delete these marks (docs/operations.md)"
_NO_SOURCE = "no bookie with copies of some of their entries is registered, start one (dlog ledger show names them)"
_NO_REPLACEMENT = (
    "no bookie can take their copies, start more where their placement policy allows them, or free disks: writable={}"
)
_OPEN = (
    "they are open: a writer that is alive replaces the bookie when it appends next, else a recovery process closes "
    "them after its open_grace_s (30 s unless set)"
)
_TURN = "they wait for a worker"
_IDLE = (
    "no worker has locked them: those that failed are tried again within minutes, and the event repair.failed of a "
    "recovery process says why they did (dlog ledger verify shows their copies)"
)


class StillRegisteredError(InvalidRequestError):
    """The bookie is registered: it must be stopped before it is taken out of the cluster."""


@dataclass(frozen=True, slots=True)
class WaitingLedgers:
    """Ledgers that wait for the same reason. first: the lowest ids, at most NAMED_MAX. is_moving: workers are repairing
    them or will do so next; otherwise they wait until what `reason` names is done."""

    reason: str
    ledgers: int
    first: tuple[LedgerId, ...]
    is_moving: bool = False


@dataclass(frozen=True, slots=True)
class Draining:
    """What is still to do. ledgers: that name the bookie, or whose metadata cannot be read. total: the most that were
    left at a time. waiting: the ledgers by what they wait for, most first."""

    ledgers: int
    total: int
    waiting: tuple[WaitingLedgers, ...]


@dataclass(frozen=True, slots=True)
class Decommissioned:
    """The result. ledgers: that named the bookie at first. was_known: whether the cluster had the bookie at all."""

    ledgers: int
    was_known: bool = True


class _EnsembleUse(NamedTuple):
    """An ensemble with the bookie, as one or more ledgers have it. is_written: it is the last ensemble of a ledger that
    is not closed. holders: otherwise, the write sets of the entries that the bookie should hold."""

    quorum: Quorum
    policy: PlacementPolicy
    ensemble: tuple[BookieId, ...]
    is_written: bool
    holders: frozenset[frozenset[BookieId]]


@dataclass(slots=True)
class _Scanned:
    """Result of reading the metadata of all ledgers, in order of their ids. named: ledgers that name the bookie and are
    not known to be repaired, with how they use it. unmarked: those of them that could not be marked, with the error.
    unread: ledgers whose metadata cannot be read."""

    named: dict[LedgerId, tuple[_EnsembleUse, ...]] = field(default_factory=dict)
    unmarked: dict[LedgerId, str] = field(default_factory=dict)
    unread: list[LedgerId] = field(default_factory=list)


async def decommission(
    metadata: ZooKeeperMetadata, bookie: BookieId, progress: Callable[[Draining], None], *, look_s: float = LOOK_S
) -> Decommissioned:
    """Have all ledgers of the bookie repaired, wait until none names it, and delete its cookie. A bookie without a
    cookie that no ledger names is not known: there is nothing to do.

    progress: called with each change. Repeatable; cancelling stops the wait only, repair goes on.
    Raises StillRegisteredError, also if the bookie comes back meanwhile, and MetadataUnavailableError.
    """
    marks = metadata.underreplication("decommission")
    await marks.prepare()
    locations = BookieLocations(metadata)
    try:
        first: int | None = None
        was_known = False
        diagnosis = _Diagnosis(metadata, marks, bookie, locations, progress)
        while True:
            cookie = await metadata.read_cookie(bookie)
            await check_stopped(marks, bookie)
            await marks.pauses.end(bookie)  # nothing is copied while a planned restart lasts
            scanned = await _mark_ledgers(metadata, marks, bookie)
            first = len(scanned.named) if first is None else first
            was_known = was_known or bool(scanned.named) or isinstance(cookie, Versioned)
            if not scanned.named and not scanned.unread:
                if await forget_stopped(metadata, marks, bookie, cookie):
                    return Decommissioned(first, was_known)
                continue
            was_marked = len(scanned.named) > len(scanned.unmarked)
            for _ in range(_SCAN_LOOKS):
                await diagnosis.look(scanned)
                await asyncio.sleep(look_s)
                if was_marked and len(scanned.named) == len(scanned.unmarked):
                    break
                await check_stopped(marks, bookie)
    finally:
        locations.close()


async def check_stopped(marks: ZooKeeperUnderreplication, bookie: BookieId) -> None:
    """Raises StillRegisteredError."""
    if bookie in await marks.registered():
        raise StillRegisteredError(
            f"the bookie is registered, stop it first (a killed one is registered for another 10 s): bookie={bookie}"
        )


async def forget_stopped(
    metadata: ZooKeeperMetadata, marks: ZooKeeperUnderreplication, bookie: BookieId, cookie: Versioned | Missing
) -> bool:
    """Delete the cookie of a bookie that no ledger names. cookie: as it was before the ledgers were read. Returns False
    if the bookie was registered since then: read them again. Raises StillRegisteredError if it still is."""
    if not await metadata.forget_bookie(bookie, cookie):
        await check_stopped(marks, bookie)
        return False
    await marks.pauses.end(bookie)
    return True


async def _mark_ledgers(metadata: ZooKeeperMetadata, marks: ZooKeeperUnderreplication, bookie: BookieId) -> _Scanned:
    """Read all ledgers, and mark those that name the bookie."""
    scanned = _Scanned()
    #: one object for equal uses: a bookie has many ledgers and few ensembles
    known: dict[_EnsembleUse, _EnsembleUse] = {}
    async for ledger, value in ledgers_naming(metadata, bookie):
        if value is None:
            scanned.unread.append(ledger)
            continue
        uses = dict.fromkeys(_uses(value, bookie))
        scanned.named[ledger] = tuple(known.setdefault(use, use) for use in uses)
        try:
            await marks.mark(ledger, {bookie}, unix_ms())
        except DamagedError:
            pass  # each look sees that
        except DLogError as error:
            scanned.unmarked[ledger] = error.message
    return scanned


def _uses(value: LedgerMetadata, bookie: BookieId) -> Iterable[_EnsembleUse]:
    """How the ensembles of a ledger use the bookie."""
    quorum, policy = value.quorum, policy_of(value)
    for number, part in enumerate(value.fragments):
        if bookie not in part.ensemble:
            continue
        last = decided_last(value, number)
        entries = range(part.first_entry, part.first_entry if last is None else last + 1)[: quorum.ensemble]
        sets = (frozenset(part.ensemble[i] for i in quorum.write_set(entry)) for entry in entries)
        with_bookie = frozenset(held for held in sets if bookie in held)
        yield _EnsembleUse(quorum, policy, part.ensemble, last is None, with_bookie)


async def ledgers_naming(
    metadata: LedgerMetadataStore, bookie: BookieId
) -> AsyncGenerator[tuple[LedgerId, LedgerMetadata | None]]:
    """All ledgers that name the bookie, and with None those whose metadata cannot be read. Raises
    MetadataUnavailableError if ledgers cannot be listed."""
    async for ledger in metadata.ledgers():
        try:
            outcome = await metadata.read(LedgerKey(ledger))
        except DLogError:
            yield ledger, None
            continue
        if isinstance(outcome, OutcomeUnknown):
            yield ledger, None
        elif isinstance(outcome, Versioned):
            value: LedgerMetadata = outcome.value
            if any(bookie in part.ensemble for part in value.fragments):
                yield ledger, value


class _Diagnosis:
    """Finds out what the ledgers of a bookie wait for. One for all scans of a decommission."""

    def __init__(
        self,
        metadata: ZooKeeperMetadata,
        marks: ZooKeeperUnderreplication,
        bookie: BookieId,
        locations: BookieLocations,
        progress: Callable[[Draining], None],
    ) -> None:
        self._metadata = metadata
        self._marks = marks
        self._bookie = bookie
        self._locations = locations
        rng = random.Random(0)  # which bookies it would choose does not matter
        self._placement = SpreadPlacement(RANDOM, locations.writable, locations.locate, rng)
        self._progress = progress
        self._reported: Draining | None = None
        self._total = 0
        self._idle_looks = 0  # in a row, in which no worker had locked any ledger

    async def look(self, scanned: _Scanned) -> None:
        """Take out of `scanned` the ledgers whose mark is gone, and report what the others wait for."""
        undecoded = await self._note_marks(scanned)
        locked = await self._marks.locked()
        self._idle_looks = 0 if locked else self._idle_looks + 1
        for_all = ""
        if await self._marks.is_disabled():
            for_all = _DISABLED
        elif not await self._marks.has_recovery_process():
            for_all = _NO_RECOVERY
        writable = len((await self._metadata.members()).writable)  # read again: the cached list may be old
        reasons = {use: self._obstacle(use, writable) for uses in scanned.named.values() for use in uses}
        found: dict[str, list[LedgerId]] = {_UNREAD: scanned.unread}
        unmarked = _UNMARKED.format(next(iter(scanned.unmarked.values()), ""))
        for ledger, uses in scanned.named.items():
            if ledger in locked:
                reason = _LOCKED
            elif ledger in scanned.unmarked:
                reason = unmarked
            elif for_all or ledger in undecoded:
                reason = for_all or _BAD_MARK
            else:
                reason = next(filter(None, map(reasons.__getitem__, uses)), "")
                reason = reason or (_IDLE if self._idle_looks > _IDLE_LOOKS else _TURN)
            found.setdefault(reason, []).append(ledger)
        self._report(found)

    async def _note_marks(self, scanned: _Scanned) -> set[LedgerId]:
        """Remove ledgers that have no mark for the bookie any more from `scanned.named`; the next scan reads their
        metadata again. Returns the ledgers whose mark cannot be read or decoded."""
        undecoded = set[LedgerId]()
        marked = (ledger for ledger in scanned.named if ledger not in scanned.unmarked)
        looked_at = list(islice(marked, _LOOKED_AT_MAX))
        for begin in range(0, len(looked_at), PAGE):
            page = looked_at[begin : begin + PAGE]
            found = {item.ledger: item for item in await self._marks.read(page)}
            for ledger in page:
                if ledger not in found:
                    del scanned.named[ledger]
                elif (mark := found[ledger].mark) is None:
                    undecoded.add(ledger)
                elif self._bookie not in mark.bookies:
                    del scanned.named[ledger]
        return undecoded

    def _obstacle(self, use: _EnsembleUse, writable: int) -> str:
        """Why a worker cannot copy what the bookie holds of such an ensemble; empty: it can, as far as is known."""
        registered = self._locations.registered()
        gone = {self._bookie}
        if use.is_written:
            gone |= set(use.ensemble) - registered.keys()  # before a recovery there must be others for all of them
        elif any(registered.keys().isdisjoint(held) for held in use.holders):
            return _NO_SOURCE
        failed = [index for index, member in enumerate(use.ensemble) if member in gone]
        if len(self._placement.under(use.policy).replace(use.quorum, use.ensemble, failed, gone)) < len(failed):
            return _NO_REPLACEMENT.format(writable)
        return _OPEN if use.is_written else ""

    def _report(self, found: dict[str, list[LedgerId]]) -> None:
        waiting = [
            WaitingLedgers(reason, len(ledgers), tuple(ledgers[:NAMED_MAX]), reason in (_LOCKED, _TURN))
            for reason, ledgers in found.items()
            if ledgers
        ]
        waiting.sort(key=lambda group: -group.ledgers)
        left = sum(group.ledgers for group in waiting)
        self._total = max(self._total, left)
        now = Draining(left, self._total, tuple(waiting))
        if now != self._reported:
            self._reported = now
            self._progress(now)
