"""Policies on where the copies of an entry lie: what each asks of an ensemble, and whether an ensemble keeps it.

Entry e has its copies on the Qw members from index e modulo E on (`Quorum.write_set`): a *write quorum*. A policy is
about every write quorum of an ensemble, so the order of the members counts.

- `random`: nothing.
- `rack`: two racks in each write quorum, if Qw is at least two.
- `region`: at least `regions` regions in each write quorum. If that is Qw of Qw regions, they take turns in the
  ensemble, and E is a multiple of Qw.

A policy is about where copies are sent, not about who acknowledges: an entry is confirmed by any Qa of its write
quorum. It is then in two racks for certain only if no rack has Qa members of that quorum (docs/operations.md). With
`min_regions` it is about both: an entry is confirmed once Qa members hold it *and* they stand in so many regions.

A ledger's policy is in its custom metadata. So each process that changes its ensembles later applies the same one, also
a recovery elsewhere. Source: BookKeeper, RackawareEnsemblePlacementPolicy, RegionAwareEnsemblePlacementPolicy.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dlog.model.ids import BookieId
from dlog.model.ledger import LedgerMetadata
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation, check_location_name
from dlog.model.quorum import Quorum
from dlog.options import check_positive, option

#: Key of a ledger's policy in its custom metadata; without it the policy is `random`.
POLICY = "dlog.placement"
#: Where a bookie stands; None: not known, since it is not registered and was not seen before.
Locate = Callable[[BookieId], NetworkLocation | None]
AUTO = "auto"


class PolicyKind(enum.Enum):
    """What a policy spreads the copies over."""

    RANDOM = "random"
    RACK = "rack"
    REGION = "region"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What an ensemble lacks of its policy. quorums: the write quorums that do not keep it, of `of` different ones.

    found: the fewest racks or regions in one of them. unlocated: members whose location is not known; they may make up
    for what is lacking.
    """

    needed: int
    found: int
    quorums: int
    of: int
    what: str
    unlocated: tuple[BookieId, ...] = ()

    @property
    def is_certain(self) -> bool:
        """Whether the unlocated members cannot make up for it."""
        return not self.unlocated

    def __str__(self) -> str:
        text = f"{self.quorums} of {self.of} write quorums with {self.found} {self.what}s, needed={self.needed}"
        return f"{text} location_unknown={','.join(self.unlocated)}" if self.unlocated else text


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """A policy. regions: asked for by `region`. strict: an ensemble that does not keep it is refused; else it is kept
    as far as possible, and an event names the ledger. min_regions: regions whose bookies must hold an entry before it
    is confirmed; 0: any Qa members will do. Only with `region` and strict, at most `regions`."""

    kind: PolicyKind = PolicyKind.RANDOM
    regions: int = 0
    strict: bool = False
    min_regions: int = 0

    def __post_init__(self) -> None:
        assert not self.min_regions or (self.strict and self.min_regions <= self.regions), "see the docstring"

    def __str__(self) -> str:
        words = [self.kind.value, *([str(self.regions)] if self.kind is PolicyKind.REGION else [])]
        words += ["min_regions", str(self.min_regions)] if self.min_regions else []
        return " ".join([*words, *(["strict"] if self.strict else [])])

    def with_min_regions(self, regions: int) -> PlacementPolicy:
        """This policy for a ledger whose entries are confirmed once so many regions hold them; at most one: as it is,
        since any bookie stands in one. What is not strict in it is left out."""
        if regions <= 1:
            return self
        spread = max(regions, self.regions) if self.strict else regions
        return PlacementPolicy(PolicyKind.REGION, spread, strict=True, min_regions=regions)

    def needed(self, quorum: Quorum) -> int:
        """How many racks or regions each write quorum must have."""
        if self.kind is PolicyKind.RACK:
            return min(2, quorum.write)
        return self.regions if self.kind is PolicyKind.REGION else 1

    def domain(self, location: NetworkLocation) -> str:
        """The rack or region of a location, by which copies are told apart."""
        return location.region if self.kind is PolicyKind.REGION else str(location)

    def shortage(self, quorum: Quorum, ensemble: Sequence[BookieId], locate: Locate) -> Shortage | None:
        """What an ensemble lacks; None: every write quorum keeps the policy. An unlocated member counts for nothing."""
        needed = self.needed(quorum)
        if needed <= 1:
            return None
        locations = {bookie: locate(bookie) for bookie in ensemble}
        lacking, found, unlocated = 0, needed, set[BookieId]()
        quorums = write_quorums(quorum)
        for indices in quorums:
            members = [ensemble[i] for i in indices]
            known = {self.domain(location) for b in members if (location := locations[b]) is not None}
            if len(known) < needed:
                lacking += 1
                found = min(found, len(known))
                unlocated.update(b for b in members if locations[b] is None)
        if not lacking:
            return None
        what = "region" if self.kind is PolicyKind.REGION else "rack"
        return Shortage(needed, found, lacking, len(quorums), what, tuple(sorted(unlocated)))


