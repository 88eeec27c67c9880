"""Placement with a wanted replacement: `dlog bookie replace` names the bookie that shall take another one's place, and
`dlog cluster rebalance` the one that a copy moves to.

Invariants:
- the wanted bookie is chosen only where the policy's own choice would not keep the policy better, and where it may be
  chosen at all: it is writable, not a member, and not excluded. Otherwise the policy chooses;
- with `is_only` nobody else is chosen, and the wanted bookie only where the policy is kept as well as by the ensemble
  that there is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dlog.ledger.placement import Confirms, Placement
from dlog.model.ids import BookieId
from dlog.model.ledger import LedgerMetadata
from dlog.model.quorum import Quorum


@dataclass(frozen=True, slots=True)
class PreferredPlacement:
    """Chooses as `placement`, except that `preferred` replaces a single failed member where it can. is_only: no other
    bookie does."""

    placement: Placement
    preferred: BookieId
    is_only: bool = False

    @property
    def confirms(self) -> Confirms | None:
        return self.placement.confirms

    def choose(self, quorum: Quorum, exclude: Collection[BookieId] = ()) -> tuple[BookieId, ...]:
        return self.placement.choose(quorum, exclude)

    def replace(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        failed: Collection[int],
        exclude: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        chosen = {} if self.is_only else self.placement.replace(quorum, ensemble, failed, exclude)
        is_excluded = self.preferred in exclude or self.preferred in ensemble
        if len(failed) != 1 or is_excluded or not (chosen or self.is_only):
            return chosen
        wanted = dict.fromkeys(failed, self.preferred)
        old, otherwise, as_wanted = tuple(ensemble), _changed(ensemble, chosen), _changed(ensemble, wanted)
        is_as_good = self.shortage(quorum, as_wanted) in ("", self.shortage(quorum, otherwise))
        is_possible = self.is_writable(self.preferred) and self.allows(quorum, old, as_wanted)
        return wanted if is_possible and is_as_good else chosen

    def is_writable(self, bookie: BookieId) -> bool:
        return self.placement.is_writable(bookie)

    def shortage(self, quorum: Quorum, ensemble: Sequence[BookieId]) -> str:
        return self.placement.shortage(quorum, ensemble)

    def allows(self, quorum: Quorum, old: Sequence[BookieId], new: Sequence[BookieId]) -> bool:
        return self.placement.allows(quorum, old, new)

    def for_ledger(self, metadata: LedgerMetadata) -> Placement:
        return replace(self, placement=self.placement.for_ledger(metadata))

    def without_strict(self) -> Placement:
        return replace(self, placement=self.placement.without_strict())


def _changed(ensemble: Sequence[BookieId], replacements: dict[int, BookieId]) -> tuple[BookieId, ...]:
    return tuple(replacements.get(index, bookie) for index, bookie in enumerate(ensemble))
