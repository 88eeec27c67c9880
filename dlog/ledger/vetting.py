"""Vetting: asking bookies whether they hold anything of a ledger id that was just drawn.

Ids are drawn from ZooKeeper. After it was restored from a backup they are drawn a second time, while bookies hold
the entries of the first ledger of that id: a reader could be given those. So an id is used only if every member of its
ensemble says that it knows no such ledger (NO_LEDGER). Any other answer proves nothing, silence neither.

Source: BookKeeper, ReadEntry with entry id -1; Java's bookies answer it too.
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
    """Ask: do these bookies know the ledger? Answer: Vetted, once all have said or were lost, at the latest after
    `patience_s`. One question at a time."""

    bookies: tuple[BookieId, ...]
    patience_s: float


@dataclass(frozen=True, slots=True)
class Vetted:
    """unknown_to: hold nothing of it. known_to: hold something. Those in neither could not say."""

    unknown_to: frozenset[BookieId]
    known_to: frozenset[BookieId]


def vet_question(ledger: LedgerId) -> ReadEntry:
    """What a bookie is asked: its last entry of the ledger, without a fence."""
    return ReadEntry(ledger, NO_ENTRY, high_priority=True)


def is_known(answer: EntryRead) -> bool | None:
    """Whether the bookie that answered `vet_question` so holds anything of the ledger; None: it could not say."""
    if answer.code is Code.NO_LEDGER:
        return False
    return True if answer.code in (Code.OK, Code.NO_ENTRY) else None


class LedgerVetter:
    """Asks bookies about one ledger id. What a bookie said once holds: nobody writes to an id that is being vetted."""

    def __init__(self, ledger: LedgerId) -> None:
        self.ledger = ledger
        self._ticket: Ticket | None = None
        self._wanted: frozenset[BookieId] = frozenset()
        self._asked: set[BookieId] = set()  # without an answer yet
        self._unknown_to: set[BookieId] = set()
        self._known_to: set[BookieId] = set()

    def handle(self, fact: Fact) -> list[Effect]:
        effects: list[Effect] = []
        match fact:
            case Asked(ticket, Vet(bookies, patience_s)):
                assert self._ticket is None, "one question at a time"
                self._ticket, self._wanted = ticket, frozenset(bookies)
                effects.append(SetTimer("patience", patience_s))
                for bookie in bookies:
                    if bookie not in self._asked | self._unknown_to | self._known_to:
                        self._asked.add(bookie)
                        effects.append(Send(bookie, vet_question(self.ledger)))
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
