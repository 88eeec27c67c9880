"""Writes a ledger with deferred sync: adds are acknowledged when they are written, and durable after a force.

Invariants, beside those of adding.py:
- an add is answered once Qa members of its ensemble have written it, and all entries before it are answered. It may be
  lost until a force covers it;
- the LAC, which readers and metadata get, moves only by forces (deferred_window.py): every entry up to it is on stable
  storage of Qa members, also after an ensemble change;
- a close that drains makes every entry durable first; one that does not leaves out those above the LAC.

Source: BookKeeper, `WriteFlag.DEFERRED_SYNC`, `ForceableHandle`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import ClosedError, DLogError, OverCapacityError
from dlog.ledger.adding import Add, AddingOptions, Close, LedgerAdder
from dlog.ledger.deferred_window import DeferredWindow
from dlog.ledger.placement import Placement
from dlog.machine import Answer, Asked, Effect, Fact, Received, Ticket, Versioned
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.wire.bookie import Code
from dlog.wire.bookie_v3_messages import LedgerForced
from dlog.wire.digest import Digest


@dataclass(frozen=True, slots=True)
class Force:
    """Request: make every entry durable whose add was answered before. Reply: the LAC, at least the last of them."""


class DeferredLedgerAdder(LedgerAdder):
    """The only writer of a ledger with deferred sync; see LedgerAdder. `lac`: the last durable entry."""

    __slots__ = ("_forces",)

    _window: DeferredWindow

    def __init__(
        self,
        ledger: LedgerId,
        metadata: Versioned,
        digest: Digest,
        placement: Placement,
        options: AddingOptions,
    ) -> None:
        super().__init__(ledger, metadata, digest, placement, options)
        value = self.metadata
        self._window = DeferredWindow(
            value.quorum, value.fragments[0].ensemble, NO_ENTRY, 0, options.lag_entries_max, placement.confirms
        )
        self._forces: list[tuple[EntryId, Ticket]] = []  # each with the entry up to which it forces, in order

    def handle(self, fact: Fact) -> list[Effect]:
        if not (isinstance(fact, Received) and isinstance(fact.message, LedgerForced)):
            return super().handle(fact)
        if self.error is None and fact.message.ledger == self.ledger:
            self._note_forced(BookieId(str(fact.peer)), fact.message)
            self._settle()
        effects, self._effects = self._effects, []
        return effects

    def _note_asked(self, fact: Asked) -> None:
        request, window = fact.request, self._window
        if isinstance(request, Force):
            if self.error is not None or self._closing is not None:
                self._effects.append(Answer(fact.ticket, self._refusal()))
            else:
                window.force(window.written)
                self._forces.append((window.written, fact.ticket))
            return
        is_full = len(window) >= self._options.unforced_entries_max
        if isinstance(request, Add) and is_full and self.error is None and self._closing is None:
            why = f"too many entries that no force covers, force the ledger first: ledger={self.ledger}"
            self._effects.append(Answer(fact.ticket, OverCapacityError(why)))
            return
        super()._note_asked(fact)
        if isinstance(request, Close) and self.error is None:
            self._note_close(request.drain)

    def _note_close(self, drain: bool) -> None:
        if drain:
            self._window.force(self._window.pushed)
        else:
            why = f"closed without waiting for the force: ledger={self.ledger}"
            self._end_forces(ClosedError(why, outcome_unknown=True))

    def _note_forced(self, bookie: BookieId, message: LedgerForced) -> None:
        if message.code is Code.OK:
            self._window.note_forced(bookie, message.number)
        else:
            self._window.note_force_failed(bookie, message.number, message.code.name.lower())

    def _note_timer(self, key: object) -> None:
        if key == "give_up" and self._update.is_current and self._window.is_head_written:
            self._drop_timer("give_up")  # no entry is durable since, for nobody has forced the ledger
        else:
            super()._note_timer(key)

    def _settle(self) -> None:
        super()._settle()
        if self.error is None:
            self._settle_forces()

    def _settle_forces(self) -> None:
        while self._forces and self._forces[0][0] <= self.lac:
            self._effects.append(Answer(self._forces.pop(0)[1], self.lac))
        self._effects += self._window.forces(self.ledger)

    def _die(self, error: DLogError) -> None:
        super()._die(error)
        assert self.error is not None
        self._end_forces(type(self.error)(self.error.message, outcome_unknown=True))

    def _end_forces(self, error: DLogError) -> None:
        for target, ticket in self._forces:
            self._effects.append(Answer(ticket, self.lac if target <= self.lac else error))
        self._forces.clear()
