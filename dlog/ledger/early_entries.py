"""Adds whose entry ids the caller gave, and which wait for those before them.

Invariants:
- an entry is sent only after all entries with lower ids were: confirmed entries have no gap;
- each id is taken once;
- an id is at most `ahead_max` above the last entry that was sent, so that the missing one finds room.

Source: BookKeeper, LedgerHandleAdv.
"""

from __future__ import annotations

from dlog.errors import DLogError, InvalidRequestError, OverCapacityError
from dlog.machine import Ticket
from dlog.model.ids import EntryId, LedgerId
from dlog.wire.digest import Buffer


class EarlyEntries:
    """Adds by entry id, fewer than `ahead_max`."""

    __slots__ = ("_ahead_max", "_waiting")

    def __init__(self, ahead_max: int) -> None:
        self._ahead_max = ahead_max
        self._waiting: dict[int, tuple[Ticket, tuple[Buffer, ...]]] = {}

    def refusal(self, ledger: LedgerId, entry: int, pushed: EntryId) -> DLogError | None:
        """Why an add with this id cannot be kept; None: it can. pushed: the last entry that was sent."""
        if entry <= pushed or entry in self._waiting:
            return InvalidRequestError(f"the entry id is taken, or negative: ledger={ledger} entry={entry}")
        if entry - pushed > self._ahead_max:
            why = f"the entry is more than {self._ahead_max} above one that is missing, add that first"
            return OverCapacityError(f"{why}: ledger={ledger} entry={entry} missing={pushed + 1}")
        return None

    def put(self, entry: int, ticket: Ticket, parts: tuple[Buffer, ...]) -> None:
        """Keep an add whose id was not refused."""
        self._waiting[entry] = (ticket, parts)

    def take(self, entry: int) -> tuple[Ticket, tuple[Buffer, ...]] | None:
        """Remove and return the add with this id; None: it has not come yet."""
        return self._waiting.pop(entry, None)

    def abandon(self) -> list[Ticket]:
        """Drop all; the tickets in the order of entry ids."""
        waiting, self._waiting = self._waiting, {}
        return [waiting[entry][0] for entry in sorted(waiting)]
