"""Where a ledger ends for now: the LAC by asking bookies, and the end once it is closed.

The law of this file: the LAC of a tailer never goes back; what a verified packet or a closed ledger's metadata says is
a lower bound that holds for ever. A *certain* LAC needs metadata read after the question and answers from every
possible ack quorum of the last ensemble; polling is content with one bookie at a time, in turn, and with
hints from whoever knows. The last ensemble changes under a tailer, so metadata is read again while nothing moves.
(What moved once keeps its meaning: a LAC only ever grows, so an answer that comes late is true, merely old.)

Source: BookKeeper, ReadLastConfirmedOp, by READ of entry -1 (v2).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast

from dlog.errors import DLogError, LedgerNotFoundError, MetadataUnavailableError, UnavailableError
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
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch

_ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)


@dataclass(frozen=True, slots=True)
class WaitLac:
    """Ask: tell me when the LAC is above `above`, or the ledger closed. Answer: LacSeen. Polls while somebody waits."""

    above: EntryId


@dataclass(frozen=True, slots=True)
class ReadLac:
    """Ask: a LAC not below the one that any entry confirmed before now carries. Answer: LacSeen.

    Errors: UnavailableError if too few bookies answered in `answer_s`, MetadataUnavailableError, LedgerNotFoundError.
    An entry is confirmed before a later one carries that LAC, so the newest confirmed entries may be above it.
    """


@dataclass(frozen=True, slots=True)
class LearnLac:
    """Ask: somebody who knows (the writer, an entry read) says the LAC is at least this. Answer: None."""

    lac: EntryId


@dataclass(frozen=True, slots=True)
class LearnMetadata:
    """Ask: metadata as read elsewhere (a watch fired). Answer: None."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class LacSeen:
    """The LAC; if `closed` it is the last entry, for ever."""

    lac: EntryId
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TailingOptions:
    """How often bookies and metadata are asked while nothing moves."""

    poll_min_s: float = option(0.005, sim=(0.001, 0.05))
    poll_max_s: float = option(0.5, sim=(0.01, 1.0))
    metadata_s: float = option(1.0, sim=(0.05, 2.0))  # between readings of metadata while nothing moves
    answer_s: float = option(2.0, sim=(0.05, 2.0))  # for a certain LAC, before it is given up


class _Round(enum.Enum):
    """Where the certain question under way stands."""

    NONE = "none"
    METADATA = "metadata"
    BOOKIES = "bookies"


