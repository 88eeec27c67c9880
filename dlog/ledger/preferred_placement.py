"""Placement with a wanted replacement: `dlog bookie replace` names the bookie that shall take another one's place.

Invariant: the wanted bookie is chosen only where the policy's own choice would not keep the policy better, and where it
may be chosen at all: it is writable, not a member, and not excluded. Otherwise the policy chooses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dlog.ledger.placement import Confirms, Placement
from dlog.model.ids import BookieId
from dlog.model.ledger import LedgerMetadata
from dlog.model.quorum import Quorum


@dataclass(frozen=True, slots=True)
class PreferredPlacement:
    """Chooses as `placement`, except that `preferred` replaces a single failed member where it can."""

    placement: Placement
    preferred: BookieId

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
        chosen = self.placement.replace(quorum, ensemble, failed, exclude)
        if len(failed) != 1 or not chosen or self.preferred in exclude or self.preferred in ensemble:
            return chosen
        wanted = dict.fromkeys(failed, self.preferred)
        old, by_policy, as_wanted = tuple(ensemble), _changed(ensemble, chosen), _changed(ensemble, wanted)
        is_as_good = self.shortage(quorum, as_wanted) in ("", self.shortage(quorum, by_policy))
        is_possible = self.is_writable(self.preferred) and self.allows(quorum, old, as_wanted)
        return wanted if is_possible and is_as_good else chosen

    def is_writable(self, bookie: BookieId) -> bool:
        return self.placement.is_writable(bookie)

    def shortage(self, quorum: Quorum, ensemble: Sequence[BookieId]) -> str:
        return self.placement.shortage(quorum, ensemble)

    def allows(self, quorum: Quorum, old: Sequence[BookieId], new: Sequence[BookieId]) -> bool:
        return self.placement.allows(quorum, old, new)

    def for_ledger(self, metadata: LedgerMetadata) -> Placement:
        return PreferredPlacement(self.placement.for_ledger(metadata), self.preferred)

    def without_strict(self) -> Placement:
        return PreferredPlacement(self.placement.without_strict(), self.preferred)


def _changed(ensemble: Sequence[BookieId], replacements: dict[int, BookieId]) -> tuple[BookieId, ...]:
    return tuple(replacements.get(index, bookie) for index, bookie in enumerate(ensemble))
