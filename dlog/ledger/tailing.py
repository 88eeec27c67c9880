"""Follows the LAC of an open ledger by asking bookies, until the ledger is closed.

Polling asks one bookie at a time, in turn, and accepts LACs reported by others. With long polls (v3 only) that bookie
answers when its LAC has moved (dlog/ledger/long_polls.py). The last ensemble may change meanwhile, so metadata is read
again while the LAC does not move.

Invariants:
- the LAC never decreases: every value from a verified packet, of an entry or an explicit LAC, or from a closed ledger's
  metadata is a lower bound for ever, so a late reply is old but true;
- a *certain* LAC (ReadLac) needs metadata read after the request, and replies from every possible ack quorum of the
  last ensemble; ends of long polls are no such replies.

Source: BookKeeper, ReadLastConfirmedOp, by READ of entry -1 (v2), READ_LAC (v3), and ReadLastConfirmedAndEntryOp.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast

from dlog.errors import DLogError, LedgerNotFoundError, MetadataUnavailableError, UnavailableError
from dlog.ledger.last_entries import ABSENT
from dlog.ledger.long_polls import LongPolls
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    Effect,
    Fact,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    PeerLost,
    ReadMetadata,
    Received,
    Refused,
    SeenOutcome,
    Send,
    SetTimer,
    Ticket,
    TimerFired,
    Versioned,
)
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata
from dlog.options import option
from dlog.values import value
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.bookie_v3_messages import LacRead, ReadWithLacDone
from dlog.wire.bookie_v3_messages import ReadLac as ReadExplicitLac
from dlog.wire.digest import Digest, DigestMismatch
from dlog.wire.framing import Buffer


@value
class WaitLac:
    """Request: wait until the LAC exceeds `above` or the ledger is closed. Reply: LedgerLac. Polls until then; a long
    poll may outlive it."""

    above: EntryId


@value
class ReadLac:
    """Request: ask the bookies for a LAC, at least that in every entry confirmed before now. Reply: LedgerLac.

    Errors: UnavailableError if too few bookies replied in `answer_s`, MetadataUnavailableError, LedgerNotFoundError. A
    LAC travels with a later entry, so the newest confirmed entries may be above it.
    """


@value
class LearnLac:
    """Request: use this lower bound of the LAC, known from the writer or from an entry. Reply: None."""

    lac: EntryId


@value
class LearnMetadata:
    """Request: use this metadata, read elsewhere (a watch fired). Reply: None."""

    metadata: LedgerMetadata


@value
class LedgerLac:
    """The LAC; if `closed`, the last entry of the ledger, for ever."""

    lac: EntryId
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TailingOptions:
    """How often bookies and metadata are polled while the LAC does not move."""

    poll_min_s: float = option(0.005, sim=(0.001, 0.05))
    poll_max_s: float = option(0.5, sim=(0.01, 1.0))
    metadata_s: float = option(1.0, sim=(0.05, 2.0))  # between reads of metadata while the LAC does not move
    answer_s: float = option(2.0, sim=(0.05, 2.0))  # for a certain LAC, before the request fails
    long_poll_s: float = 0.0  # how long a bookie waits for news; 0: plain polls. v3 only
    explicit_lac: bool = False  # ask for explicit LACs, too. v3 only


_REFUSALS = (Code.BAD_REQUEST, Code.TOO_MANY_REQUESTS)  # of long polls; a plain read may be answered


class _Round(enum.Enum):
    """Progress of the current round of ReadLac requests."""

    NONE = "none"
    METADATA = "metadata"
    BOOKIES = "bookies"


class LedgerTailer:
    """Follows the LAC of one ledger.

    metadata: as last read. digest: of the ledger. lac: readers may read up to it. closed: it is the last entry.
    """

    def __init__(
        self, ledger: LedgerId, metadata: LedgerMetadata, digest: Digest, options: TailingOptions = TailingOptions()
    ) -> None:
        self.ledger = ledger
        self.lac = NO_ENTRY
        self.closed = False
        self._metadata = metadata
        self._digest = digest
        self._options = options
        self._waiters: dict[Ticket, EntryId] = {}
        self._certain: list[Ticket] = []  # served by the current round
        self._later: list[Ticket] = []  # arrived too late for it
        self._round = _Round.NONE
        self._answered: set[BookieId] = set()  # in the current round
        self._mute: set[BookieId] = set()
        self._turn = 0
        wait_s = options.long_poll_s
        self._long_polls = LongPolls(ledger, wait_s, options.poll_max_s) if wait_s else None
        self._poll_s = options.poll_min_s
        self._still_s = 0.0  # since the LAC last moved, by our own poll intervals
        self._polling = False  # the timer is running
        self._reads = 0
        self._reading = False  # metadata, under the token `_reads`
        self._effects: list[Effect] = []
        self._learn(metadata)

    # ---- entry point -------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        match fact:
            case Received(peer, EntryRead(entry=-1, fence=False) as answer) if answer.ledger == self.ledger:
                self._note_read(cast(BookieId, peer), answer)
            case Received(peer, LacRead() as answer) if answer.ledger == self.ledger:
                self._note_lac_read(cast(BookieId, peer), answer)
            case Received(peer, ReadWithLacDone() as answer) if answer.ledger == self.ledger:
                self._note_long_poll(cast(BookieId, peer), answer)
            case PeerLost(peer):
                self._note_mute(cast(BookieId, peer))
                if self._long_polls is not None:
                    self._long_polls.lost(cast(BookieId, peer))
            case TimerFired("poll"):
                self._polling = False
            case TimerFired("certain") if self._certain:
                self._end_round(self._too_few())
            case MetadataSeen(token, outcome) if self._reading and token == self._reads:
                self._reading = False
                self._note_metadata(outcome)
            case Asked(ticket, request):
                self._note_asked(ticket, request)
        self._settle()
        self._effects = []
        return effects

    def _note_asked(self, ticket: Ticket, request: object) -> None:
        match request:
            case WaitLac(above):
                self._waiters[ticket] = above
                self._poll_s = self._options.poll_min_s
            case ReadLac():
                self._later.append(ticket)
            case LearnLac(lac):
                self._raise_to(lac)
                self._effects.append(Answer(ticket, None))
            case LearnMetadata(metadata):
                self._learn(metadata)
                self._effects.append(Answer(ticket, None))
            case _:
                raise AssertionError(f"not a request of a tailer: {request!r}")

    # ---- facts -------------------------------------------------------------------------------------------------------

    def _note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        if self._note_last(bookie, answer.code, answer.packet):
            self._answered.add(bookie)
        else:
            self._note_mute(bookie)

    def _note_long_poll(self, bookie: BookieId, answer: ReadWithLacDone) -> None:
        """The bookie may have looked long ago, so this counts neither for a certain LAC nor against it."""
        assert self._long_polls is not None, "no long poll was sent"
        has_reported = self._note_last(bookie, answer.code, answer.packet or b"")
        if self._options.explicit_lac and answer.code is Code.OK and answer.lac > self.lac and not self.closed:
            self._effects.append(self._question(bookie))  # what it knows beyond the packet is to be proved
        self._long_polls.answered(bookie, refused=answer.code in _REFUSALS, failed=not has_reported)

    def _note_lac_read(self, bookie: BookieId, answer: LacRead) -> None:
        """The explicit LAC and the last entry, each if the bookie has one, are verified by themselves."""
        has_reported = answer.code in ABSENT
        if answer.code is Code.OK:
            has_reported = True
            if len(answer.lac_packet):
                try:
                    self._raise_to(self._digest.verify_lac(answer.lac_packet))
                except DigestMismatch:
                    has_reported = False
            if len(answer.last_packet):
                has_reported = self._note_last(bookie, Code.OK, answer.last_packet) and has_reported
        if has_reported:
            self._answered.add(bookie)
        else:
            self._note_mute(bookie)

    def _question(self, bookie: BookieId) -> Send:
        """Ask a bookie for what shows a LAC."""
        explicit = self._options.explicit_lac
        return Send(bookie, ReadExplicitLac(self.ledger) if explicit else ReadEntry(self.ledger, NO_ENTRY))

    def _note_last(self, bookie: BookieId, code: Code, packet: Buffer) -> bool:
        """Record the last entry that a bookie has; False: it did not report it."""
        if code is not Code.OK:
            return code in ABSENT
        try:
            entry = self._digest.verify(packet)
        except DigestMismatch:
            return False
        self._raise_to(entry.lac)
        if self._long_polls is not None and entry.lac == self.lac:
            self._long_polls.proof = (self.lac, bookie)
        return True

    def _note_mute(self, bookie: BookieId) -> None:
        """Record that the bookie cannot report a LAC. Polling goes on with the next one."""
        self._mute.add(bookie)

    def _note_metadata(self, outcome: SeenOutcome) -> None:
        match outcome:
            case Versioned(value):
                self._learn(value)
                self._still_s = 0.0
                if self._round is _Round.METADATA and not self.closed:
                    self._round = _Round.BOOKIES
                    for bookie in self._metadata.fragments[-1].ensemble:
                        self._effects.append(self._question(bookie))
            case Missing():
                error = LedgerNotFoundError(f"the ledger was deleted: ledger={self.ledger}")
                self._effects += [Answer(ticket, error) for ticket in self._waiters]
                self._waiters.clear()
                self._end_round(error)
            case Refused(error) if self._round is _Round.METADATA:
                self._end_round(error)
            case OutcomeUnknown(reason) if self._round is _Round.METADATA:
                self._end_round(
                    MetadataUnavailableError(f"metadata is unreachable, retry: ledger={self.ledger} reason={reason}")
                )

    def _learn(self, metadata: LedgerMetadata) -> None:
        if self.closed:
            return
        if len(metadata.fragments) >= len(self._metadata.fragments):
            self._metadata = metadata
        if metadata.is_closed:
            self.lac = metadata.last_entry
            self.closed = True
        else:
            # a fragment begins after the LAC its writer had confirmed
            self._raise_to(EntryId(metadata.fragments[-1].first_entry - 1))

    def _raise_to(self, lac: EntryId) -> None:
        if lac > self.lac and not self.closed:
            self.lac = lac
            self._poll_s = self._options.poll_min_s
            self._still_s = 0.0

    # ---- consequences ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        seen = LedgerLac(self.lac, self.closed)
        for ticket, above in list(self._waiters.items()):
            if self.closed or self.lac > above:
                del self._waiters[ticket]
                self._effects.append(Answer(ticket, seen))
        if self._certain and (self.closed or self._is_covered()):
            self._end_round(seen)
        elif self._round is _Round.BOOKIES and self._have_all_answered():
            self._end_round(self._too_few())
        if self._later and not self._certain:
            self._begin_round()
        if self._waiters and not self._polling:
            self._poll()
        elif self._waiters and self._long_polls is not None:
            self._send_long_poll(self._long_polls)
        elif not self._waiters and self._polling:
            self._polling = False
            self._effects.append(CancelTimer("poll"))

    def _is_covered(self) -> bool:
        return self._round is _Round.BOOKIES and self._metadata.quorum.covered(self._indices(self._answered))

    def _have_all_answered(self) -> bool:
        return len(self._indices(self._answered | self._mute)) == self._metadata.quorum.ensemble

    def _too_few(self) -> UnavailableError:
        silent = [bookie for bookie in self._metadata.fragments[-1].ensemble if bookie not in self._answered]
        where = f"ledger={self.ledger} without_answer={','.join(silent)}"
        return UnavailableError(f"too few bookies reported the LAC, check them (dlog bookie ls): {where}")

    def _indices(self, bookies: set[BookieId]) -> list[int]:
        return [i for i, bookie in enumerate(self._metadata.fragments[-1].ensemble) if bookie in bookies]

    def _begin_round(self) -> None:
        """Read metadata, since the last ensemble may have changed; then ask all of its bookies."""
        self._certain, self._later = self._later, []
        if self.closed:
            self._end_round(LedgerLac(self.lac, True))
            return
        self._round = _Round.METADATA
        self._answered.clear()
        self._mute.clear()
        self._read_metadata()
        self._effects.append(SetTimer("certain", self._options.answer_s))

    def _end_round(self, result: LedgerLac | DLogError) -> None:
        self._round = _Round.NONE
        self._effects += [Answer(ticket, result) for ticket in self._certain]
        self._effects.append(CancelTimer("certain"))
        self._certain.clear()

    def _poll(self) -> None:
        """Ask one bookie, and read metadata if due; the interval grows while the LAC does not move."""
        if self._still_s >= self._options.metadata_s and not self._reading:
            self._read_metadata()
        if self._long_polls is None:
            ensemble = self._metadata.fragments[-1].ensemble
            self._effects.append(self._question(ensemble[self._turn % len(ensemble)]))
            self._turn += 1
        else:
            self._long_polls.tick(self._poll_s)
            self._send_long_poll(self._long_polls)
        self._effects.append(SetTimer("poll", self._poll_s))
        self._polling = True
        self._still_s += self._poll_s
        self._poll_s = min(self._poll_s * 2, self._options.poll_max_s)

    def _send_long_poll(self, polls: LongPolls) -> None:
        request = polls.next_request(self._metadata, self.lac)
        if request is not None:
            self._effects.append(request)

    def _read_metadata(self) -> None:
        self._reads += 1
        self._reading = True
        self._effects.append(ReadMetadata(self._reads, LedgerKey(self.ledger)))
