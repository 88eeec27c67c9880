"""The window of entries that were sent and are not confirmed, and which bookies have acknowledged each.

The law of this file: an acknowledgement counts for the *place in the ensemble* its sender holds now; when a place gets
another bookie, what that place had acknowledged is forgotten and the entries are sent there again, byte for byte. An
entry is confirmed once Qa places hold it and every entry before it is confirmed. Who may change the ensemble, and
when confirming must wait, is the business of adding.py and recovery.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dlog.machine import Send
from dlog.model.ids import BookieId, EntryId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry


class Pending:
    """One entry on its way. `length` is cumulative; `places` has a bit for each place that acknowledged."""

    __slots__ = ("entry", "length", "message", "places", "ticket")

    def __init__(self, entry: EntryId, length: int, message: AddEntry, ticket: int) -> None:
        self.entry = entry
        self.length = length
        self.message = message
        self.ticket = ticket
        self.places = 0


class _Aim(NamedTuple):
    """Who stores which entry, by entry id modulo ensemble size. Of all ledgers of one ensemble: nobody changes it."""

    place: dict[BookieId, int]
    targets: tuple[tuple[tuple[int, BookieId], ...], ...]  # places and their members
    write_masks: tuple[int, ...]


@lru_cache(maxsize=1024)
def _aim(quorum: Quorum, ensemble: tuple[BookieId, ...]) -> _Aim:
    sets = [quorum.write_set(e) for e in range(quorum.ensemble)]
    return _Aim(
        {bookie: i for i, bookie in enumerate(ensemble)},
        tuple(tuple((i, ensemble[i]) for i in ws) for ws in sets),
        tuple(sum(1 << i for i in ws) for ws in sets),
    )


class Window:
    """Entries sent to one ensemble.

    lac, length: of the last confirmed entry, and the ledger's payload bytes up to it.
    failed: members that will not acknowledge what was sent to them, with why; nothing is sent to them.
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
        self._unanswered = [0] * len(ensemble)  # by place
        self._place, self._targets, self._write_masks = _aim(quorum, ensemble)

    def __len__(self) -> int:
        return len(self._pending)

    def push(self, message: AddEntry, length: int, ticket: int = 0) -> list[Send]:
        """Take the next entry and send it to its write set, except to members that have failed."""
        entry = message.entry
        assert entry == self.pushed + 1, "entries are pushed densely"
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
        """The bookie holds the entry. Of no account if it is not a member (any more), or not of the write set."""
        place = self._place.get(bookie)
        if place is None:
            return
        self._answered(place)
        pending = self._pending.get(entry)
        if pending is not None:
            pending.places |= (1 << place) & self._write_masks[entry % self.quorum.ensemble]

    def refuse(self, bookie: BookieId, reason: str) -> None:
        """The bookie answered, and will not store what was sent to it."""
        place = self._place.get(bookie)
        if place is not None:
            self._answered(place)
            self.lose(bookie, reason)

    def disconnect(self, bookie: BookieId, reason: str) -> None:
        """Nothing outstanding there will be answered; a member of which nothing was outstanding is not lost.

        The count alone does not tell: what was sent behind a loss, before the loss was heard of, is answered too, and
        counted for what was sent again since.
        """
        place = self._place.get(bookie)
        if place is not None and (self._unanswered[place] or self._owes(place)):
            self._unanswered[place] = 0
            self.lose(bookie, reason)

    def lose(self, bookie: BookieId, reason: str) -> None:
        """Count a member as failed."""
        if bookie in self._place:
            self.failed.setdefault(bookie, reason)

    def readmit(self, bookie: BookieId) -> list[Send]:
        """A failed member is back: send it what is pending and not acknowledged, and everything from now on."""
        place = self._place[bookie]
        self.failed.pop(bookie, None)
        self._unanswered[place] = 0
        return self._send_again(place)

    def members(self, entry: EntryId) -> list[BookieId]:
        """Who stores the entry, as the ensemble is now."""
        return [bookie for _, bookie in self._targets[entry % self.quorum.ensemble]]

    def failed_places(self) -> list[int]:
        return [i for i, bookie in enumerate(self.ensemble) if bookie in self.failed]

    def confirm(self) -> list[Pending]:
        """Take entries from the head while it has its ack quorum."""
        waiting, needed = self._pending, self.quorum.ack
        confirmed: list[Pending] = []
        while (head := waiting.get(self.lac + 1)) is not None and head.places.bit_count() >= needed:
            del waiting[head.entry]
            self.lac, self.length = head.entry, head.length
            confirmed.append(head)
        assert not waiting or head is not None, "confirmed in order, without gaps"
        if not waiting:
            waiting.clear()  # an empty dict keeps the room it had
        return confirmed

    def can_progress(self) -> bool:
        """Whether the head can still reach its ack quorum without any change of the ensemble."""
        if not self.failed or not self._pending:
            return True
        head = self._pending[self.lac + 1]
        places = head.places | (self._write_masks[head.entry % self.quorum.ensemble] & ~self._mask_of(self.failed))
        return places.bit_count() >= self.quorum.ack

    def adopt(self, ensemble: tuple[BookieId, ...]) -> list[Send]:
        """From lac + 1 on the ensemble is another: forget what replaced places acknowledged and send there again."""
        assert len(ensemble) == len(self.ensemble) == len(set(ensemble)), "an ensemble holds each bookie once"
        changed = [i for i, (old, new) in enumerate(zip(self.ensemble, ensemble, strict=True)) if old != new]
        before = dict(zip(self.ensemble, self._unanswered, strict=True))
        self.ensemble = ensemble
        self._place, self._targets, self._write_masks = _aim(self.quorum, ensemble)
        self._unanswered = [before.get(bookie, 0) for bookie in ensemble]
        self.failed = {bookie: why for bookie, why in self.failed.items() if bookie in self._place}
        keep = ~sum(1 << i for i in changed)
        for pending in self._pending.values():
            pending.places &= keep
        return [send for place in changed for send in self._send_again(place)]

    def abandon(self) -> list[Pending]:
        """Give up all pending entries, in order."""
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

    def _owes(self, place: int) -> bool:
        bit, masks, size = 1 << place, self._write_masks, self.quorum.ensemble
        return any(bit & masks[pending.entry % size] & ~pending.places for pending in self._pending.values())

    def _answered(self, place: int) -> None:
        waiting = self._unanswered[place]
        if waiting:
            self._unanswered[place] = waiting - 1

    def _mask_of(self, bookies: dict[BookieId, str]) -> int:
        return sum(1 << self._place[bookie] for bookie in bookies)
