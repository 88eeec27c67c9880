"""Determines the length of a ledger from its last entry, for a recovery that wrote nothing again."""

from __future__ import annotations

from dlog.ledger.last_entries import LastEntryPoll
from dlog.ledger.recovery_retries import RecoveryRetries
from dlog.machine import Effect, Send
from dlog.model.ids import NO_ENTRY, BookieId, EntryId
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.digest import DigestMismatch


class LengthReader:
    """Takes the length from the last entries that bookies reported when they were fenced, else reads entry `last`.

    fence: the completed poll that fenced the ledger. length: once known.
    """

    def __init__(self, fence: LastEntryPoll, last: EntryId, retries: RecoveryRetries) -> None:
        self.fence = fence
        self.last = last
        self.length: int | None = None
        self._bookies = fence.metadata.bookies_of(last)
        self._retries = retries
        self._failed: set[BookieId] = set()
        if last == NO_ENTRY:
            self.length = 0
        elif last in fence.entries:
            self.length = fence.entries[last].length
        elif last + 1 in fence.entries:
            self.length = fence.entries[last + 1].length - len(fence.entries[last + 1].payload)

    def ask(self, out: list[Effect]) -> None:
        """Read the last entry at all its bookies, unless the length is known."""
        self._failed.clear()
        for bookie in self._bookies if self.length is None else ():
            out.append(Send(bookie, ReadEntry(self.fence.digest.ledger_id, self.last, high_priority=True)))

    def note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        if answer.entry != self.last:
            return
        if answer.code is Code.OK:
            try:
                entry = self.fence.digest.verify(answer.packet, answer.entry)
            except DigestMismatch:
                pass
            else:
                self.length = entry.length
                self.fence.entries[self.last] = entry
                return
        self._failed.add(bookie)

    def note_lost(self, bookie: BookieId) -> None:
        self._failed.add(bookie)

    def settle(self, out: list[Effect]) -> None:
        """The last entry cannot be read: retry, at last use the nearest length known; it is a statistic."""
        if self.length is not None or self._retries.is_waiting or not self._failed.issuperset(self._bookies):
            return
        if self._retries.is_exhausted:
            known = [e.length for e in self.fence.entries.values() if e.entry_id <= self.last]
            self.length = max(known, default=0)
        else:
            self._retries.attempts += 1
            self._retries.pause(out)
