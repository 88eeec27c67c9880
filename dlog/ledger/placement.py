"""Placement: which bookies form an ensemble, and who takes the place of one that failed.

The law of this file: an ensemble holds each bookie once, a replacement is never a member already, and the choice is
made from a snapshot of writable bookies by a generator handed in. A policy that knows racks or regions keeps the
`Placement` protocol and looks at the whole ensemble, which is why `replace` is given all of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from dlog.errors import NotEnoughBookiesError
from dlog.model.ids import BookieId
from dlog.model.quorum import Quorum

#: The writable bookies as last heard, without the excluded ones. A snapshot: no wait, no failure.
Candidates = Callable[[Collection[BookieId]], Sequence[BookieId]]
#: How much of the load a bookie shall take, relative to others; not positive: none.
Weight = Callable[[BookieId], float]


class Placement(Protocol):
    """Chooses ensembles and replacements."""

    def choose(self, quorum: Quorum, exclude: Collection[BookieId] = ()) -> tuple[BookieId, ...]:
        """A new ensemble of `quorum.ensemble` bookies. Raises NotEnoughBookiesError."""
        ...

    def replace(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        failed: Collection[int],
        exclude: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        """A bookie for each of the `failed` indices for which one can be found, none of them in the ensemble."""
        ...

    def is_writable(self, bookie: BookieId) -> bool:
        """Whether the bookie could be chosen now, were it not a member already."""
        ...


class RandomPlacement:
    """Any writable bookie will do; heavier ones are chosen more often.

    candidates: the port to the list of writable bookies. rng: seeded by whoever composes. weight: equal if None.
    """

    def __init__(self, candidates: Candidates, rng: random.Random, weight: Weight | None = None) -> None:
        self._candidates = candidates
        self._rng = rng
        self._weight = weight

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

    def _draw(self, count: int, exclude: Collection[BookieId]) -> list[BookieId]:
        """At most `count` different bookies, in random order."""
        pool = sorted(set(self._candidates(exclude)).difference(exclude))
        if self._weight is None:
            return self._rng.sample(pool, min(count, len(pool)))
        weights = {bookie: w for bookie in pool if (w := self._weight(bookie)) > 0}
        return _draw_weighted(self._rng, weights, count)


def _draw_weighted(rng: random.Random, weights: Mapping[BookieId, float], count: int) -> list[BookieId]:
    """Draw without putting back, by Efraimidis and Spirakis: the largest u**(1/weight) win."""
    keys = {bookie: rng.random() ** (1.0 / weight) for bookie, weight in weights.items()}
    return sorted(keys, key=lambda bookie: keys[bookie], reverse=True)[:count]
