"""Entries of a ledger with deferred sync that are sent and not durable: which bookies have written each, and which of
these have made it durable since.

Invariants:
- an entry counts as durable at a bookie once the bookie acknowledged a force that was sent after the bookie had
  acknowledged the entry, with no loss of the connection between the two: a bookie that restarted may have lost what it
  had written. After a loss or a failed force, what was written there is unknown, and is sent again;
- an entry is confirmed, as in window.py, once Qa members have made it and every entry before it durable. It is kept
  until then, so that a replaced bookie gets it;
- at most one force is in flight to each bookie.

Source: BookKeeper, `WriteFlag.DEFERRED_SYNC` and ForceLedgerOp. Java's force waits for all members, and Java's writer
changes no ensemble of such a ledger, since it does not keep what was acknowledged.
"""

from __future__ import annotations

from dlog.ledger.placement import Confirms
from dlog.ledger.window import Pending, Window
from dlog.machine import Send
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry
from dlog.wire.bookie_v3_messages import ForceLedger


class DeferredWindow(Window):
    """A Window whose adds have DEFERRED_SYNC. `acks` of a Pending are the bookies at which it is durable.

    written: last entry that Qa members have written, with every entry before it. lac: the last durable one.
    """

    __slots__ = ("_covered", "_due", "_forces", "_written_at", "target", "written")

    def __init__(
        self,
        quorum: Quorum,
        ensemble: tuple[BookieId, ...],
        lac: EntryId,
        length: int,
        lag_max: int,
        confirms: Confirms | None = None,
    ) -> None:
        super().__init__(quorum, ensemble, lac, length, lag_max, confirms)
        self.written = lac
        self.target = lac  # entries up to it are to be made durable
        self._written_at: dict[int, int] = {}  # by entry: one bit per bookie index that has written it
        self._covered: dict[int, tuple[int, list[int]]] = {}  # by bookie index: the force in flight, what it covers
        self._forces = 0  # sent so far: the number of the last one
        self._due = 0  # one bit per bookie index with entries up to the target that no force covers

    @property
    def answered(self) -> EntryId:
        return self.written

    @property
    def is_head_written(self) -> bool:
        """Whether an ack quorum has written the oldest entry that is not durable."""
        return self._has_quorum(self._written_at.get(self.lac + 1, 0))

    def push(self, message: AddEntry, length: int, ticket: int = 0) -> list[Send]:
        add = AddEntry(message.ledger, message.entry, message.master_key, message.parts, deferred=True)
        return super().push(add, length, ticket)

    def acknowledge(self, bookie: BookieId, entry: EntryId) -> None:
        """Record that the bookie has written the entry."""
        index = self._indices.get(bookie)
        if index is None:
            return
        self._answered(index)
        if entry in self._pending:
            bit = (1 << index) & self._write_masks[entry % self.quorum.ensemble]
            self._written_at[entry] = self._written_at.get(entry, 0) | bit
            if entry <= self.target:
                self._due |= bit

    def confirm(self) -> list[Pending]:
        """Remove the entries at the head that are durable; return those that are written since the last call."""
        answers: list[Pending] = []
        while (head := self._pending.get(self.written + 1)) is not None and self._has_quorum(
            self._written_at.get(head.entry, 0)
        ):
            self.written = head.entry
            answers.append(head)
        for pending in super().confirm():
            del self._written_at[pending.entry]
        return answers

    def force(self, target: EntryId) -> None:
        """Have the entries up to this one made durable, once they are written."""
        self.target = max(self.target, target)
        for pending in self._pending.values():
            if pending.entry <= self.target:
                self._due |= self._written_at.get(pending.entry, 0) & ~pending.acks

    def forces(self, ledger: LedgerId) -> list[Send]:
        """The forces that are due now; they count as sent."""
        sends: list[Send] = []
        for index, bookie in enumerate(self.ensemble if self._due else ()):
            bit = 1 << index
            if not self._due & bit or index in self._covered or bookie in self.failed:
                continue
            self._due &= ~bit
            covered = [e for e, at in self._written_at.items() if at & bit and not self._pending[e].acks & bit]
            if covered:
                self._forces += 1
                self._covered[index] = self._forces, covered
                sends.append(Send(bookie, ForceLedger(ledger, self._forces)))
        return sends

    def note_forced(self, bookie: BookieId, number: int) -> None:
        """Record that the bookie acknowledged this force. Ignored if its connection was lost or it was replaced
        since."""
        index = self._indices.get(bookie, -1)
        sent, covered = self._covered.get(index, (0, []))
        if sent != number:
            return
        del self._covered[index]
        for entry in covered:
            if (pending := self._pending.get(entry)) is not None:
                pending.acks |= 1 << index

    def note_force_failed(self, bookie: BookieId, number: int, reason: str) -> None:
        """Record that the bookie could not make durable what it has written: count it as failed."""
        index = self._indices.get(bookie, -1)
        if self._covered.get(index, (0, []))[0] == number:
            self._forget(index)
            self.lose(bookie, reason)

    def disconnect(self, bookie: BookieId, reason: str) -> None:
        """The connection is lost, and with it perhaps what the bookie has written: count it as failed if there is such
        an entry, or one that is under way."""
        index = self._indices.get(bookie)
        if index is not None:
            self._forget(index)
        super().disconnect(bookie, reason)

    def adopt(self, ensemble: tuple[BookieId, ...]) -> list[Send]:
        for index, (old, new) in enumerate(zip(self.ensemble, ensemble, strict=True)):
            if old != new:
                self._forget(index)
        return super().adopt(ensemble)

    def abandon(self) -> list[Pending]:
        """Drop all entries; return those that are not answered."""
        dropped = super().abandon()
        self._written_at.clear()
        return [pending for pending in dropped if pending.entry > self.written]

    def _forget(self, index: int) -> None:
        """Forget what the bookie has written and not made durable, and the force in flight to it."""
        bit = 1 << index
        self._covered.pop(index, None)
        self._due &= ~bit
        for entry, at in self._written_at.items():
            if at & bit and not self._pending[entry].acks & bit:
                self._written_at[entry] = at & ~bit

    def _has_quorum(self, mask: int) -> bool:
        if mask.bit_count() < self.quorum.ack:
            return False
        return self._confirms is None or self._confirms(self._bookies_of(mask))
