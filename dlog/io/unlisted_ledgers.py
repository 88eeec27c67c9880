"""Finds ledgers that bookies hold and metadata does not name, as after a restore of ZooKeeper.

BookKeeper's protocol cannot list a bookie's ledgers, so bookies are asked for every id, until many in a row are unknown
to all. This works with Java's bookies too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from dlog.io.ledgers import Ledgers
from dlog.ledger.vetting import Vetted
from dlog.model.ids import BookieId, LedgerId

_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class UnlistedLedger:
    """A ledger without metadata, and the bookies that hold it. silent: bookies that gave no conclusive reply."""

    ledger: LedgerId
    bookies: tuple[BookieId, ...]
    silent: tuple[BookieId, ...]


async def find_unlisted_ledgers(
    ledgers: Ledgers, bookies: frozenset[BookieId], *, first: LedgerId, gap: int
) -> AsyncIterator[UnlistedLedger]:
    """Yield ledgers from `first` on, by id, that these bookies hold and metadata does not name; up to the last known id
    also those with an inconclusive reply. The search ends `gap` ids after the last id that metadata or a bookie knows,
    separately for short ids and each directory of long ids. Raises MetadataUnavailableError."""
    named = {ledger async for ledger in ledgers.list()}
    starts = sorted({first, *(LedgerId(ledger >> 32 << 32) for ledger in named if ledger >= max(first, 1 << 32))})
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        known = max(
            (ledger for ledger in named if ledger >= start and (end is None or ledger < end)), default=start - 1
        )
        at = int(start)
        while at <= known + gap and (end is None or at < end):
            ids = [LedgerId(at + n) for n in range(_AT_ONCE) if at + n not in named]
            for ledger, vetted in zip(ids, await _ask(ledgers, ids, bookies), strict=True):
                silent = bookies - vetted.known_to - vetted.unknown_to
                if vetted.known_to:
                    known = max(known, ledger)
                if vetted.known_to or (silent and ledger <= known):
                    yield UnlistedLedger(ledger, tuple(sorted(vetted.known_to)), tuple(sorted(silent)))
            at += _AT_ONCE


async def _ask(ledgers: Ledgers, ids: list[LedgerId], bookies: frozenset[BookieId]) -> list[Vetted]:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ledgers.find_holders(ledger, bookies), name=f"stray {ledger}") for ledger in ids]
    return [task.result() for task in asked]
