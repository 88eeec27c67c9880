"""Asks bookies for the last entry that they hold of a ledger, so that entries above it need not be asked for one by
one: metadata may name a last entry far above what any bookie holds."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from dlog.ledger.last_entries import ABSENT
from dlog.machine import Effect, Send
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.wire.bookie import Code, EntryRead, ReadEntry

UNSERVED_MAX = 10_000  # entries in a row that no bookie serves, before one without a known last entry is given up
LAST_HELD = EntryId(-1)  # entry id of a read, and of its reply, that asks for the last entry that the bookie holds
_IDS = struct.Struct(">qq")


class LastHeldEntries:
    """The last entry that each bookie says it holds, by one read of LAST_HELD from each. The ids in the packet count
    even if its digest does not verify: bookies check the ids of what they serve.

    A bookie that cannot read its last entry does not say which one it is. It is given up once it was asked in vain for
    UNSERVED_MAX entries in a row that no other bookie served either.
    """

    __slots__ = ("_asked", "_last", "_ledger", "_unserved")

    def __init__(self, ledger: LedgerId) -> None:
        self._ledger = ledger
        self._asked: set[BookieId] = set()  # reply is awaited
        self._last: dict[BookieId, int] = {}
        self._unserved = 0  # entries in a row that no bookie served

    def ask(self, bookies: Iterable[BookieId], out: list[Effect]) -> None:
        """Ask those of these bookies that have not replied and are not being asked."""
        for bookie in bookies:
            if bookie not in self._last and bookie not in self._asked:
                self._asked.add(bookie)
                out.append(Send(bookie, ReadEntry(self._ledger, LAST_HELD)))

    def ask_again(self, bookies: Sequence[BookieId], out: list[Effect]) -> None:
        """As `ask`, but drop earlier replies of these bookies first."""
        for bookie in bookies:
            self._last.pop(bookie, None)
        self.ask(bookies, out)

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is awaited."""
        return bool(self._asked)

    def note_read(self, bookie: BookieId, answer: EntryRead) -> bool:
        """Record a reply to a read of LAST_HELD. Returns False if it does not show which entry is the last one."""
        self._asked.discard(bookie)
        if answer.code in ABSENT:
            self._last[bookie] = NO_ENTRY
            return True
        if answer.code is not Code.OK or len(answer.packet) < _IDS.size:
            return False
        ledger, entry = _IDS.unpack_from(answer.packet)
        if ledger != self._ledger or entry < 0:
            return False
        self._last[bookie] = entry
        return True

    def note_lost(self, bookie: BookieId) -> None:
        """The bookie does not reply; it may be asked again."""
        self._asked.discard(bookie)

    def note_entry(self, is_served: bool) -> None:
        """An entry that was asked for was served by a bookie, or by none."""
        self._unserved = 0 if is_served else self._unserved + 1

    def is_given_up(self, bookie: BookieId) -> bool:
        """Whether the bookie has not said which entry is its last one, and none of many entries was served."""
        return self._unserved >= UNSERVED_MAX and bookie not in self._last

    def last_of(self, bookie: BookieId) -> EntryId | None:
        """The last entry that the bookie holds, NO_ENTRY if none; None: it has not said so."""
        last = self._last.get(bookie)
        return None if last is None else EntryId(last)

    def ends_below(self, bookie: BookieId, entry: int) -> bool:
        """Whether the bookie said that it holds neither this entry nor a later one."""
        last = self._last.get(bookie)
        return last is not None and last < entry
