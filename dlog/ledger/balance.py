"""Plans which closed ledgers move from fuller bookies to emptier ones (`dlog cluster rebalance`).

The share of a bookie is what closed ledgers place on it by metadata, relative to the size of its disks. What disks hold
at the moment does not count: a copy that has moved away is freed later, or not before its ledger is deleted, and other
ledgers must not be moved in its stead.

Invariants:
- a move goes from a bookie above the mean share to one below it, and leaves the one it comes from at least as full as
  the other; so each move makes the shares more even, and no ledger moves back and forth;
- a bookie gets a copy only if it is in no ensemble of the ledger that names the other, is allowed by the caller, and
  has the free space for it;
- a bookie whose space is not known takes no part.

Memory: a few numbers per bookie; ledgers are given one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dlog.model.ids import BookieId
from dlog.model.ledger import LedgerMetadata


@dataclass(frozen=True, slots=True)
class DiskSize:
    """Bytes of all ledger directories of a bookie."""

    total_bytes: int
    free_bytes: int


class Move(NamedTuple):
    """What `source` holds of a ledger goes to `target`. size_bytes: of payload, about."""

    source: BookieId
    target: BookieId
    size_bytes: int


#: Whether a bookie (the last) may hold the copies of another one (the second) under the ledger's placement policy
Allows = Callable[[LedgerMetadata, BookieId, BookieId], bool]


def placed_bytes(value: LedgerMetadata) -> dict[BookieId, int]:
    """The bytes of payload that a closed ledger places on each bookie, if its entries are of one size."""
    entries = value.last_entry + 1
    found: dict[BookieId, int] = {}
    ends = [*(fragment.first_entry for fragment in value.fragments[1:]), entries]
    for fragment, end in zip(value.fragments, ends, strict=True):
        copies = value.length * max(0, end - fragment.first_entry) * value.quorum.write
        each = copies // max(1, entries * len(fragment.ensemble))
        for bookie in fragment.ensemble:
            found[bookie] = found.get(bookie, 0) + each
    return found


class Balance:
    """The shares of all bookies. disks: of those whose space is known. targets: of them, those that take copies."""

    def __init__(self, disks: Mapping[BookieId, DiskSize], targets: frozenset[BookieId]) -> None:
        self._disks = {bookie: disk for bookie, disk in disks.items() if disk.total_bytes > 0}
        self._targets = targets
        self._placed = dict.fromkeys(self._disks, 0)
        self._free = {bookie: disk.free_bytes for bookie, disk in self._disks.items()}

    def count(self, value: LedgerMetadata) -> None:
        """Count a ledger. One that is not closed does not count."""
        if value.is_closed:
            for bookie, size in placed_bytes(value).items():
                if bookie in self._placed:
                    self._placed[bookie] += size

    def share(self, bookie: BookieId) -> float:
        return self._placed[bookie] / self._disks[bookie].total_bytes

    def shares(self) -> dict[BookieId, float]:
        """By bookie, the fullest first."""
        return {bookie: self.share(bookie) for bookie in sorted(self._placed, key=self.share, reverse=True)}

    def placed(self, bookie: BookieId) -> int:
        """Bytes that closed ledgers place on the bookie."""
        return self._placed[bookie]

    @property
    def mean(self) -> float:
        """The share that all would have if all were even."""
        return sum(self._placed.values()) / max(1, sum(disk.total_bytes for disk in self._disks.values()))

    @property
    def spread(self) -> float:
        """The share of the fullest bookie less that of the emptiest one."""
        shares = self.shares().values()
        return max(shares) - min(shares) if shares else 0.0

    def choose(self, value: LedgerMetadata, allows: Allows) -> Move | None:
        """The move of this ledger that takes most from the fullest bookie; None: no move improves the balance."""
        if not value.is_closed:
            return None
        sizes, mean = placed_bytes(value), self.mean
        sources = [b for b in sizes if b in self._placed and sizes[b] > 0 and self.share(b) > mean]
        for source in sorted(sources, key=self.share, reverse=True):
            size = sizes[source]
            together = {b for f in value.fragments if source in f.ensemble for b in f.ensemble}
            for target in sorted(self._targets & self._placed.keys() - together, key=self._rank):
                if self.share(target) >= mean:
                    break
                move = Move(source, target, size)
                if self._free[target] > size and self._improves(move) and allows(value, source, target):
                    return move
        return None

    def _rank(self, bookie: BookieId) -> tuple[float, BookieId]:
        """The emptiest first; of equal ones always the same."""
        return self.share(bookie), bookie

    def _improves(self, move: Move) -> bool:
        source, target, size = move
        left = (self._placed[source] - size) / self._disks[source].total_bytes
        return left >= (self._placed[target] + size) / self._disks[target].total_bytes

    def note(self, move: Move) -> None:
        """A ledger has moved."""
        source, target, size = move
        self._placed[source] -= size
        self._placed[target] += size
        self._free[target] -= size
