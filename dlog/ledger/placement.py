"""Chooses the bookies of an ensemble, and replacements for failed ones.

`RandomPlacement` knows no racks; spread_placement.py does. `replace` gets the whole ensemble for its sake.

Invariants:
- an ensemble holds each bookie once, and a replacement is not a member already;
- the choice depends only on a snapshot of the writable bookies and on the generator passed in;
- a bookie to avoid is chosen only where the others do not suffice, or would keep the policy less well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from dlog.errors import NotEnoughBookiesError
from dlog.model.ids import BookieId
from dlog.model.ledger import LedgerMetadata
from dlog.model.quorum import Quorum

#: The writable bookies last reported by ZooKeeper, without the excluded ones. A snapshot: never blocks or raises.
Candidates = Callable[[Collection[BookieId]], Sequence[BookieId]]
#: Whether an entry is confirmed once these bookies hold it, if they are an ack quorum.
Confirms = Callable[[Collection[BookieId]], bool]
#: A bookie's share of the load, relative to the others; not positive: it is not chosen.
Weight = Callable[[BookieId], float]
#: Whether a bookie is chosen only if the others do not suffice (quarantine.py).
Avoids = Callable[[BookieId], bool]


class Placement(Protocol):
    """Chooses ensembles and replacements."""

    @property
    def confirms(self) -> Confirms | None:
        """What the policy asks of the bookies that hold an entry, before it is confirmed; None: any ack quorum will
        do."""
        ...

    def choose(self, quorum: Quorum, exclude: Collection[BookieId] = ()) -> tuple[BookieId, ...]:
        """Return a new ensemble of `quorum.ensemble` bookies. Raises NotEnoughBookiesError."""
        ...

    def replace(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        failed: Collection[int],
        exclude: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        """Return replacements by bookie index, for as many of the `failed` indices as possible. Apply all of them, or
        ask `allows`."""
        ...

    def is_writable(self, bookie: BookieId) -> bool:
        """Whether the bookie could be chosen now, if it were not a member already."""
        ...

    def shortage(self, quorum: Quorum, ensemble: Sequence[BookieId]) -> str:
        """What an ensemble lacks of the policy, for event `placement.not_kept`; empty: it keeps the policy."""
        ...

    def allows(self, quorum: Quorum, old: Sequence[BookieId], new: Sequence[BookieId]) -> bool:
        """Whether a ledger may go from one ensemble to another: False if a strict policy would be kept less well."""
        ...

    def for_ledger(self, metadata: LedgerMetadata) -> Placement:
        """The placement under the policy that the ledger's metadata names."""
        ...

    def without_strict(self) -> Placement:
        """The placement under the same policy, kept as far as possible. With `confirms` the policy stays as it is:
        more bookies of one region would not confirm an entry."""
        ...


class RandomPlacement:
    """Chooses among all writable bookies at random, in proportion to weight.

    candidates: returns the writable bookies. rng: seeded by the caller. weight: equal if None. avoids: none if None.
    """

    confirms = None

    def __init__(
        self,
        candidates: Candidates,
        rng: random.Random,
        weight: Weight | None = None,
        avoids: Avoids | None = None,
    ) -> None:
        self._candidates = candidates
        self._rng = rng
        self._weight = weight
        self._avoids = avoids

    def choose(self, quorum: Quorum, exclude: Collection[BookieId] = ()) -> tuple[BookieId, ...]:
        found = self._draw(quorum.ensemble, exclude)
        if len(found) < quorum.ensemble:
            raise NotEnoughBookiesError(
                f"too few writable bookies, start more or ask for a smaller ensemble: "
                f"writable={len(found)} ensemble={quorum.ensemble}"
            )
        return tuple(found)

    def replace(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        failed: Collection[int],
        exclude: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        found = self._draw(len(failed), {*ensemble, *exclude})
        return dict(zip(sorted(failed), found, strict=False))

    def is_writable(self, bookie: BookieId) -> bool:
        return bookie in self._candidates(())

    def shortage(self, quorum: Quorum, ensemble: Sequence[BookieId]) -> str:
        return ""

    def allows(self, quorum: Quorum, old: Sequence[BookieId], new: Sequence[BookieId]) -> bool:
        return True

    def for_ledger(self, metadata: LedgerMetadata) -> Placement:
        return self

    def without_strict(self) -> Placement:
        return self

    def _draw(self, count: int, exclude: Collection[BookieId]) -> list[BookieId]:
        """Return at most `count` different bookies, in random order, those to avoid last."""
        return draw_bookies(self._candidates, self._rng, self._weight, exclude, count, self._avoids)


def refusal(placement: Placement, quorum: Quorum) -> str:
    """Why no new ensemble can be chosen now; empty: one can."""
    try:
        placement.choose(quorum)
    except NotEnoughBookiesError as error:
        return error.message
    return ""


def draw_bookies(
    candidates: Candidates,
    rng: random.Random,
    weight: Weight | None,
    exclude: Collection[BookieId],
    count: int | None = None,
    avoids: Avoids | None = None,
) -> list[BookieId]:
    """Draw at most `count` different bookies (None: all), in random order, heavier ones sooner, those to avoid last."""
    pool = sorted(set(candidates(exclude)).difference(exclude))
    count = len(pool) if count is None else count
    avoided = [bookie for bookie in pool if avoids(bookie)] if avoids is not None else []
    others = [bookie for bookie in pool if bookie not in avoided] if avoided else pool
    drawn = _draw(rng, weight, others, count)
    return drawn + _draw(rng, weight, avoided, count - len(drawn)) if avoided else drawn


def _draw(rng: random.Random, weight: Weight | None, pool: Sequence[BookieId], count: int) -> list[BookieId]:
    """Draw without replacement; with weights by Efraimidis and Spirakis: the largest u**(1/weight) win."""
    if weight is None:
        return rng.sample(pool, min(count, len(pool)))
    weights = {bookie: w for bookie in pool if (w := weight(bookie)) > 0}
    keys = {bookie: rng.random() ** (1.0 / weight) for bookie, weight in weights.items()}
    return sorted(keys, key=lambda bookie: keys[bookie], reverse=True)[:count]
