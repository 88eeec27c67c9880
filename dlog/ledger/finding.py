"""Finds the tail of a ledger whose writer is unreachable: all entries confirmed so far, without fencing.

The LAC that bookies know lags, since an entry's LAC travels with a later one.

Invariants:
1. Metadata is read, then the last ensemble is asked for its last entries until every possible ack quorum has replied.
   Nothing above the highest last entry reported was confirmed before; nothing at or below the highest LAC can be lost.
2. If the two differ, a live writer first gets `patience_s` to carry its LAC further.
3. Then the entries between are probed in order. One that Qw - Qa + 1 members deny was not confirmed before they were
   asked, and ends the search. One that is found is written again, byte for byte, to its write set, until Qa members
   report it durable, in as many regions as the ledger's policy asks: a read may return what a power cut takes back.
   Time-outs, damage and errors count as neither.
4. Qa copies do not yet preserve an entry: a writer unaware of them may still replace a member, and one of two
   recoveries may have received a denial earlier. So the tail is recorded in metadata, by compare-and-set from the
   version that named these bookies: a fragment with the same ensemble that begins after the tail. A client that changes
   or closes the ledger later must read it, and no recovery searches before the last fragment. One write per tail: the
   next finder sees LAC and last entry agree.
5. After a lost compare-and-set the search starts over. What is not known in time is an error, never a guess.

A finder serves one request. Source: the search of BookKeeper's LedgerRecoveryOp. 4 is our own; it relies on
BookKeeper's rule that all entries before a fragment are confirmed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast

from dlog.errors import (
    DLogError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    UnauthorizedError,
    UnavailableError,
)
from dlog.ledger.last_entries import ABSENT, LastEntryPoll
from dlog.ledger.placement import Confirms
from dlog.ledger.tailing import LedgerLac
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    Conflict,
    Effect,
    Fact,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    PeerLost,
    Received,
    Refused,
    Send,
    SetTimer,
    Ticket,
    TimerFired,
)
from dlog.metadata_update import Found, MetadataUpdateLoop, Written
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.options import option
from dlog.wire.bookie import AddEntry, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.digest import Buffer, Digest, DigestMismatch


@dataclass(frozen=True, slots=True)
class FindTail:
    """Request, once per finder: find the current tail. Reply: LedgerLac, which covers every entry confirmed before and
    stays valid.

    Errors: UnavailableError if it is not known within `answer_s`, MetadataUnavailableError, LedgerNotFoundError,
    UnauthorizedError.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingOptions:
    """How long to wait for a writer, for replies, and for the whole search."""

    patience_s: float = option(0.05, sim=(0.001, 0.1))  # for a live writer to carry its LAC further
    ahead_entries_max: int = option(16, sim=(1, 4))  # probed, and not yet safe
    retry_s: float = option(0.1, sim=(0.01, 0.5))  # until bookies that could not tell are asked again
    answer_s: float = option(5.0, sim=(0.1, 5.0))  # for the whole request


class _Stage(enum.Enum):
    IDLE = "idle"
    METADATA = "metadata"
    LAST = "last"  # asking the ensemble for its last entries
    PATIENCE = "patience"
    SEARCHING = "searching"
    DECIDING = "deciding"


class _TailProbe:
    """Replies of one entry's write set. packet: as found. By bookie index: denied it, stored it, could not tell."""

    __slots__ = ("doubtful", "negatives", "packet", "stored")

    def __init__(self) -> None:
        self.packet: Buffer | None = None
        self.negatives: set[int] = set()
        self.stored: set[int] = set()
        self.doubtful: set[int] = set()

    def is_absent(self, quorum: Quorum) -> bool:
        return len(self.negatives) >= quorum.negatives_needed


