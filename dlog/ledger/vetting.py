"""Vetting: asks bookies whether they hold anything under a newly assigned ledger id.

ZooKeeper assigns the ids. If it is restored from a backup it assigns some a second time, while bookies still hold the
entries of the first ledger, which readers could be served.

Invariants:
- an id is used only if every member of the ensemble replied NO_LEDGER, and no other registered bookie replied that it
  holds something. A member without a reply, or with another error, does not count as one that holds nothing.

Source: BookKeeper, ReadEntry with entry id -1; Java's bookies support it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    Effect,
    Fact,
    PeerLost,
    Received,
    Send,
    SetTimer,
    Ticket,
    TimerFired,
)
from dlog.model.ids import NO_ENTRY, BookieId, LedgerId
from dlog.wire.bookie import Code, EntryRead, ReadEntry


@dataclass(frozen=True, slots=True)
class Vet:
    """Request: ask these bookies about the ledger. Reply: Vetted, once all replied or were lost, after `patience_s` at
    the latest. One request at a time.
    """

    bookies: tuple[BookieId, ...]
    patience_s: float


@dataclass(frozen=True, slots=True)
class Vetted:
    """Reply to Vet. unknown_to: hold nothing of it. known_to: hold something. The others could not tell."""

    unknown_to: frozenset[BookieId]
    known_to: frozenset[BookieId]


def vet_request(ledger: LedgerId) -> ReadEntry:
    """The request sent to a bookie: read the last entry of the ledger, without fencing."""
    return ReadEntry(ledger, NO_ENTRY, high_priority=True)


def is_known(answer: EntryRead) -> bool | None:
    """Whether the sender of this reply to `vet_request` holds anything of the ledger; None: it could not tell."""
    if answer.code is Code.NO_LEDGER:
        return False
    return True if answer.code in (Code.OK, Code.NO_ENTRY) else None


class LedgerVetter:
    """Asks bookies about one ledger id. A reply stays valid: nothing is written under an id that is being vetted."""

    def __init__(self, ledger: LedgerId) -> None:
        self.ledger = ledger
        self._ticket: Ticket | None = None
        self._wanted: frozenset[BookieId] = frozenset()
        self._asked: set[BookieId] = set()  # sent a request, no reply yet
        self._unknown_to: set[BookieId] = set()
        self._known_to: set[BookieId] = set()

    def handle(self, fact: Fact) -> list[Effect]:
        effects: list[Effect] = []
        match fact:
            case Asked(ticket, Vet(bookies, patience_s)):
                assert self._ticket is None, "one request at a time"
                self._ticket, self._wanted = ticket, frozenset(bookies)
                effects.append(SetTimer("patience", patience_s))
                for bookie in bookies:
                    if bookie not in self._asked | self._unknown_to | self._known_to:
                        self._asked.add(bookie)
                        effects.append(Send(bookie, vet_request(self.ledger)))
            case Received(peer, EntryRead() as answer) if answer.ledger == self.ledger:
                self._note(cast(BookieId, peer), is_known(answer))
            case PeerLost(peer):
                self._asked.discard(cast(BookieId, peer))
            case TimerFired("patience") if self._ticket is not None:
                return self._answer()
        if self._ticket is not None and not self._wanted & self._asked:
            effects += [CancelTimer("patience"), *self._answer()]
        return effects

    def _note(self, bookie: BookieId, known: bool | None) -> None:
        self._asked.discard(bookie)
        if known is not None:
            (self._known_to if known else self._unknown_to).add(bookie)

    def _answer(self) -> list[Effect]:
        ticket, self._ticket = self._ticket, None
        assert ticket is not None
        return [Answer(ticket, Vetted(self._wanted & self._unknown_to, self._wanted & self._known_to))]
