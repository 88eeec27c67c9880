"""Reads a fenced ledger forward, until an entry is found that does not exist. Invariants 3 and 4 of recovery.py."""

from __future__ import annotations

from dlog.errors import EntryUnreadableError
from dlog.ledger.last_entries import ABSENT, LastEntryPoll
from dlog.ledger.recovery_retries import RecoveryRetries
from dlog.ledger.recovery_writer import RecoveryWriter
from dlog.machine import Effect, Send
from dlog.model.ids import BookieId, EntryId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.digest import DigestMismatch, Entry

LAST_ENTRIES_MAX = 7  # entries that a recovery returns with the end


class EntryProbe:
    """Replies for one entry: its packet and source bookie; indices of bookies that denied it or could not tell."""

    __slots__ = ("doubtful", "found", "holder", "negatives")

    def __init__(self) -> None:
        self.found: Entry | None = None
        self.holder = ""
        self.negatives: set[int] = set()
        self.doubtful: set[int] = set()

    def is_absent(self, quorum: Quorum) -> bool:
        return self.found is None and len(self.negatives) >= quorum.negatives_needed

    def is_stuck(self, quorum: Quorum) -> bool:
        """Whether all have replied and the replies decide nothing."""
        answered = len(self.negatives) + len(self.doubtful)
        return self.found is None and not self.is_absent(quorum) and answered >= quorum.write


class EntrySearch:
    """Finds the last entry of a ledger: reads after the LAC, and passes each entry found to the writer, in order.

    fence: the completed poll that fenced the ledger. writer: writes the entries again. ahead_entries_max: read, and not
    yet written again. end: last entry of the ledger, once known. found: the last entries found so far, by id.
    """

    def __init__(
        self, fence: LastEntryPoll, writer: RecoveryWriter, ahead_entries_max: int, retries: RecoveryRetries
    ) -> None:
        self.fence = fence
        self.writer = writer
        self.end: EntryId | None = None
        self.found: dict[int, Entry] = {}
        self._quorum = fence.metadata.quorum
        self._ahead_entries_max = ahead_entries_max
        self._retries = retries
        self._asked = fence.lac  # highest entry requested
        self._probes: dict[EntryId, EntryProbe] = {}

    def is_finished(self) -> bool:
        """Whether the last entry is known and all entries are safe."""
        return self.end is not None and self.writer.confirmed == self.end and not self.writer.is_owed

    def note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        probe, index = self._probes.get(answer.entry), self.fence.index_for(bookie, answer.entry)
        if probe is None or index is None:
            return
        if answer.code is Code.OK:
            if probe.found is None:
                try:
                    probe.found, probe.holder = self.fence.digest.verify(answer.packet, answer.entry), bookie
                except DigestMismatch:
                    probe.doubtful.add(index)
        elif answer.code in ABSENT:
            probe.negatives.add(index)
            probe.doubtful.discard(index)
        elif index not in probe.negatives:
            probe.doubtful.add(index)

    def note_lost(self, bookie: BookieId) -> None:
        for entry, probe in self._probes.items():
            index = self.fence.index_for(bookie, entry)
            if index is not None and index not in probe.negatives:
                probe.doubtful.add(index)

    def settle(self, out: list[Effect]) -> None:
        """Request entries, decide for each in order whether it exists, and have the writer replace failed bookies.

        Raises NotEnoughBookiesError.
        """
        self.writer.confirm()
        self._read_on(out)
        if not self.writer.failed_replacements():
            self.writer.replace_failed(out)

    def _read_on(self, out: list[Effect]) -> None:
        while self.end is None:
            upcoming = EntryId(self.writer.pushed + 1)
            probe = self._probes.get(upcoming)
            if probe is not None and probe.found is not None:
                self.found[upcoming] = probe.found
                self.found.pop(upcoming - LAST_ENTRIES_MAX, None)
                self.writer.push(probe.found, probe.holder, out)
                del self._probes[upcoming]
            elif probe is not None and probe.is_absent(self._quorum):
                needed = self._quorum.write - self._quorum.ack + 1
                assert len(probe.negatives) >= needed, "Qw - Qa + 1 denials end a ledger"
                self.end = EntryId(upcoming - 1)
                self._probes.clear()
            elif self._asked - self.writer.confirmed < self._ahead_entries_max:
                self._asked = EntryId(self._asked + 1)
                self._probes[self._asked] = EntryProbe()
                for bookie in self.fence.members(self._asked):
                    self._ask(bookie, self._asked, out)
            else:
                if probe is not None and probe.doubtful:
                    self._retries.pause(out)
                break

    def retry(self, out: list[Effect]) -> None:
        """Ask those again that could not tell. Raises EntryUnreadableError, NotEnoughBookiesError.

        They are asked again all the same if others, which may be frozen for long, have not replied. But only a round
        that all replied to counts as an attempt.
        """
        upcoming = EntryId(self.writer.pushed + 1)
        probe = self._probes.get(upcoming)
        if probe is not None and probe.is_stuck(self._quorum):
            self._retries.note_failure(
                EntryUnreadableError(
                    f"too few replicas replied to tell whether an entry exists, start their bookies: "
                    f"ledger={self.fence.digest.ledger_id} entry={upcoming}"
                )
            )
        for entry, probe in self._probes.items():
            for index in sorted(probe.doubtful):
                self._ask(self.fence.ensemble[index], entry, out)
            probe.doubtful.clear()
        self.writer.retry(out)

    def _ask(self, bookie: BookieId, entry: EntryId, out: list[Effect]) -> None:
        """Read an entry and fence: every read of a recovery fences."""
        digest = self.fence.digest
        message = ReadEntry(digest.ledger_id, entry, fence=True, master_key=digest.master_key, high_priority=True)
        out.append(Send(bookie, message))
