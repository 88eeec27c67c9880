"""Which bookie has the long poll of a tailer, and which one has it next.

Invariants:
- a bookie has at most one long poll of the tailer;
- a bookie is asked at most once between two ticks of the tailer's timer, so that bookies that do not wait are not
  asked faster than by plain polls;
- what a bookie reports of the LAC beside the packet is not used.

Source: BookKeeper, ReadLastConfirmedAndEntryOp, without speculative requests and without ENTRY_PIGGYBACK: so the answer
has the last entry, whose packet proves the new LAC. The packet of a piggybacked entry proves only a LAC below itself.
"""

from __future__ import annotations

from dlog.machine import Send
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.wire.bookie import ReadEntry
from dlog.wire.bookie_v3_messages import ReadWithLac

_NEWS = 2  # the first entry that carries LAC + 1 is LAC + 2


class LongPolls:
    """Part of LedgerTailer. wait_s: the timeout of a long poll; late_s: how much later its answer is overdue."""

    __slots__ = (
        "_asked",
        "_at",
        "_lac",
        "_late_s",
        "_ledger",
        "_newest",
        "_newest_s",
        "_refused",
        "_resting",
        "_wait_s",
        "_waiting",
        "proof",
    )

    def __init__(self, ledger: LedgerId, wait_s: float, late_s: float) -> None:
        self.proof: tuple[EntryId, BookieId] | None = None  # a LAC, and the bookie that proved it
        self._ledger = ledger
        self._wait_s = wait_s
        self._late_s = late_s
        self._waiting: set[BookieId] = set()  # they have a long poll
        self._newest: BookieId | None = None  # has the newest one; None: that is answered or lost
        self._newest_s = 0.0  # since it was sent, by whole intervals between ticks
        self._asked: set[BookieId] = set()  # since the last tick
        self._resting = False  # until the next tick: a bookie answered at once without news, or has a plain read
        self._refused: set[BookieId] = set()  # refused their last long poll
        self._lac = NO_ENTRY - 1  # of the last request
        self._at = 0  # index of the next bookie in the ensemble

    def tick(self, interval_s: float) -> None:
        """The tailer's timer was started, for interval_s."""
        self._asked.clear()
        self._resting = False
        if self._newest is not None and self._newest_s >= self._wait_s + self._late_s:
            self._newest = None  # another bookie is asked beside it
        self._newest_s += interval_s

    def next_request(self, metadata: LedgerMetadata, lac: EntryId) -> Send | None:
        """The request to send now, if any. A bookie that refused its last long poll gets a plain read."""
        ensemble = metadata.fragments[-1].ensemble
        if self._newest not in ensemble:
            self._newest = None  # it was replaced, and gets no news
        if self._newest is not None or self._resting:
            return None
        if lac > self._lac:
            self._lac = lac
            self._at = self._first(metadata, lac)
        for step in range(len(ensemble)):
            bookie = ensemble[(self._at + step) % len(ensemble)]
            if bookie in self._waiting or bookie in self._asked:
                continue
            self._at += step + 1
            self._asked.add(bookie)
            if bookie in self._refused:
                self._refused.discard(bookie)
                self._resting = True
                return Send(bookie, ReadEntry(self._ledger, NO_ENTRY))
            self._waiting.add(bookie)
            self._newest, self._newest_s = bookie, 0.0
            return Send(bookie, ReadWithLac(self._ledger, NO_ENTRY, lac, round(self._wait_s * 1000)))
        return None

    def _first(self, metadata: LedgerMetadata, lac: EntryId) -> int:
        """Whom to ask for news: of the bookies that will store it, the one that knows this LAC already.

        Java's bookie forgets a long poll when its LAC rises to the previous LAC, and answers at its timeout.
        """
        ensemble = metadata.fragments[-1].ensemble
        holders = metadata.quorum.write_set(lac + _NEWS)
        knows = self.proof[1] if self.proof is not None and self.proof[0] == lac else None
        return next((i for i in holders if ensemble[i] == knows), holders[0])

    def answered(self, bookie: BookieId, *, refused: bool = False, failed: bool = False) -> None:
        """A long poll of the bookie has ended. refused: it does not take long polls now; failed: any other error."""
        self._waiting.discard(bookie)
        if refused:
            self._refused.add(bookie)
        if bookie == self._newest:
            self._newest = None
            self._resting = bookie in self._asked and not refused and not failed

    def lost(self, bookie: BookieId) -> None:
        """Nothing sent to the bookie will be answered."""
        self.answered(bookie, failed=True)
