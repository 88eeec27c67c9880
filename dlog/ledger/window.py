"""Entries of a ledger that are sent and not confirmed, and which bookies acknowledged each.

adding.py and recovery_writer.py decide when the ensemble changes and when confirming waits.

Invariants:
- an acknowledgement counts for the *bookie index* that its sender holds in the ensemble now;
- when a bookie index gets another bookie, its acknowledgements are forgotten and the entries are sent to the new
  bookie, byte for byte;
- an entry is confirmed once Qa members have acknowledged it, the placement policy accepts those members (`Confirms` of
  placement.py), and every entry before it is confirmed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from dlog.ledger.placement import Confirms
from dlog.machine import Send
from dlog.model.ids import BookieId, EntryId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry


class Pending:
    """A sent, unconfirmed entry. `length` is cumulative; `acks`: one bit per bookie index that acknowledged."""

    __slots__ = ("acks", "entry", "length", "message", "ticket")

    def __init__(self, entry: EntryId, length: int, message: AddEntry, ticket: int) -> None:
        self.entry = entry
        self.length = length
        self.message = message
        self.ticket = ticket
        self.acks = 0


class _StripeTable(NamedTuple):
    """Which bookies store an entry, by entry id modulo ensemble size. Shared by all ledgers of the ensemble."""

    indices: dict[BookieId, int]
    targets: tuple[tuple[tuple[int, BookieId], ...], ...]  # bookie indices and their members
    write_masks: tuple[int, ...]


@lru_cache(maxsize=1024)
def _stripe_table(quorum: Quorum, ensemble: tuple[BookieId, ...]) -> _StripeTable:
    sets = [quorum.write_set(e) for e in range(quorum.ensemble)]
    return _StripeTable(
        {bookie: i for i, bookie in enumerate(ensemble)},
        tuple(tuple((i, ensemble[i]) for i in ws) for ws in sets),
        tuple(sum(1 << i for i in ws) for ws in sets),
    )


class Window:
    """Sends entries to one ensemble and counts their acknowledgements.

    lac, length: the last confirmed entry, and the ledger's payload bytes up to it. failed: members that will not
    acknowledge what was sent to them, with the reason; nothing more is sent to them. confirms: whether an ack quorum
    confirms an entry; None: any does.
    """

    __slots__ = (
        "_confirms",
        "_indices",
        "_lag_max",
        "_pending",
        "_targets",
        "_unanswered",
        "_write_masks",
        "ensemble",
        "failed",
        "lac",
        "length",
        "pushed",
        "pushed_length",
        "quorum",
    )

    def __init__(
        self,
        quorum: Quorum,
        ensemble: tuple[BookieId, ...],
        lac: EntryId,
        length: int,
        lag_max: int,
        confirms: Confirms | None = None,
    ) -> None:
        self.quorum = quorum
        self.ensemble = ensemble
        self.lac = lac
        self.length = length
        self.pushed = lac  # last entry that was sent
        self.pushed_length = length
        self.failed: dict[BookieId, str] = {}
        self._lag_max = lag_max
        self._confirms = confirms
        self._pending: dict[int, Pending] = {}  # by entry, in order
        self._unanswered = [0] * len(ensemble)  # by bookie index
        self._indices, self._targets, self._write_masks = _stripe_table(quorum, ensemble)

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def answered(self) -> EntryId:
        """Last entry whose add may be answered with success."""
        return self.lac

    def push(self, message: AddEntry, length: int, ticket: int = 0) -> list[Send]:
        """Append the next entry to the window and send it to its write set, except to failed members."""
        entry = message.entry
        assert entry == self.pushed + 1, "entry ids are consecutive"
        pending = Pending(entry, length, message, ticket)
        self.pushed, self.pushed_length = entry, length
        self._pending[entry] = pending
        limit = len(self._pending) + self._lag_max
        unanswered = self._unanswered
        sends: list[Send] = []
        for index, bookie in self._targets[entry % self.quorum.ensemble]:
            if self.failed and bookie in self.failed:
                continue
            waiting = unanswered[index] + 1
            unanswered[index] = waiting
            if waiting > limit:
                self.lose(bookie, f"{waiting - len(self._pending)} entries behind the others")
                continue
            sends.append(Send(bookie, message))
        return sends

    def acknowledge(self, bookie: BookieId, entry: EntryId) -> None:
        """Record that the bookie holds the entry. Ignored if it is not a member of the entry's write set now."""
        index = self._indices.get(bookie)
        if index is None:
            return
        self._answered(index)
        pending = self._pending.get(entry)
        if pending is not None:
            pending.acks |= (1 << index) & self._write_masks[entry % self.quorum.ensemble]

    def refuse(self, bookie: BookieId, reason: str) -> None:
        """The bookie will not store an entry: count it as failed."""
        index = self._indices.get(bookie)
        if index is not None:
            self._answered(index)
            self.lose(bookie, reason)

    def disconnect(self, bookie: BookieId, reason: str) -> None:
        """The bookie's outstanding requests will get no reply: count it as failed if there are any.

        The count of unanswered sends is not enough: late replies to sends before the loss decrement it too, though
        those entries were sent again.
        """
        index = self._indices.get(bookie)
        if index is not None and (self._unanswered[index] or self._has_unacknowledged(index)):
            self._unanswered[index] = 0
            self.lose(bookie, reason)

    def lose(self, bookie: BookieId, reason: str) -> None:
        """Mark as failed."""
        if bookie in self._indices:
            self.failed.setdefault(bookie, reason)

    def readmit(self, bookie: BookieId) -> list[Send]:
        """Use a failed member again: send it the pending entries that it has not acknowledged."""
        index = self._indices[bookie]
        self.failed.pop(bookie, None)
        self._unanswered[index] = 0
        return self._send_again(index)

    def members(self, entry: EntryId) -> list[BookieId]:
        """The bookies of the entry's write set in the current ensemble."""
        return [bookie for _, bookie in self._targets[entry % self.quorum.ensemble]]

    def head_indices(self) -> list[int]:
        """The bookie indices of the head's write set that did not fail."""
        targets = self._targets[(self.lac + 1) % self.quorum.ensemble]
        return [i for i, bookie in targets if bookie not in self.failed]

    def would_confirm(self, replacements: Mapping[int, BookieId]) -> bool:
        """Whether the head's write set would confirm it with these replacements."""
        indices = {*self.head_indices(), *replacements}
        members = [
            replacements.get(i, bookie)
            for i, bookie in self._targets[(self.lac + 1) % self.quorum.ensemble]
            if i in indices
        ]
        return len(members) >= self.quorum.ack and (self._confirms is None or self._confirms(members))

    def failed_indices(self) -> list[int]:
        return [i for i, bookie in enumerate(self.ensemble) if bookie in self.failed]

    def confirm(self) -> list[Pending]:
        """Remove and return the entries at the head that are confirmed."""
        waiting, needed, confirms = self._pending, self.quorum.ack, self._confirms
        confirmed: list[Pending] = []
        while (head := waiting.get(self.lac + 1)) is not None and head.acks.bit_count() >= needed:
            if confirms is not None and not confirms(self._bookies_of(head.acks)):
                break
            del waiting[head.entry]
            self.lac, self.length = head.entry, head.length
            confirmed.append(head)
        assert not waiting or head is not None, "confirmed in order, without gaps"
        if not waiting:
            waiting.clear()  # an empty dict keeps its allocated capacity
        return confirmed

    def can_progress(self, without: Collection[BookieId] = ()) -> bool:
        """Whether the head can still be confirmed with the current ensemble. without: members that may acknowledge no
        more, beside those that failed."""
        if not self._pending or (not self.failed and not without and self._confirms is None):
            return True
        head = self._pending[self.lac + 1]
        lost = self._mask_of({*self.failed, *without})
        possible = head.acks | (self._write_masks[head.entry % self.quorum.ensemble] & ~lost)
        if possible.bit_count() < self.quorum.ack:
            return False
        return self._confirms is None or self._confirms(self._bookies_of(possible))

    def adopt(self, ensemble: tuple[BookieId, ...]) -> list[Send]:
        """Change the ensemble from LAC + 1 on: forget acknowledgements of replaced members, send again."""
        assert len(ensemble) == len(self.ensemble) == len(set(ensemble)), "an ensemble holds each bookie once"
        changed = [i for i, (old, new) in enumerate(zip(self.ensemble, ensemble, strict=True)) if old != new]
        before = dict(zip(self.ensemble, self._unanswered, strict=True))
        self.ensemble = ensemble
        self._indices, self._targets, self._write_masks = _stripe_table(self.quorum, ensemble)
        self._unanswered = [before.get(bookie, 0) for bookie in ensemble]
        self.failed = {bookie: why for bookie, why in self.failed.items() if bookie in self._indices}
        keep = ~sum(1 << i for i in changed)
        for pending in self._pending.values():
            pending.acks &= keep
        return [send for index in changed for send in self._send_again(index)]

    def abandon(self) -> list[Pending]:
        """Drop and return all pending entries."""
        abandoned = list(self._pending.values())
        self._pending.clear()
        return abandoned

    def _send_again(self, index: int) -> list[Send]:
        bookie, bit, size = self.ensemble[index], 1 << index, self.quorum.ensemble
        sends = [
            Send(bookie, pending.message)
            for pending in self._pending.values()
            if bit & self._write_masks[pending.entry % size] & ~pending.acks
        ]
        self._unanswered[index] += len(sends)
        return sends

    def _has_unacknowledged(self, index: int) -> bool:
        bit, masks, size = 1 << index, self._write_masks, self.quorum.ensemble
        return any(bit & masks[pending.entry % size] & ~pending.acks for pending in self._pending.values())

    def _answered(self, index: int) -> None:
        waiting = self._unanswered[index]
        if waiting:
            self._unanswered[index] = waiting - 1

    def _bookies_of(self, mask: int) -> list[BookieId]:
        return [bookie for index, bookie in enumerate(self.ensemble) if mask >> index & 1]

    def _mask_of(self, bookies: Collection[BookieId]) -> int:
        return sum(1 << self._indices[bookie] for bookie in bookies)
