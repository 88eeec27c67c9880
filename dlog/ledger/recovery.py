"""Recovers a ledger: fences it, finds its last entry, closes it. Concurrent recoveries get the same result.

    read metadata, set it IN_RECOVERY -> LastEntryPoll -> EntrySearch (and RecoveryWriter) -> LengthReader -> Closing
    from any of them back to the first: metadata changed, or a replacement failed

Invariants:
1. Metadata is IN_RECOVERY before any bookie is asked.
2. The last ensemble is fenced until every possible ack quorum has a fenced member (coverage). The search begins at the
   highest LAC reported, and not before the last fragment.
3. Every read of the search fences too: a bookie first reached here could still complete a writer's ack quorum.
4. An entry exists if one replica has it. It does not exist once Qw - Qa + 1 replicas deny it: then no ack quorum ever
   held it. Time-outs, damage and "cannot tell" count as neither, and never end the search.
5. Existing entries are written again to their whole write set, to Qa members at least, in as many regions as the policy
   asks, in order, without gaps, with their own length. A member that holds another payload under the entry's id ends
   the recovery: two writers used one ledger id, and which is right cannot be known. Failed members are replaced in a
   local copy of the metadata, from the entry after the last safe one on; reads use the original metadata, since an
   empty replacement proves nothing. A replacement must store all that it is sent before the ledger is closed, for it
   may hold another ledger under this id: if it fails, the recovery starts over without it. A strict placement policy is
   kept as far as possible where it would leave no ack quorum, with event `placement.not_kept`: the ledger ends here, so
   refusing would protect nothing. One that asks several regions to hold an entry is kept in any case.
6. Entries written again carry the LAC that the search began from: nothing higher is final until the ledger is closed,
   and another recovery that saw less may close it first.
7. The ledger is closed by compare-and-set. A recovery that loses takes the winner's result.

Source: BookKeeper, LedgerRecoveryOp with #2614 and #2654; 6 is stricter than BookKeeper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from dlog.errors import (
    DLogError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
    UnavailableError,
)
from dlog.events import LedgerRecovered, LedgerRecoveryFenced, LedgerRecoveryStarted
from dlog.ledger.last_entries import LastEntryPoll
from dlog.ledger.placement import Placement
from dlog.ledger.recovery_length import LengthReader
from dlog.ledger.recovery_retries import RETRY, RecoveryRetries
from dlog.ledger.recovery_search import LAST_ENTRIES_MAX, EntrySearch
from dlog.ledger.recovery_writer import RecoveryWriter, ReplacementPool
from dlog.machine import (
    Answer,
    Asked,
    Conflict,
    Effect,
    Emit,
    Fact,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    PeerLost,
    Received,
    Refused,
    Ticket,
    TimerFired,
)
from dlog.metadata_update import Found, MetadataUpdateLoop, Written
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata, LedgerState
from dlog.options import option
from dlog.wire.bookie import Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.digest import Digest, Entry


@dataclass(frozen=True, slots=True)
class Recover:
    """Request: fence and close the ledger. Reply: Recovered. Repeatable, also after an error."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The last entry and length, final. readded: entries that this recovery wrote again. last_payloads: of the last
    entries, contiguous up to the last one, those that this recovery read; LAST_ENTRIES_MAX at most.
    """

    last_entry: EntryId
    length: int
    metadata: LedgerMetadata
    readded: int = 0
    last_payloads: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """Read-ahead of a recovery, and its retries before it returns an error."""

    ahead_entries_max: int = option(16, sim=(1, 4))  # read, and not yet written again
    retry_s: float = option(0.25, sim=(0.01, 1.0))
    attempts_max: int = option(8, sim=(1, 8))  # consecutive, without progress


@dataclass(frozen=True, slots=True)
class Closing:
    """The last stage: the metadata to write, the fragments that were searched, the number of entries written again, and
    entries that were read, by id."""

    value: LedgerMetadata
    searched: tuple[Fragment, ...]
    readded: int
    read: Mapping[int, Entry]

    def fits(self, value: LedgerMetadata) -> bool:
        """Whether metadata as read still names the fragments that were searched."""
        return value.state is LedgerState.IN_RECOVERY and value.fragments == self.searched

    def last_payloads(self, last: int) -> tuple[bytes, ...]:
        """Payloads of the entries read that are contiguous up to `last`; LAST_ENTRIES_MAX at most."""
        first = last + 1
        while first - 1 in self.read and last + 1 - first < LAST_ENTRIES_MAX:
            first -= 1
        return tuple(bytes(self.read[entry].payload) for entry in range(first, last + 1))


class LedgerRecoverer:
    """Recovers one ledger; others may recover it at the same time.

    placement: replacements are chosen under the policy in the ledger's metadata (`Placement.for_ledger`). password: of
    the ledger; the one in metadata if None.
    """

    def __init__(
        self,
        ledger: LedgerId,
        placement: Placement,
        options: RecoveryOptions = RecoveryOptions(),
        password: bytes | None = None,
    ) -> None:
        self.ledger = ledger
        self.result: Recovered | None = None
        self._options = options
        self._password = password
        self._pool = ReplacementPool(placement)
        self._retries = RecoveryRetries(options.retry_s, options.attempts_max)
        self._restarts = 0
        self._tickets: list[Ticket] = []  # none: no recovery is running
        self._update = MetadataUpdateLoop(LedgerKey(ledger))
        # None: no recovery is running, or it reads metadata or sets it IN_RECOVERY
        self._stage: LastEntryPoll | EntrySearch | LengthReader | Closing | None = None
        self._effects: list[Effect] = []

    # ---- entry point -------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        try:
            self._note(fact)
            self._settle()
        except DLogError as error:
            self._fail(error)
        self._effects = []
        return effects

    def _note(self, fact: Fact) -> None:
        match fact:
            case Received(peer, EntryRead() as answer) if answer.ledger == self.ledger:
                self._note_read(cast(BookieId, peer), answer)
            case Received(peer, EntryAdded() as answer) if answer.ledger == self.ledger:
                if isinstance(self._stage, EntrySearch):
                    self._stage.writer.note_added(cast(BookieId, peer), answer)
            case PeerLost(peer, reason):
                self._note_lost(cast(BookieId, peer), reason)
            case MetadataSeen():
                self._note_metadata(fact)
            case TimerFired(key) if key == RETRY and self._retries.is_waiting:
                self._retries.is_waiting = False
                self._retry()
            case Asked(ticket, Recover()):
                self._note_asked(ticket)

    def _note_asked(self, ticket: Ticket) -> None:
        if self.result is not None:
            self._effects.append(Answer(ticket, self.result))
            return
        self._tickets.append(ticket)
        if len(self._tickets) == 1:
            self._retries.attempts = self._restarts = 0
            self._open()

    def _note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        if answer.code is Code.UNAUTHORIZED and self._tickets:
            why = f"the bookie rejects the ledger's password, check it: ledger={self.ledger} bookie={bookie}"
            raise UnauthorizedError(why)
        match self._stage:
            case LastEntryPoll() as poll if answer.fence and answer.entry == NO_ENTRY:
                poll.note_read(bookie, answer)
            case EntrySearch() as search if answer.fence:
                search.note_read(bookie, answer)
            case LengthReader() as reader if not answer.fence:
                reader.note_read(bookie, answer)

    def _note_lost(self, bookie: BookieId, reason: str) -> None:
        match self._stage:
            case LastEntryPoll() | LengthReader() as stage:
                stage.note_lost(bookie)
            case EntrySearch() as search:
                search.note_lost(bookie)
                search.writer.note_lost(bookie, reason)

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Start, or start over, from current metadata."""
        self._stage = None
        self._update.read(self._effects)

    def _note_metadata(self, fact: MetadataSeen) -> None:
        match self._update.handle(fact, self._effects):
            case Written(value) | Found(value):
                self._note_value(value)
            case Missing():
                raise LedgerNotFoundError(f"no such ledger, never created or deleted: ledger={self.ledger}")
            case Refused(error):
                raise error
            case Conflict() | OutcomeUnknown() if self._update.wrote:
                self._update.read(self._effects)
            case OutcomeUnknown(reason):
                why = f"metadata is unreachable, retry: ledger={self.ledger} reason={reason}"
                self._retries.wait(MetadataUnavailableError(why), self._effects)

    def _note_value(self, value: LedgerMetadata) -> None:
        """Go on from this value of metadata, read or written."""
        if value.is_closed:
            self._finish(value)
        elif isinstance(self._stage, Closing) and self._stage.fits(value):
            self._update.write(self._stage.value, self._effects)
        elif value.state is LedgerState.IN_RECOVERY:
            self._fence(value)
        else:
            self._stage = None
            self._update.write(value.in_recovery(), self._effects)

    # ---- from stage to stage -----------------------------------------------------------------------------------------

    def _fence(self, value: LedgerMetadata) -> None:
        """Metadata is IN_RECOVERY: fence the last ensemble."""
        last = value.fragments[-1]
        self._pool.placement = self._pool.placement.for_ledger(value)
        digest = Digest(self.ledger, value.digest, value.password if self._password is None else self._password)
        request = ReadEntry(self.ledger, NO_ENTRY, fence=True, master_key=digest.master_key, high_priority=True)
        self._stage = LastEntryPoll(request, value, digest, EntryId(last.first_entry - 1))
        self._effects.append(Emit(LedgerRecoveryStarted(self.ledger, last.ensemble)))
        self._stage.ask(self._effects)

    def _settle(self) -> None:
        """Go on to the next stage, as far as the facts so far allow."""
        if isinstance(self._stage, LastEntryPoll):
            if self._stage.is_complete():
                self._search(self._stage)
            elif self._stage.failed:
                self._retries.pause(self._effects)
        if isinstance(self._stage, EntrySearch):
            self._stage.settle(self._effects)
            if failed := self._stage.writer.failed_replacements():
                self._start_over(failed)
            elif self._stage.is_finished():
                self._measure(self._stage)
        if isinstance(self._stage, LengthReader):
            self._stage.settle(self._effects)
            if self._stage.length is not None:
                value = self._stage.fence.metadata.closed_at(self._stage.last, self._stage.length)
                self._close(Closing(value, self._stage.fence.metadata.fragments, 0, self._stage.fence.entries))

    def _search(self, fence: LastEntryPoll) -> None:
        """Look for entries after the LAC, now that every possible ack quorum has a fenced member."""
        assert fence.is_complete(), "no search before fence coverage"
        assert fence.lac >= fence.metadata.fragments[-1].first_entry - 1, "the search stays in the last fragment"
        self._effects.append(Emit(LedgerRecoveryFenced(self.ledger, fence.lac, fence.answered)))
        self._retries.attempts = 0
        ahead = self._options.ahead_entries_max
        writer = RecoveryWriter(fence, self._pool, ahead, self._retries)
        self._stage = EntrySearch(fence, writer, ahead, self._retries)

    def _start_over(self, failed: list[BookieId]) -> None:
        """Start over from current metadata, without the replacements that failed."""
        self._pool.failed.update(failed)
        self._restarts += 1
        if self._restarts > self._options.attempts_max:
            raise NotEnoughBookiesError(
                f"too many replacement bookies failed, check them (dlog bookie ls): ledger={self.ledger} "
                f"last={', '.join(failed)}"
            )
        self._retries.stop(self._effects)
        self._open()

    def _measure(self, search: EntrySearch) -> None:
        """Determine the ledger's length, now that the last entry is known and every entry is safe."""
        last, writer = search.end, search.writer
        assert last is not None and last >= search.fence.lac
        if writer.pushed_count:
            value = writer.metadata.closed_at(last, writer.length)
            read = {**search.fence.entries, **search.found}
            self._close(Closing(value, search.fence.metadata.fragments, writer.pushed_count, read))
        else:
            self._stage = LengthReader(search.fence, last, self._retries)
            self._stage.ask(self._effects)

    def _close(self, closing: Closing) -> None:
        self._stage = closing
        self._retries.attempts = 0
        self._update.write(closing.value, self._effects)

    def _finish(self, value: LedgerMetadata) -> None:
        """The ledger is closed, by this recovery or by another client."""
        readded, last_payloads = 0, tuple[bytes, ...]()
        if isinstance(self._stage, Closing):
            readded, last_payloads = self._stage.readded, self._stage.last_payloads(value.last_entry)
        self.result = Recovered(value.last_entry, value.length, value, readded, last_payloads)
        self._effects.append(Emit(LedgerRecovered(self.ledger, value.last_entry, readded)))
        self._effects += [Answer(ticket, self.result) for ticket in self._tickets]
        self._end()

    def _fail(self, error: DLogError) -> None:
        """Give up for now; the next Recover request starts over."""
        self._update.stop(self._effects)
        self._effects += [Answer(ticket, type(error)(error.message)) for ticket in self._tickets]
        self._end()

    def _end(self) -> None:
        self._stage = None
        self._tickets.clear()
        self._retries.stop(self._effects)

    def _retry(self) -> None:
        """Ask those again that have not replied. Only a round that all replied to counts as an attempt: bookies that
        replied with an error are asked again all the same, since the others may be frozen for long.
        """
        match self._stage:
            case LastEntryPoll() as poll:
                if poll.is_stuck():
                    why = "too few bookies replied to fence the ledger, start them (dlog bookie ls)"
                    self._retries.note_failure(UnavailableError(f"{why}: ledger={self.ledger}"))
                poll.ask_again(self._effects)
            case EntrySearch() as search:
                search.retry(self._effects)
            case LengthReader() as reader:
                reader.ask(self._effects)
            case Closing() | None:
                self._update.read(self._effects)
