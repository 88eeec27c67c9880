"""How many entries of a ledger have too few copies, by metadata alone: no bookie is asked.

As in dlog/ledger/repair.py, only entries whose fate is decided are counted: those of a closed ledger up to its last
entry, those of another one below its last ensemble, since only bookies know how many entries that one has.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from dlog.ledger.repair import decided_last
from dlog.model.ids import BookieId
from dlog.model.ledger import LedgerMetadata


@dataclass(frozen=True, slots=True)
class MissingCopies:
    """Entries of one or more ledgers that lack copies.

    below_write_quorum, below_ack_quorum: number of entries with fewer than Qw and with fewer than Qa copies; the first
    number includes the second. length: estimated bytes of payload of those below Qw, by the average size of the
    ledger's entries; 0 for a ledger that is not closed, whose metadata has no length.
    """

    below_write_quorum: int = 0
    below_ack_quorum: int = 0
    length: int = 0

    def __add__(self, other: MissingCopies) -> MissingCopies:
        return MissingCopies(
            self.below_write_quorum + other.below_write_quorum,
            self.below_ack_quorum + other.below_ack_quorum,
            self.length + other.length,
        )


def missing_copies(value: LedgerMetadata, lacking: Set[BookieId]) -> MissingCopies:
    """Count the entries of a ledger, if the bookies `lacking` hold none of them."""
    quorum, below_write, below_ack = value.quorum, 0, 0
    for number, fragment in enumerate(value.fragments):
        last = decided_last(value, number)
        if last is None or lacking.isdisjoint(fragment.ensemble):
            continue
        for first in range(fragment.first_entry, min(last + 1, fragment.first_entry + quorum.ensemble)):
            entries = (last - first) // quorum.ensemble + 1  # with the same write set
            lost = sum(fragment.ensemble[index] in lacking for index in quorum.write_set(first))
            below_write += entries if lost else 0
            below_ack += entries if quorum.write - lost < quorum.ack else 0
    length = value.length * below_write // (value.last_entry + 1) if value.is_closed and below_write else 0
    return MissingCopies(below_write, below_ack, length)
