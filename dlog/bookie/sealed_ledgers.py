"""The part of the bookie that frees copies which were moved to other bookies, as dlog/bookie/moved_copies.py decides.

    sealed: no entry is taken -> its entries leave the index -> empty, known and fenced

Invariants:
- A ledger is sealed, and its entries are removed, only while all of them are in the index and none is being read.
- From the moment its entries are removed, no entry of it is denied until it has entries again: by metadata other
  bookies hold them, so a client that asks here has older metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from dlog.bookie.id_set import IdSet
from dlog.bookie.index import LedgerRow
from dlog.bookie.ledgers import Ledger, restored
from dlog.bookie.messages import CopiesToFree, CopiesToSeal, CopiesToUnseal, IndexRewritten, IndexWithout


class SealedLedgers:
    """Handles CopiesToSeal, CopiesToUnseal, CopiesToFree and IndexRewritten.

    ledgers: of the bookie; entries are replaced. moved: those whose entries were once removed. may_seal: whether all
    of a ledger is in the index, and nothing of it is being read. put_back: called with a ledger as it was, whose
    entries could not be removed, for the next checkpoint. forget: called with ledgers whose entries are gone.
    """

    def __init__(
        self,
        ledgers: dict[int, Ledger],
        moved: Iterable[int],
        *,
        may_seal: Callable[[int, Ledger], bool],
        put_back: Callable[[int, Ledger], None],
        forget: Callable[[Collection[int]], None],
    ) -> None:
        self._ledgers = ledgers
        self._moved = IdSet(moved)
        self._may_seal = may_seal
        self._put_back = put_back
        self._forget = forget
        self._sealed: set[int] = set()
        self._freeing: dict[int, Ledger] = {}  # as they were, until the disk confirms or fails

    def __contains__(self, ledger: int) -> bool:
        """Whether entries of the ledger are refused until its copies are freed."""
        return ledger in self._sealed

    def are_freed(self, number: int, ledger: Ledger) -> bool:
        """Whether the ledger has no entries because they were removed."""
        return ledger.last < 0 and number in self._moved

    def seal(self, fact: CopiesToSeal, _: list[Any]) -> None:
        ledger = self._ledgers.get(fact.ledger)
        if ledger is not None and self._may_seal(fact.ledger, ledger):
            self._sealed.add(fact.ledger)

    def unseal(self, fact: CopiesToUnseal, _: list[Any]) -> None:
        self._sealed.discard(fact.ledger)

    def free(self, fact: CopiesToFree, out: list[Any]) -> None:
        rows: list[LedgerRow] = []
        for number in sorted(fact.ledgers & self._sealed):
            old = self._ledgers.get(number)
            if old is None or not self._may_seal(number, old):
                self._sealed.discard(number)
                continue
            self._freeing[number] = old
            left = LedgerRow(number, old.master_key, True, -1, -1, old.seen, b"")
            self._ledgers[number] = restored(left)
            rows.append(left)
        self._moved.update(row.ledger for row in rows)
        out.append(IndexWithout(tuple(rows)))

    def freed(self, fact: IndexRewritten, _: list[Any]) -> None:
        for number in fact.ledgers:
            old = self._freeing.pop(number)
            self._sealed.discard(number)
            if number in fact.failed and number in self._ledgers:  # else it was collected meanwhile
                old.seen = self._ledgers[number].seen
                self._put_back(number, old)
        self._forget(set(fact.ledgers) - fact.failed)
