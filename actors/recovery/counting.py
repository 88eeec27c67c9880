"""Counts what all marked ledgers lack, for the metrics of the auditor.

A bookie that a ledger's mark names counts as holding none of its entries. A bookie that came back may hold them all, so
the numbers are upper bounds until a worker has read its copies and deleted the mark.

Bounded: one look reads at most SUMMARY_MAX marks, and the metadata of at most READS_MAX marked ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from dlog.io.zookeeper_underreplication import MarkedLedger, Underreplication, ZooKeeperUnderreplication
from dlog.ledger.missing_copies import MissingCopies, missing_copies
from dlog.machine import Missing, SeenOutcome, Versioned
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerMetadata

READS_MAX = 500  # ledgers whose metadata is read by one look; the others follow in the next ones
AT_ONCE = 64
RECOUNT_S = 30.0  # until a ledger's metadata is read again, since a repair changes it ensemble by ensemble


@dataclass(frozen=True, slots=True)
class _Counted:
    """One marked ledger. lacking: the bookies of its mark. read_s: when its metadata was read; negative: not yet."""

    lacking: frozenset[BookieId]
    missing: MissingCopies = MissingCopies()
    read_s: float = -RECOUNT_S


class MarkCounter:
    """Keeps, for each marked ledger, how many of its entries lack copies. read: reads a ledger's metadata; it returns
    failures as outcomes and raises no DLogError."""

    def __init__(self, marks: ZooKeeperUnderreplication, read: Callable[[LedgerId], Awaitable[SeenOutcome]]) -> None:
        self._marks = marks
        self._read = read
        self._counted: dict[LedgerId, _Counted] = {}

    async def read_marks(self) -> Underreplication:
        """Read all marks. Raises MetadataUnavailableError."""
        counted: dict[LedgerId, _Counted] = {}

        def note(marked: MarkedLedger) -> None:
            lacking = frozenset(marked.mark.bookies) if marked.mark is not None else frozenset[BookieId]()
            known = self._counted.get(marked.ledger, _Counted(lacking))
            is_same = known.lacking == lacking
            counted[marked.ledger] = known if is_same else replace(known, lacking=lacking, read_s=-RECOUNT_S)

        summary = await self._marks.summary(note)
        self._counted = counted
        return summary

    async def count(self) -> MissingCopies:
        """The sum over the ledgers of the last `read_marks`. Reads metadata that was not read for RECOUNT_S, of
        READS_MAX ledgers at most; ledgers whose metadata was never read count as 0."""
        counted, now_s = self._counted, asyncio.get_running_loop().time()
        due = [ledger for ledger, found in counted.items() if now_s - found.read_s >= RECOUNT_S]
        due = sorted(due, key=lambda ledger: counted[ledger].read_s)[:READS_MAX]
        for begin in range(0, len(due), AT_ONCE):
            page = due[begin : begin + AT_ONCE]
            async with asyncio.TaskGroup() as tasks:
                reads = [tasks.create_task(self._outcome(ledger), name=f"count ledger {ledger}") for ledger in page]
            for ledger, outcome in zip(page, (read.result() for read in reads), strict=True):
                found = counted[ledger]
                match outcome:
                    case Versioned(LedgerMetadata() as value):
                        counted[ledger] = replace(found, missing=missing_copies(value, found.lacking), read_s=now_s)
                    case Missing():
                        counted[ledger] = replace(found, missing=MissingCopies(), read_s=now_s)
                    case _:  # an event of the audit names it
                        counted[ledger] = replace(found, read_s=now_s)
        return sum((found.missing for found in counted.values()), MissingCopies())

    async def _outcome(self, ledger: LedgerId) -> SeenOutcome:
        return await self._read(ledger)
