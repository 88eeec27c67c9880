"""Rack-aware and region-aware placement: every write quorum of an ensemble lies in as many domains as the policy asks.

Bookies are drawn at random, in proportion to weight; `Arrangement` then decides from which rack or region (domain) the
bookie of each index is taken, the first drawn one of it.

Invariants:
- an ensemble holds each bookie once, and a replacement is not a member already;
- strict: a new ensemble keeps the policy, and a replacement leaves no write quorum with fewer domains than it had,
  unless it still has enough. A member whose location is not known counts as a domain of its own, as long as it is a
  member: what is not known does not make a policy weaker;
- with `min_regions`, a bookie whose location is not known counts for no region when an entry is confirmed;
- not strict: as many failed members are replaced as there are bookies for, in the arrangement with the most domains in
  its poorest write quorum, up to what the policy asks;
- a bookie to avoid is chosen only where the others allow no arrangement with as many domains, as many as are asked.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product

from dlog.errors import NotEnoughBookiesError
from dlog.ledger.arrangement import Arrangement
from dlog.ledger.placement import Avoids, Candidates, Confirms, Placement, RandomPlacement, Weight, draw_bookies
from dlog.ledger.placement_policy import Locate, PlacementPolicy, PolicyKind, policy_of, write_quorums
from dlog.model.ids import BookieId
from dlog.model.ledger import LedgerMetadata
from dlog.model.quorum import Quorum


class SpreadPlacement:
    """Places copies under a policy, also `random`.

    candidates: returns the writable bookies. locate: where a bookie stands; one that is not known is not chosen. rng:
    seeded by the caller. weight: equal if None. avoids: none if None.
    """

    def __init__(
        self,
        policy: PlacementPolicy,
        candidates: Candidates,
        locate: Locate,
        rng: random.Random,
        weight: Weight | None = None,
        avoids: Avoids | None = None,
    ) -> None:
        self.policy = policy
        self._candidates = candidates
        self._locate = locate
        self._rng = rng
        self._weight = weight
        self._avoids = avoids

    @property
    def confirms(self) -> Confirms | None:
        return self._confirms if self.policy.min_regions else None

    def _confirms(self, bookies: Collection[BookieId]) -> bool:
        return len({self._domain(bookie) for bookie in bookies} - {None}) >= self.policy.min_regions

    def choose(self, quorum: Quorum, exclude: Collection[BookieId] = ()) -> tuple[BookieId, ...]:
        drawn = self._draw(exclude)
        if len(drawn) < quorum.ensemble:
            raise NotEnoughBookiesError(
                f"too few writable bookies, start more or ask for a smaller ensemble: "
                f"writable={len(drawn)} ensemble={quorum.ensemble}"
            )
        indices = range(quorum.ensemble)
        pools = self._pools(drawn)
        needed = self.policy.needed(quorum)
        for least in [needed] if self.policy.strict else range(min(needed, quorum.write), 0, -1):
            needs = [least] * len(write_quorums(quorum))
            for ranks in pools:
                found = Arrangement(quorum, [None] * quorum.ensemble, indices, needs, ranks).find()
                if found is not None:
                    by_index = _first_of_each(found, ranks, drawn)
                    return tuple(by_index[i] for i in indices)
        raise NotEnoughBookiesError(self._refusal(quorum, drawn))

    def replace(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        failed: Collection[int],
        exclude: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        drawn = self._draw({*ensemble, *exclude})
        indices, pools = sorted(failed), self._pools(drawn)
        fixed, counted = [self._domain(bookie) for bookie in ensemble], self._domains(ensemble, ensemble)
        fewest_kept = max(0, len(indices) - len(drawn))
        if len(indices) == fewest_kept:
            return {}
        needed = self.policy.needed(quorum)
        touched = [not set(indices).isdisjoint(members) for members in write_quorums(quorum)]
        as_now = self._needs(quorum, ensemble)
        levels = [(fixed, [needed if is_touched else 0 for is_touched in touched]), (counted, as_now)]
        if not self.policy.strict:
            least = range(min(needed, quorum.write) - 1, -1, -1)
            levels += [(counted, [min(need, count) for need in as_now]) for count in least]
        most_kept = len(indices) - 1 if self.policy.strict else fewest_kept
        for kept in range(fewest_kept, most_kept + 1):
            for (members, needs), ranks in product(levels, pools):
                found = Arrangement(quorum, members, indices, needs, ranks, kept).find()
                if found is not None:
                    return _first_of_each(found, ranks, drawn)
        return {}

    def is_writable(self, bookie: BookieId) -> bool:
        return bookie in self._candidates(())

    def shortage(self, quorum: Quorum, ensemble: Sequence[BookieId]) -> str:
        found = self.policy.shortage(quorum, ensemble, self._locate)
        return f"policy={self.policy}: {found}" if found is not None else ""

    def allows(self, quorum: Quorum, old: Sequence[BookieId], new: Sequence[BookieId]) -> bool:
        if not self.policy.strict:
            return True
        counts = _counts(quorum, self._domains(new, old))
        return all(count >= need for count, need in zip(counts, self._needs(quorum, old), strict=True))

    def for_ledger(self, metadata: LedgerMetadata) -> Placement:
        return self.under(policy_of(metadata))

    def without_strict(self) -> Placement:
        if not self.policy.strict or self.policy.min_regions:
            return self
        return self.under(replace(self.policy, strict=False))

    def under(self, policy: PlacementPolicy) -> Placement:
        """The same bookies under another policy."""
        if policy.kind is PolicyKind.RANDOM:
            return RandomPlacement(self._candidates, self._rng, self._weight, self._avoids)
        return SpreadPlacement(policy, self._candidates, self._locate, self._rng, self._weight, self._avoids)

    def _draw(self, exclude: Collection[BookieId]) -> list[BookieId]:
        """All candidates in random order, those to avoid last."""
        return draw_bookies(self._candidates, self._rng, self._weight, exclude, None, self._avoids)

    def _pools(self, drawn: Sequence[BookieId]) -> list[dict[str, list[int]]]:
        """The places in `drawn` by domain (`_ranks`): of the bookies that need not be avoided, then of all."""
        avoided = {bookie for bookie in drawn if self._avoids(bookie)} if self._avoids is not None else None
        return [self._ranks(drawn, avoided), self._ranks(drawn)] if avoided else [self._ranks(drawn)]

    def _domain(self, bookie: BookieId) -> str | None:
        location = self._locate(bookie)
        return None if location is None else self.policy.domain(location)

    def _domains(self, ensemble: Sequence[BookieId], old: Collection[BookieId]) -> list[str | None]:
        """The domain of each member; one of `old` whose location is not known has a domain of its own."""
        return [self._domain(bookie) or (f"unknown {bookie}" if bookie in old else None) for bookie in ensemble]

    def _needs(self, quorum: Quorum, ensemble: Sequence[BookieId]) -> list[int]:
        """How many domains each write quorum must keep: as many as the policy asks, or as it has, if it has fewer."""
        needed = self.policy.needed(quorum)
        return [min(needed, count) for count in _counts(quorum, self._domains(ensemble, ensemble))]

    def _ranks(self, drawn: Sequence[BookieId], without: Collection[BookieId] = ()) -> dict[str, list[int]]:
        """The places in `drawn` of the bookies of each domain."""
        ranks: dict[str, list[int]] = {}
        for rank, bookie in enumerate(drawn):
            domain = self._domain(bookie)
            if domain is not None and bookie not in without:
                ranks.setdefault(domain, []).append(rank)
        return ranks

    def _refusal(self, quorum: Quorum, drawn: Sequence[BookieId]) -> str:
        what = "region" if self.policy.kind is PolicyKind.REGION else "rack"
        seen = len({self._domain(bookie) for bookie in drawn} - {None})
        needed = self.policy.needed(quorum)
        if needed > quorum.write:
            remedy = f"choose a write quorum of at least {needed}, or fewer regions (placement_regions in [ledger])"
        elif self.policy.min_regions:
            of_stream = self.policy.min_regions == needed
            fewer = "--min-regions of the stream" if of_stream else "placement_regions in [ledger]"
            remedy = (
                f"start bookies with another --region (`dlog bookie ls` shows them), or ask for fewer regions "
                f"({fewer}), which only new ledgers follow"
            )
        else:
            remedy = (
                f"start bookies with another --{what} (`dlog bookie ls` shows racks and regions), or set "
                f"placement_strict = false in [ledger], which only new ledgers follow"
            )
        return (
            f"no ensemble of the writable bookies keeps the placement policy, {remedy}: policy={self.policy} "
            f"{what}s={seen} needed={needed} writable={len(drawn)} ensemble={quorum.ensemble} write={quorum.write}"
        )


def _counts(quorum: Quorum, domains: Sequence[str | None]) -> list[int]:
    """How many domains each write quorum has."""
    return [len({domains[i] for i in indices} - {None}) for indices in write_quorums(quorum)]


def _first_of_each(
    found: Mapping[int, str], ranks: Mapping[str, Sequence[int]], drawn: Sequence[BookieId]
) -> dict[int, BookieId]:
    """Bookies by index, of an arrangement of domains: those of a domain that were drawn first."""
    following = {domain: iter(places) for domain, places in ranks.items()}
    return {index: drawn[next(following[domain])] for index, domain in sorted(found.items())}