RANDOM = PlacementPolicy()
RACK = PlacementPolicy(PolicyKind.RACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """The part of section [ledger] (ledger_options.py) on where the copies of the entries of new ledgers lie, and which
    copy is read first."""

    placement: str = option(
        AUTO,
        "policy: random; rack: each write quorum lies in at least two racks; region: in at least placement_regions "
        "regions; auto: rack, not strict, if the bookies stand in more than one rack, else random",
    )
    placement_regions: int = option(2, "regions in each write quorum, with placement region")
    placement_strict: bool = option(
        False,
        "refuse an ensemble that does not keep the policy; false: keep it as far as possible, with event "
        "placement.not_kept",
    )
    region: str = option(
        "",
        "region that this process stands in: entries are read from the nearest bookies first, and clients of a region "
        "use its proxies",
    )
    rack: str = option("", "rack that this process stands in, likewise")

    @property
    def location(self) -> NetworkLocation | None:
        """Where this process stands; None: not configured."""
        if not self.region and not self.rack:
            return None
        return NetworkLocation(self.region or DEFAULT_LOCATION.region, self.rack or DEFAULT_LOCATION.rack)

    def __post_init__(self) -> None:
        kinds = [AUTO, *(kind.value for kind in PolicyKind)]
        if self.placement not in kinds:
            raise ValueError(f"placement is one of {', '.join(kinds)}: placement={self.placement[:60]!r}")
        check_positive(self, "placement_regions")
        for kind in ("region", "rack"):
            if name := getattr(self, kind):
                check_location_name(kind, name)
        if self.placement_strict and self.placement not in ("rack", "region"):
            raise ValueError(f"placement_strict needs placement rack or region: placement={self.placement}")

    def policy(self, locations: Iterable[NetworkLocation]) -> PlacementPolicy:
        """The policy of a new ledger. locations: of all known bookies, also of those that are away: a cluster has its
        racks also while all bookies of one are down."""
        if self.placement == AUTO:
            return RACK if len(set(locations)) > 1 else RANDOM
        kind = PolicyKind(self.placement)
        return PlacementPolicy(kind, self.placement_regions if kind is PolicyKind.REGION else 0, self.placement_strict)


def write_quorums(quorum: Quorum) -> list[tuple[int, ...]]:
    """The bookie indices of each different write quorum of an ensemble."""
    starts = 1 if quorum.write == quorum.ensemble else quorum.ensemble
    return [quorum.write_set(start) for start in range(starts)]


def policy_metadata(policy: PlacementPolicy) -> tuple[tuple[str, bytes], ...]:
    """The custom metadata of a ledger with this policy."""
    return () if policy.kind is PolicyKind.RANDOM else ((POLICY, str(policy).encode()),)


def policy_of(metadata: LedgerMetadata) -> PlacementPolicy:
    """The policy in a ledger's custom metadata: `random` if there is none, or one of a later version."""
    words = dict(metadata.custom).get(POLICY, b"").decode(errors="replace").split()
    strict = words[-1:] == ["strict"]
    match words[:-1] if strict else words:
        case ["rack"]:
            return PlacementPolicy(PolicyKind.RACK, 0, strict)
        case ["region", number] if regions := _number(number):
            return PlacementPolicy(PolicyKind.REGION, regions, strict)
        case ["region", number, "min_regions", least] if strict and 0 < _number(least) <= _number(number):
            return PlacementPolicy(PolicyKind.REGION, _number(number), strict, _number(least))
    return RANDOM


def _number(word: str) -> int:
    """A positive number of up to nine digits; else 0."""
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 9 else 0
