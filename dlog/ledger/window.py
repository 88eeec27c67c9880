"""Entries of a ledger that are sent and not confirmed, and which bookies acknowledged each.

adding.py and recovery_writer.py decide when the ensemble changes and when confirming waits.

Invariants:
- an acknowledgement counts for the *bookie index* that its sender holds in the ensemble now;
- when a bookie index gets another bookie, its acknowledgements are forgotten and the entries are sent to the new
  bookie, byte for byte;
- an entry is confirmed once Qa members have acknowledged it and every entry before it is confirmed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dlog.machine import Send
from dlog.model.ids import BookieId, EntryId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry


class Pending:
    """A sent, unconfirmed entry. `length` is cumulative; `places`: one bit per bookie index that acknowledged."""

    __slots__ = ("entry", "length", "message", "places", "ticket")

    def __init__(self, entry: EntryId, length: int, message: AddEntry, ticket: int) -> None:
        self.entry = entry
        self.length = length
        self.message = message
        self.ticket = ticket
        self.places = 0


class _StripeTable(NamedTuple):
    """Which bookies store an entry, by entry id modulo ensemble size. Shared by all ledgers of the ensemble."""

    place: dict[BookieId, int]
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
    acknowledge what was sent to them, with the reason; nothing more is sent to them.
    """

    __slots__ = (
        "_lag_max",
        "_pending",
        "_place",
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

    def __init__(self, quorum: Quorum, ensemble: tuple[BookieId, ...], lac: EntryId, length: int, lag_max: int) -> None:
        self.quorum = quorum
        self.ensemble = ensemble
        self.lac = lac
        self.length = length
        self.pushed = lac  # last entry that was sent
        self.pushed_length = length
        self.failed: dict[BookieId, str] = {}
        self._lag_max = lag_max
        self._pending: dict[int, Pending] = {}  # by entry, in order
        self._unanswered = [0] * len(ensemble)  # by bookie index
        self._place, self._targets, self._write_masks = _stripe_table(quorum, ensemble)

    def __len__(self) -> int:
        return len(self._pending)

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
        for place, bookie in self._targets[entry % self.quorum.ensemble]:
            if self.failed and bookie in self.failed:
                continue
            waiting = unanswered[place] + 1
            unanswered[place] = waiting
            if waiting > limit:
                self.lose(bookie, f"{waiting - len(self._pending)} entries behind the others")
                continue
            sends.append(Send(bookie, message))
        return sends

    def acknowledge(self, bookie: BookieId, entry: EntryId) -> None:
        """Record that the bookie holds the entry. Ignored if it is not a member of the entry's write set now."""
        place = self._place.get(bookie)
        if place is None:
            return
        self._answered(place)
        pending = self._pending.get(entry)
        if pending is not None:
            pending.places |= (1 << place) & self._write_masks[entry % self.quorum.ensemble]

    def refuse(self, bookie: BookieId, reason: str) -> None:
        """The bookie will not store an entry: count it as failed."""
        place = self._place.get(bookie)
        if place is not None:
            self._answered(place)
            self.lose(bookie, reason)

    def disconnect(self, bookie: BookieId, reason: str) -> None:
        """The bookie's outstanding requests will get no reply: count it as failed if there are any.

        The count of unanswered sends is not enough: late replies to sends before the loss decrement it too, though
        those entries were sent again.
        """
        place = self._place.get(bookie)
        if place is not None and (self._unanswered[place] or self._has_unacknowledged(place)):
            self._unanswered[place] = 0
            self.lose(bookie, reason)

    def lose(self, bookie: BookieId, reason: str) -> None:
        """Mark as failed."""
        if bookie in self._place:
            self.failed.setdefault(bookie, reason)

    def readmit(self, bookie: BookieId) -> list[Send]:
        """Use a failed member again: send it the pending entries that it has not acknowledged."""
        place = self._place[bookie]
        self.failed.pop(bookie, None)
        self._unanswered[place] = 0
        return self._send_again(place)

    def members(self, entry: EntryId) -> list[BookieId]:
        """The bookies of the entry's write set in the current ensemble."""
        return [bookie for _, bookie in self._targets[entry % self.quorum.ensemble]]

    def failed_indices(self) -> list[int]:
        return [i for i, bookie in enumerate(self.ensemble) if bookie in self.failed]

    def confirm(self) -> list[Pending]:
        """Remove and return the entries at the head that have an ack quorum."""
        waiting, needed = self._pending, self.quorum.ack
        confirmed: list[Pending] = []
        while (head := waiting.get(self.lac + 1)) is not None and head.places.bit_count() >= needed:
            del waiting[head.entry]
            self.lac, self.length = head.entry, head.length
            confirmed.append(head)
        assert not waiting or head is not None, "confirmed in order, without gaps"
        if not waiting:
            waiting.clear()  # an empty dict keeps its allocated capacity
        return confirmed

    def can_progress(self) -> bool:
        """Whether the head can still reach its ack quorum with the current ensemble."""
        if not self.failed or not self._pending:
            return True
        head = self._pending[self.lac + 1]
        places = head.places | (self._write_masks[head.entry % self.quorum.ensemble] & ~self._mask_of(self.failed))
        return places.bit_count() >= self.quorum.ack

    def adopt(self, ensemble: tuple[BookieId, ...]) -> list[Send]:
        """Change the ensemble from LAC + 1 on: forget acknowledgements of replaced members, send again."""
        assert len(ensemble) == len(self.ensemble) == len(set(ensemble)), "an ensemble holds each bookie once"
        changed = [i for i, (old, new) in enumerate(zip(self.ensemble, ensemble, strict=True)) if old != new]
        before = dict(zip(self.ensemble, self._unanswered, strict=True))
        self.ensemble = ensemble
        self._place, self._targets, self._write_masks = _stripe_table(self.quorum, ensemble)
        self._unanswered = [before.get(bookie, 0) for bookie in ensemble]
        self.failed = {bookie: why for bookie, why in self.failed.items() if bookie in self._place}
        keep = ~sum(1 << i for i in changed)
        for pending in self._pending.values():
            pending.places &= keep
        return [send for place in changed for send in self._send_again(place)]

    def abandon(self) -> list[Pending]:
        """Drop and return all pending entries."""
        abandoned = list(self._pending.values())
        self._pending.clear()
        return abandoned

    def _send_again(self, place: int) -> list[Send]:
        bookie, bit, size = self.ensemble[place], 1 << place, self.quorum.ensemble
        sends = [
            Send(bookie, pending.message)
            for pending in self._pending.values()
            if bit & self._write_masks[pending.entry % size] & ~pending.places
        ]
        self._unanswered[place] += len(sends)
        return sends

    def _has_unacknowledged(self, place: int) -> bool:
        bit, masks, size = 1 << place, self._write_masks, self.quorum.ensemble
        return any(bit & masks[pending.entry % size] & ~pending.places for pending in self._pending.values())

    def _answered(self, place: int) -> None:
        waiting = self._unanswered[place]
        if waiting:
            self._unanswered[place] = waiting - 1

    def _mask_of(self, bookies: dict[BookieId, str]) -> int:
        return sum(1 << self._place[bookie] for bookie in bookies)
