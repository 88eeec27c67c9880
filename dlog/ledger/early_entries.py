"""Adds whose entry ids the caller gave, and which wait for those before them.

Invariants:
- an entry is sent only after all entries with lower ids were: confirmed entries have no gap;
- each id is taken once.

Source: BookKeeper, LedgerHandleAdv.
"""

from __future__ import annotations

from dlog.machine import Ticket
from dlog.wire.digest import Buffer


class EarlyEntries:
    """Adds by entry id. Bounded by the requests that the driver admits."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Ticket, tuple[Buffer, ...]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entry: int, ticket: Ticket, parts: tuple[Buffer, ...]) -> bool:
        """Keep an add. False: the id is taken."""
        if entry in self._waiting:
            return False
        self._waiting[entry] = (ticket, parts)
        return True

    def take(self, entry: int) -> tuple[Ticket, tuple[Buffer, ...]] | None:
        """Remove and return the add with this id; None: it has not come yet."""
        return self._waiting.pop(entry, None)

    def abandon(self) -> list[Ticket]:
        """Drop all; the tickets in the order of entry ids."""
        waiting, self._waiting = self._waiting, {}
        return [waiting[entry][0] for entry in sorted(waiting)]
