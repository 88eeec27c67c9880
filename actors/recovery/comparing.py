"""The auditor's comparison of copies: every `compare_s` it compares all closed ledgers, and marks those that lack some.

Invariants:
- Only the elected auditor compares, and not while repair is disabled. The first comparison begins `compare_s` after its
  election; a process that stops being the auditor ends the comparison at the next ledger.
- A ledger is marked for bookies that answered and lack copies, or hold some that its digest proves wrong; never for one
  that is out of reach (dlog/ledger/comparing.py): whether a bookie is lost is decided by its registration alone.
- At most _AT_ONCE ledgers are compared at the same time, and then a pause keeps to `compare_entries_s`: summaries take
  processor time of bookies, about 10 ms for 512 entries. One that cannot be compared or marked hides no other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from actors.recovery.options import RecoveryOptions
from dlog.errors import DLogError
from dlog.events import Event
from dlog.io import metrics
from dlog.io.clock import unix_ms
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.ledger.comparing import CHANGED, Compared, DifferingCopies
from dlog.ledger.events import ComparisonEnded, CopiesDiffer, CopiesMissing
from dlog.model.ids import BookieId, LedgerId

COMPARE_TIMEOUT_S = 30.0  # for a summary: a bookie may have to seek for each of 512 entries, and others wait before it
_AT_ONCE = 4
_BOOKIES_MAX = 10  # bookies in an event


class ComparableLedgers(Protocol):
    """The calls of a ledger client (dlog/io/ledgers.py) that a comparison needs."""

    def list(self) -> AsyncIterator[LedgerId]: ...

    async def compare(self, ledger: LedgerId) -> Compared: ...


@dataclass(slots=True)
class _Totals:
    """What one comparison of all ledgers found."""

    ledgers: int = 0
    entries: int = 0
    lacking: int = 0
    unfinished: int = 0
    out_of_reach: set[BookieId] = field(default_factory=set)


class Comparing:
    """The comparisons of one process. is_auditor: whether it is elected and repair is enabled."""

    def __init__(
        self,
        options: RecoveryOptions,
        ledgers: ComparableLedgers,
        marks: ZooKeeperUnderreplication,
        is_auditor: Callable[[], bool],
        on_event: Callable[[Event], None],
    ) -> None:
        self._options = options
        self._ledgers = ledgers
        self._marks = marks
        self._is_auditor = is_auditor
        self._on_event = on_event

    async def run(self) -> None:
        """Compare whenever it is due, for ever; not at all if `compare_s` is 0."""
        if not self._options.compare_s:
            return
        due_s: float | None = None  # None: not the auditor
        while True:
            await asyncio.sleep(min(self._options.look_s, self._options.compare_s))
            if not self._is_auditor():
                due_s = None
            elif due_s is None or _now_s() >= due_s:
                is_due, due_s = due_s is not None, _now_s() + self._options.compare_s
                if is_due:
                    await self._compare_all()

    async def _compare_all(self) -> None:
        totals, reason = _Totals(), ""
        page: list[LedgerId] = []
        try:
            async for ledger in self._ledgers.list():
                page.append(ledger)
                if len(page) == _AT_ONCE:
                    await self._compare_page(page, totals)
                    page.clear()
            await self._compare_page(page, totals)
        except DLogError as error:
            reason = error.message
        if not self._is_auditor():
            reason = "this process is not the auditor any more"
        unreachable = tuple(sorted(totals.out_of_reach)[:_BOOKIES_MAX])
        self._on_event(ComparisonEnded(totals.ledgers, totals.lacking, totals.unfinished, unreachable, reason))

    async def _compare_page(self, page: list[LedgerId], totals: _Totals) -> None:
        if not self._is_auditor():
            return
        begun_s, before = _now_s(), totals.entries
        async with asyncio.TaskGroup() as tasks:
            for ledger in page:
                tasks.create_task(self._compare(ledger, totals), name=f"compare ledger {ledger}")
        if rate := self._options.compare_entries_s:
            await asyncio.sleep(max(0.0, begun_s + (totals.entries - before) / rate - _now_s()))

    async def _compare(self, ledger: LedgerId, totals: _Totals) -> None:
        try:
            compared = await self._ledgers.compare(ledger)
            await self._report(compared, totals)
        except DLogError:
            totals.unfinished += 1  # an audit names ledgers whose metadata cannot be read

    async def _report(self, compared: Compared, totals: _Totals) -> None:
        if compared.skipped:
            totals.unfinished += compared.skipped == CHANGED
            return
        metrics.COMPARED_LEDGERS.inc()
        totals.ledgers += 1
        totals.entries += compared.entries
        totals.unfinished += bool(compared.out_of_reach) or not compared.is_complete
        totals.out_of_reach.update(bookie for bookie, _ in compared.out_of_reach)
        missing = sum(found.entries for found in compared.missing)
        metrics.MISSING_COPIES.inc(missing)
        metrics.DIFFERING_COPIES.inc(len(compared.differing))
        if compared.differing:
            worst = min(compared.differing, key=_has_no_wrong_copy)
            fields = (tuple(sorted(worst.bookies)), tuple(sorted(worst.wrong)))
            self._on_event(CopiesDiffer(compared.ledger, worst.first, *fields, len(compared.differing), worst.why))
        if not compared.lacking:
            return
        totals.lacking += 1
        is_new = await self._marks.mark(compared.ledger, compared.lacking, unix_ms())
        if is_new and compared.missing:
            bookies = tuple(sorted({found.bookie for found in compared.missing})[:_BOOKIES_MAX])
            first = compared.missing[0]
            self._on_event(CopiesMissing(compared.ledger, bookies, missing, first.first, first.last))


def _has_no_wrong_copy(found: DifferingCopies) -> bool:
    return not found.wrong


def _now_s() -> float:
    return asyncio.get_running_loop().time()