class LedgerTailer:
    """Follows the LAC of one ledger.

    metadata: as last seen. digest: of the ledger. lac: what every reader may read up to. closed: it is the end.
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
        self._certain: list[Ticket] = []  # served by the round under way
        self._later: list[Ticket] = []  # came too late for it
        self._round = _Round.NONE
        self._answered: set[BookieId] = set()  # in the round under way
        self._mute: set[BookieId] = set()
        self._turn = 0
        self._poll_s = options.poll_min_s
        self._still_s = 0.0  # for how long nothing has moved, by our own polling
        self._polling = False  # the timer runs
        self._reads = 0
        self._reading = False  # metadata, under the token `_reads`
        self._effects: list[Effect] = []
        self._learn(metadata)

    # ---- the door ----------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        match fact:
            case Received(peer, EntryRead(entry=-1, fence=False) as answer) if answer.ledger == self.ledger:
                self._note_last(cast(BookieId, peer), answer)
            case PeerLost(peer):
                self._note_mute(cast(BookieId, peer))
            case TimerFired("poll"):
                self._polling = False
            case TimerFired("certain") if self._certain:
                where = f"ledger={self.ledger} answered={len(self._answered)}"
                self._end_round(UnavailableError(f"too few bookies told the LAC: {where}"))
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

    def _note_last(self, bookie: BookieId, answer: EntryRead) -> None:
        if answer.code is Code.OK:
            try:
                entry = self._digest.verify(answer.packet)
            except DigestMismatch:
                self._note_mute(bookie)
                return
            self._raise_to(entry.lac)
        elif answer.code not in _ABSENT:
            self._note_mute(bookie)
            return
        self._answered.add(bookie)

    def _note_mute(self, bookie: BookieId) -> None:
        """The bookie cannot tell; a poll goes on with the next one at its next turn."""
        self._mute.add(bookie)

    def _note_metadata(self, outcome: SeenOutcome) -> None:
        match outcome:
            case Versioned(value):
                self._learn(value)
                self._still_s = 0.0
                if self._round is _Round.METADATA and not self.closed:
                    self._round = _Round.BOOKIES
                    for bookie in self._metadata.fragments[-1].ensemble:
                        self._effects.append(Send(bookie, ReadEntry(self.ledger, NO_ENTRY)))
            case Missing():
                error = LedgerNotFoundError(f"the ledger was deleted: ledger={self.ledger}")
                self._effects += [Answer(ticket, error) for ticket in self._waiters]
                self._waiters.clear()
                self._end_round(error)
            case Refused(error) if self._round is _Round.METADATA:
                self._end_round(error)
            case OutcomeUnknown(reason) if self._round is _Round.METADATA:
                self._end_round(MetadataUnavailableError(f"ledger={self.ledger} reason={reason}"))

    def _learn(self, metadata: LedgerMetadata) -> None:
        if self.closed:
            return
        if len(metadata.fragments) >= len(self._metadata.fragments):
            self._metadata = metadata
        if metadata.is_closed:
            self.lac = metadata.last_entry
            self.closed = True
        else:
            # a fragment begins after the LAC that its writer had confirmed
            self._raise_to(EntryId(metadata.fragments[-1].first_entry - 1))

    def _raise_to(self, lac: EntryId) -> None:
        if lac > self.lac and not self.closed:
            self.lac = lac
            self._poll_s = self._options.poll_min_s
            self._still_s = 0.0

    # ---- consequences ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        seen = LacSeen(self.lac, self.closed)
        for ticket, above in list(self._waiters.items()):
            if self.closed or self.lac > above:
                del self._waiters[ticket]
                self._effects.append(Answer(ticket, seen))
        if self._certain and (self.closed or self._is_covered()):
            self._end_round(seen)
        elif self._round is _Round.BOOKIES and self._are_all_heard():
            self._end_round(UnavailableError(f"too few bookies told the LAC: ledger={self.ledger}"))
        if self._later and not self._certain:
            self._begin_round()
        if self._waiters and not self._polling:
            self._poll()
        elif not self._waiters and self._polling:
            self._polling = False
            self._effects.append(CancelTimer("poll"))

    def _is_covered(self) -> bool:
        return self._round is _Round.BOOKIES and self._metadata.quorum.covered(self._places(self._answered))

    def _are_all_heard(self) -> bool:
        return len(self._places(self._answered | self._mute)) == self._metadata.quorum.ensemble

    def _places(self, bookies: set[BookieId]) -> list[int]:
        return [i for i, bookie in enumerate(self._metadata.fragments[-1].ensemble) if bookie in bookies]

    def _begin_round(self) -> None:
        """Metadata first, for the last ensemble may be another; then all of it."""
        self._certain, self._later = self._later, []
        if self.closed:
            self._end_round(LacSeen(self.lac, True))
            return
        self._round = _Round.METADATA
        self._answered.clear()
        self._mute.clear()
        self._read_metadata()
        self._effects.append(SetTimer("certain", self._options.answer_s))

    def _end_round(self, result: LacSeen | DLogError) -> None:
        self._round = _Round.NONE
        self._effects += [Answer(ticket, result) for ticket in self._certain]
        self._effects.append(CancelTimer("certain"))
        self._certain.clear()

    def _poll(self) -> None:
        """Ask one bookie, and metadata now and then; ask again after a time that grows while nothing moves."""
        if self._still_s >= self._options.metadata_s and not self._reading:
            self._read_metadata()
        ensemble = self._metadata.fragments[-1].ensemble
        bookie = ensemble[self._turn % len(ensemble)]
        self._turn += 1
        self._effects.append(Send(bookie, ReadEntry(self.ledger, NO_ENTRY)))
        self._effects.append(SetTimer("poll", self._poll_s))
        self._polling = True
        self._still_s += self._poll_s
        self._poll_s = min(self._poll_s * 2, self._options.poll_max_s)

    def _read_metadata(self) -> None:
        self._reads += 1
        self._reading = True
        self._effects.append(ReadMetadata(self._reads, LedgerKey(self.ledger)))