class TailFinder:
    """Finds the tail of one ledger, once. digest: of the ledger. confirms: whether an ack quorum confirms an entry;
    None: any does."""

    def __init__(
        self,
        ledger: LedgerId,
        digest: Digest,
        options: FindingOptions = FindingOptions(),
        confirms: Confirms | None = None,
    ) -> None:
        self.ledger = ledger
        self._digest = digest
        self._options = options
        self._confirms = confirms
        self._ticket: Ticket = 0
        self._stage = _Stage.IDLE
        self._update = MetadataUpdateLoop(LedgerKey(ledger))
        self._poll: LastEntryPoll | None = None  # of the last ensemble, once metadata is read
        self._wanted: EntryId | None = None  # nothing above it was confirmed when the request came
        self._sought: dict[EntryId, _TailProbe] = {}
        self._safe = NO_ENTRY  # every entry up to it is as safe as a confirmed one
        self._asked = NO_ENTRY
        self._reason = "metadata was not read"
        self._waiting = False  # the retry timer is running
        self._effects: list[Effect] = []

    # ---- entry point -------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        match fact:
            case Received() | PeerLost():
                if self._poll is not None and self._stage in (_Stage.LAST, _Stage.SEARCHING):
                    self._note_bookie(self._poll, fact)
            case MetadataSeen():
                self._note_metadata(fact)
            case TimerFired("patience") if self._stage is _Stage.PATIENCE:
                self._read_metadata()
            case TimerFired("retry") if self._waiting:
                self._waiting = False
                self._retry()
            case TimerFired("deadline") if self._stage is not _Stage.IDLE:
                self._give_up()
            case Asked(ticket, FindTail()):
                assert self._stage is _Stage.IDLE and not self._update.reads, "a finder serves one request"
                self._ticket = ticket
                self._effects.append(SetTimer("deadline", self._options.answer_s))
                self._read_metadata()
        self._settle()
        self._effects = []
        return effects

    # ---- facts -------------------------------------------------------------------------------------------------------

    def _note_metadata(self, fact: MetadataSeen) -> None:
        match self._update.handle(fact, self._effects):
            case Missing():
                self._answer(LedgerNotFoundError(f"the ledger was deleted: ledger={self.ledger}"))
            case Written() if self._stage is _Stage.DECIDING:
                self._answer(LedgerLac(self._safe, False))
            case Written(value) | Found(value):
                self._begin(value)
            case Conflict():
                self._read_metadata()
            case Refused(error):
                self._answer(error)
            case OutcomeUnknown(reason):
                self._stage = _Stage.METADATA
                self._reason = f"metadata is unreachable: {reason}"
                self._pause()

    def _begin(self, value: LedgerMetadata) -> None:
        """Ask the bookies of the last ensemble for their last entries."""
        if value.is_closed:
            self._answer(LedgerLac(value.last_entry, True))
            return
        self._stage = _Stage.LAST
        lac = EntryId(value.fragments[-1].first_entry - 1)
        if self._poll is not None:
            lac = max(lac, self._poll.lac)
        self._poll = LastEntryPoll(ReadEntry(self.ledger, NO_ENTRY), value, self._digest, lac)
        self._poll.ask(self._effects)

    def _note_bookie(self, poll: LastEntryPoll, fact: Received | PeerLost) -> None:
        match fact:
            case Received(peer, EntryRead(fence=False) as answer) if answer.ledger == self.ledger:
                if answer.entry == NO_ENTRY:
                    poll.note_read(cast(BookieId, peer), answer)
                else:
                    self._note_read(poll, cast(BookieId, peer), answer)
            case Received(peer, EntryAdded() as answer) if answer.ledger == self.ledger:
                self._note_added(poll, cast(BookieId, peer), answer)
            case PeerLost(peer):
                poll.note_lost(cast(BookieId, peer))
                self._note_lost(poll, cast(BookieId, peer))

    def _note_read(self, poll: LastEntryPoll, bookie: BookieId, answer: EntryRead) -> None:
        index, sought = poll.index_for(bookie, answer.entry), self._sought.get(answer.entry)
        if index is None or sought is None:
            return
        if answer.code in ABSENT:
            sought.negatives.add(index)
        elif answer.code is Code.OK and self._is_sound(answer):
            self._store(poll, answer.entry, sought, answer.packet)
        else:
            sought.doubtful.add(index)

    def _is_sound(self, answer: EntryRead) -> bool:
        try:
            self._digest.verify(answer.packet, answer.entry)
        except DigestMismatch:
            return False
        return True

    def _store(self, poll: LastEntryPoll, entry: EntryId, sought: _TailProbe, packet: Buffer) -> None:
        """The entry was found: write it to its whole write set, unchanged."""
        if sought.packet is None:
            sought.packet = bytes(packet)
            for bookie in poll.members(entry):
                self._send_add(bookie, entry, sought.packet)

    def _note_added(self, poll: LastEntryPoll, bookie: BookieId, answer: EntryAdded) -> None:
        index, sought = poll.index_for(bookie, answer.entry), self._sought.get(answer.entry)
        if answer.code is Code.UNAUTHORIZED and self._stage is _Stage.SEARCHING:
            why = "the bookie rejects the ledger's password, or holds another entry under this id, see docs/restore.md"
            self._answer(UnauthorizedError(f"{why}: ledger={self.ledger} entry={answer.entry} bookie={bookie}"))
        elif index is not None and sought is not None:
            (sought.stored if answer.code is Code.OK else sought.doubtful).add(index)

    def _note_lost(self, poll: LastEntryPoll, bookie: BookieId) -> None:
        for entry, sought in self._sought.items():
            index = poll.index_for(bookie, entry)
            if index is not None and index not in sought.stored:
                sought.doubtful.add(index)

    # ---- consequences ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        poll = self._poll
        if poll is not None and self._stage is _Stage.LAST:
            if poll.is_complete():
                self._judge(poll)
            elif poll.failed:
                self._reason = f"too few bookies reported their last entry: answered={len(poll.answered)}"
                self._pause()
        if poll is not None and self._stage is _Stage.SEARCHING:
            self._search(poll)

    def _judge(self, poll: LastEntryPoll) -> None:
        """Decide what to do, once every possible ack quorum replied."""
        if self._wanted is None:
            self._wanted = poll.last
            if poll.lac < self._wanted:
                self._stage = _Stage.PATIENCE
                self._effects.append(SetTimer("patience", self._options.patience_s))
                return
        if poll.lac >= self._wanted:
            self._answer(LedgerLac(poll.lac, False))
            return
        self._stage = _Stage.SEARCHING
        self._sought = {}
        self._safe = self._asked = poll.lac

    def _search(self, poll: LastEntryPoll) -> None:
        assert self._wanted is not None
        quorum = poll.metadata.quorum
        while True:
            sought = self._sought.get(EntryId(self._safe + 1))
            if self._safe == self._wanted or (sought is not None and sought.is_absent(quorum)):
                self._decide(poll)
                return
            if sought is not None and self._is_safe(poll, sought):
                del self._sought[EntryId(self._safe + 1)]
                self._safe = EntryId(self._safe + 1)
            elif self._asked < min(self._wanted, self._safe + self._options.ahead_entries_max):
                self._asked = EntryId(self._asked + 1)
                self._sought[self._asked] = _TailProbe()
                for bookie in poll.members(self._asked):
                    self._effects.append(Send(bookie, ReadEntry(self.ledger, self._asked)))
            else:
                break
        self._reason = f"cannot tell whether an entry exists: entry={self._safe + 1}"
        if any(sought.doubtful for sought in self._sought.values()):
            self._pause()

    def _is_safe(self, poll: LastEntryPoll, sought: _TailProbe) -> bool:
        """Whether the bookies that stored an entry would confirm it to a writer."""
        if len(sought.stored) < poll.metadata.quorum.ack:
            return False
        return self._confirms is None or self._confirms([poll.ensemble[index] for index in sought.stored])

    def _decide(self, poll: LastEntryPoll) -> None:
        """Record the tail: all up to `_safe` was found, nothing after it was confirmed."""
        self._sought = {}
        if self._safe == poll.lac:
            self._answer(LedgerLac(poll.lac, False))
            return
        last = poll.metadata.fragments[-1]
        assert self._safe >= last.first_entry, "the search stays in the last fragment"
        self._stage = _Stage.DECIDING
        self._update.write(poll.metadata.with_ensemble(EntryId(self._safe + 1), last.ensemble), self._effects)

    # ---- requests and retries ----------------------------------------------------------------------------------------

    def _read_metadata(self) -> None:
        self._stage = _Stage.METADATA
        self._update.read(self._effects)

    def _send_add(self, bookie: BookieId, entry: EntryId, packet: Buffer) -> None:
        message = AddEntry(self.ledger, entry, self._digest.master_key, (packet,), recovery=True, high_priority=True)
        self._effects.append(Send(bookie, message))

    def _retry(self) -> None:
        if self._stage is _Stage.METADATA:
            self._read_metadata()
        elif self._poll is not None and self._stage is _Stage.LAST:
            self._poll.ask_again(self._effects)
        elif self._poll is not None and self._stage is _Stage.SEARCHING:
            for entry, sought in self._sought.items():
                for index in sorted(sought.doubtful):
                    bookie = self._poll.ensemble[index]
                    if sought.packet is not None:
                        self._send_add(bookie, entry, sought.packet)
                    else:
                        self._effects.append(Send(bookie, ReadEntry(self.ledger, entry)))
                sought.doubtful.clear()

    def _pause(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._effects.append(SetTimer("retry", self._options.retry_s))

    def _give_up(self) -> None:
        why = (
            f"the tail cannot be determined now, retry or check the bookies (dlog bookie ls): ledger={self.ledger} "
            f"reason={self._reason}"
        )
        in_metadata = self._stage in (_Stage.METADATA, _Stage.DECIDING)
        self._answer(MetadataUnavailableError(why) if in_metadata else UnavailableError(why))

    def _answer(self, result: LedgerLac | DLogError) -> None:
        self._stage = _Stage.IDLE
        self._update.stop(self._effects)
        self._effects.append(Answer(self._ticket, result))
        self._effects += [CancelTimer(key) for key in ("deadline", "retry", "patience")]
