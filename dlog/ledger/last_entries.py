"""Asks every bookie of a ledger's last ensemble for the last entry that it holds.

Invariants:
- entries and LACs count only from packets that verify;
- the poll is complete once every possible ack quorum has a member that replied. Time-outs, damage and errors are no
  replies.
"""

from __future__ import annotations

from dlog.machine import Effect, Send
from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import LedgerMetadata
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch, Entry

ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)


class LastEntryPoll:
    """Polls the last ensemble of `metadata`. Create, `ask`, pass replies and lost connections, until it is complete.

    request: sent to every member. metadata, digest: of the ledger. lac: the highest reported, at least the one passed.
    last: highest entry reported, at least the LAC passed. entries: as reported, by id.
    """

    __slots__ = ("_answered", "_request", "digest", "ensemble", "entries", "failed", "lac", "last", "metadata")

    def __init__(self, request: ReadEntry, metadata: LedgerMetadata, digest: Digest, lac: EntryId) -> None:
        self.metadata = metadata
        self.digest = digest
        self.lac = lac
        self.last = lac
        self.entries: dict[int, Entry] = {}
        self.failed: set[int] = set()  # indices of bookies that replied with an error or were lost
        self._request = request
        self.ensemble = metadata.fragments[-1].ensemble
        self._answered: set[int] = set()  # bookie indices

    @property
    def answered(self) -> tuple[BookieId, ...]:
        return tuple(self.ensemble[i] for i in sorted(self._answered))

    def index_for(self, bookie: BookieId, entry: EntryId) -> int | None:
        """The bookie's index in the ensemble; None if it is no member of the entry's write set."""
        index = self.ensemble.index(bookie) if bookie in self.ensemble else None
        return index if index in self.metadata.quorum.write_set(entry) else None

    def members(self, entry: EntryId) -> list[BookieId]:
        """The bookies of the entry's write set in the ensemble."""
        return [self.ensemble[i] for i in self.metadata.quorum.write_set(entry)]

    def ask(self, out: list[Effect]) -> None:
        out += [Send(bookie, self._request) for bookie in self.ensemble]

    def ask_again(self, out: list[Effect]) -> None:
        """Ask those again that replied with an error or were lost."""
        for index in sorted(self.failed):
            out.append(Send(self.ensemble[index], self._request))
        self.failed.clear()

    def note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        if bookie not in self.ensemble:
            return
        index = self.ensemble.index(bookie)
        if answer.code is Code.OK:
            try:
                entry = self.digest.verify(answer.packet)
            except DigestMismatch:
                self.failed.add(index)
                return
            self.entries[entry.entry_id] = entry
            self.lac = max(self.lac, entry.lac)
            self.last = max(self.last, entry.entry_id)
        elif answer.code not in ABSENT:
            self.failed.add(index)
            return
        self._answered.add(index)
        self.failed.discard(index)

    def note_lost(self, bookie: BookieId) -> None:
        if bookie in self.ensemble and (index := self.ensemble.index(bookie)) not in self._answered:
            self.failed.add(index)

    def is_complete(self) -> bool:
        return self.metadata.quorum.covered(self._answered)

    def is_stuck(self) -> bool:
        """Whether every bookie has replied or was lost."""
        return len(self._answered) + len(self.failed) == len(self.ensemble)
