"""Takes a stopped bookie out of a cluster: its ledgers are repaired on other bookies, then metadata forgets it.

Invariants:
- The bookie is forgotten only after a scan of all ledgers in which none named it, while it was not registered from
  before the scan on; so a bookie that is forgotten holds nothing that is needed.
- It registers, in every session, in one transaction that fails without its cookie and raises the cookie's version. The
  cookie is deleted in one that fails if it is registered, or if that version is not the one of before the scan. So one
  that is forgotten never serves again. (Java's bookies look at their cookie at their start only.)
- Nothing but marks and the bookie's own znodes is changed, so it may be interrupted anywhere and run again.

Source: BookKeeper `BookKeeperAdmin.decommissionBookie`, which does not say why it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from dlog.errors import DLogError, InvalidRequestError
from dlog.io.clock import unix_ms
from dlog.io.metadata import LedgerMetadataStore
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.machine import Missing, OutcomeUnknown, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata

LOOK_S = 1.0  # between two looks at the marks
_SCAN_LOOKS = 30  # looks until all ledgers are read again though marks are left, or though nothing was marked


class StillRegisteredError(InvalidRequestError):
    """The bookie is registered: it must be stopped before it is taken out of the cluster."""


@dataclass(frozen=True, slots=True)
class Draining:
    """What is still to do. ledgers: that name the bookie, or whose metadata cannot be read; as of the last scan if the
    cluster has too many marks to count. reason: what it waits for."""

    ledgers: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decommissioned:
    """The result. ledgers: that named the bookie at first. was_known: whether the cluster had the bookie at all."""

    ledgers: int
    was_known: bool = True


@dataclass(frozen=True, slots=True)
class _Scanned:
    named: int  # ledgers that name the bookie
    marked: int  # of these
    unread: int  # ledgers that could not be read or marked
    ensemble_max: int  # bookies of the largest ensemble that names it


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
    first: int | None = None
    was_known = False
    reported: Draining | None = None
    while True:
        cookie = await metadata.read_cookie(bookie)
        await check_stopped(marks, bookie)
        await marks.pauses.end(bookie)  # nothing is copied while a planned restart lasts
        scanned = await _mark_ledgers(metadata, marks, bookie)
        first = scanned.named if first is None else first
        was_known = was_known or scanned.named > 0 or isinstance(cookie, Versioned)
        if not scanned.named and not scanned.unread:
            if await forget_stopped(metadata, marks, bookie, cookie):
                return Decommissioned(first, was_known)
            continue
        for _ in range(_SCAN_LOOKS):
            summary = await marks.summary()
            marked = summary.bookies.get(bookie, 0) if summary.is_whole else scanned.marked
            left = marked + scanned.unread
            if (now := Draining(left, await _reason(metadata, marks, scanned))) != reported:
                reported = now
                progress(now)
            await asyncio.sleep(look_s)
            if scanned.marked and not marked:
                break
            await check_stopped(marks, bookie)


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
    named = marked = unread = ensemble_max = 0
    async for ledger, value in ledgers_naming(metadata, bookie):
        try:
            if value is None:
                unread += 1
                continue
            sizes = (len(part.ensemble) for part in value.fragments if bookie in part.ensemble)
            named, ensemble_max = named + 1, max(ensemble_max, *sizes)
            await marks.mark(ledger, {bookie}, unix_ms())
            marked += 1
        except DLogError:
            unread += 1
    return _Scanned(named, marked, unread, ensemble_max)


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


async def _reason(metadata: ZooKeeperMetadata, marks: ZooKeeperUnderreplication, scanned: _Scanned) -> str:
    """What the repair of the ledgers waits for."""
    unread = f"metadata of {scanned.unread} ledgers cannot be read (dlog ledger ls names them)"
    if not scanned.named:
        return unread
    if await marks.is_disabled():
        return "repair is switched off for the cluster"
    if not await marks.has_voters():
        return "no recovery process runs, start one: dlog recovery run"
    writable = len((await metadata.members()).writable)
    if writable < scanned.ensemble_max:
        return f"too few writable bookies, start more: writable={writable} ensemble={scanned.ensemble_max}"
    if scanned.unread:
        return unread
    return "ledgers are being copied; the event repair.failed of a recovery process says why one is not"
