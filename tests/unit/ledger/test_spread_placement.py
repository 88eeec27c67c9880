"""Rack-aware and region-aware placement, compared with a search through all ensembles."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import NotEnoughBookiesError
from dlog.ledger.arrangement import STEPS_MAX, Arrangement
from dlog.ledger.placement_policy import PlacementPolicy, PolicyKind, write_quorums
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.model.ids import BookieId
from dlog.model.location import NetworkLocation
from dlog.model.quorum import Quorum

RACK = PlacementPolicy(PolicyKind.RACK, strict=True)


def locate(bookie: BookieId) -> NetworkLocation:
    """The bookie `2.1` is number 1 of domain 2: a region of its own with one rack."""
    domain = bookie.split(".")[0]
    return NetworkLocation(f"region-{domain}", f"rack-{domain}")


def bookies(counts: Sequence[int]) -> list[BookieId]:
    """Bookies by the number of them in each domain."""
    return [BookieId(f"{domain}.{i}") for domain, count in enumerate(counts) for i in range(count)]


def placement(policy: PlacementPolicy, writable: Collection[BookieId], seed: int = 1) -> SpreadPlacement:
    def candidates(exclude: Collection[BookieId]) -> list[BookieId]:
        return [b for b in writable if b not in exclude]

    return SpreadPlacement(policy, candidates, locate, random.Random(seed))


def fewest(policy: PlacementPolicy, quorum: Quorum, ensemble: Sequence[BookieId]) -> int:
    """Domains of the write quorum that has the fewest."""
    return min(len({policy.domain(locate(ensemble[i])) for i in indices}) for indices in write_quorums(quorum))


@st.composite
def quorums(draw: st.DrawFn, ensemble_max: int) -> Quorum:
    write = draw(st.integers(1, min(4, ensemble_max)))
    return Quorum(ensemble=draw(st.integers(write, ensemble_max)), write=write, ack=1)


policies = st.one_of(
    st.builds(PlacementPolicy, st.just(PolicyKind.RACK), st.just(0), st.booleans()),
    st.builds(PlacementPolicy, st.just(PolicyKind.REGION), st.integers(1, 4), st.booleans()),
)
domains = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def arrangements(counts: Sequence[int], length: int) -> Iterator[tuple[int, ...]]:
    """All sequences of domains that have the bookies for it."""
    for one in product(range(len(counts)), repeat=length):
        used = Counter(one)
        if all(used[domain] <= counts[domain] for domain in used):
            yield one


@settings(max_examples=300)
@given(policies, quorums(6), domains, st.integers())
def test_an_ensemble_is_found_whenever_there_is_one(
    policy: PlacementPolicy, quorum: Quorum, counts: list[int], seed: int
) -> None:
    needed = policy.needed(quorum)

    def best(one: tuple[int, ...]) -> int:
        return min(len({one[i] for i in indices}) for indices in write_quorums(quorum))

    reachable = max((best(one) for one in arrangements(counts, quorum.ensemble)), default=0)
    chooser = placement(policy, bookies(counts), seed)
    if not reachable or (policy.strict and reachable < needed):
        with pytest.raises(NotEnoughBookiesError):
            chooser.choose(quorum)
        return
    ensemble = chooser.choose(quorum)
    assert len(set(ensemble)) == quorum.ensemble and set(ensemble) <= set(bookies(counts))
    assert fewest(policy, quorum, ensemble) >= min(needed, reachable)
    assert bool(chooser.shortage(quorum, ensemble)) == (fewest(policy, quorum, ensemble) < needed)


@settings(max_examples=300)
@given(policies, quorums(5), domains, st.data())
def test_replacements_are_found_whenever_there_are_and_keep_what_was_kept(
    policy: PlacementPolicy, quorum: Quorum, counts: list[int], data: st.DataObject
) -> None:
    everybody = bookies([count + 5 for count in counts])
    ensemble = tuple(data.draw(st.permutations(everybody))[: quorum.ensemble])
    failed = data.draw(st.sets(st.integers(0, quorum.ensemble - 1), min_size=1, max_size=3))
    spare = data.draw(st.lists(st.sampled_from(everybody), unique=True, max_size=4))
    chooser = placement(policy, spare, data.draw(st.integers()))
    found = chooser.replace(quorum, ensemble, failed)
    after = tuple(found.get(i, b) for i, b in enumerate(ensemble))
    assert set(found) <= failed and not set(found.values()) & set(ensemble)
    assert len(set(after)) == quorum.ensemble and set(found.values()) <= set(spare)
    assert chooser.allows(quorum, ensemble, after)
    free = sorted(set(spare) - set(ensemble))
    possible = [
        tuple(dict(zip(indices, new, strict=True)).get(i, b) for i, b in enumerate(ensemble))
        for count in range(1, len(failed) + 1)
        for indices in permutations(sorted(failed), count)
        for new in permutations(free, count)
    ]
    most = max((sum(a != b for a, b in zip(ensemble, one, strict=True)) for one in possible if chooser.allows(
        quorum, ensemble, one)), default=0)  # fmt: skip
    assert len(found) == most, "as many as possible"
    kept = [one for one in possible if not chooser.shortage(quorum, one)]
    if any(sum(a != b for a, b in zip(ensemble, one, strict=True)) == most for one in kept):
        assert not chooser.shortage(quorum, after), "the policy is kept where that is possible"


def test_a_refusal_names_the_policy_what_is_there_and_what_to_do() -> None:
    with pytest.raises(NotEnoughBookiesError) as refused:
        placement(RACK, bookies([4])).choose(Quorum())
    text = str(refused.value)
    assert "start bookies with another --rack" in text
    assert "placement_strict = false in [ledger], which only new ledgers follow" in text
    assert "policy=rack strict racks=1 needed=2 writable=4 ensemble=3" in text
    regions = PlacementPolicy(PolicyKind.REGION, 3, strict=True)
    with pytest.raises(NotEnoughBookiesError, match="write quorum of at least 3"):
        placement(regions, bookies([1, 1, 1])).choose(Quorum(ensemble=3, write=2, ack=2))


def test_copies_lie_in_more_racks_than_needed_where_there_are_more() -> None:
    for seed in range(20):
        ensemble = placement(RACK, bookies([3, 3, 3]), seed).choose(Quorum())
        assert len({locate(b).rack for b in ensemble}) == 3


def test_every_bookie_of_equal_racks_is_chosen_about_as_often() -> None:
    chooser = placement(RACK, bookies([2, 2]))
    counts = Counter(b for _ in range(1000) for b in chooser.choose(Quorum()))
    assert set(counts) == set(bookies([2, 2])) and min(counts.values()) > 600 and max(counts.values()) < 900


def test_a_bookie_without_weight_is_not_chosen_and_heavier_ones_are_more_often() -> None:
    weights = dict.fromkeys(bookies([3, 3]), 1.0) | {BookieId("0.0"): 0.0, BookieId("1.0"): 8.0}
    chooser = SpreadPlacement(RACK, lambda _: bookies([3, 3]), locate, random.Random(1), weights.__getitem__)
    counts = Counter(b for _ in range(500) for b in chooser.choose(Quorum(ensemble=2, write=2, ack=2)))
    assert counts[BookieId("0.0")] == 0 and counts[BookieId("1.0")] > 2 * counts[BookieId("1.1")]


def test_a_strict_policy_replaces_one_of_two_if_only_that_keeps_it() -> None:
    ensemble = tuple(BookieId(b) for b in ("0.0", "1.0", "0.1", "1.1"))
    quorum = Quorum(ensemble=4, write=2, ack=2)
    assert placement(RACK, [BookieId("0.2")]).replace(quorum, ensemble, {0, 1}) == {0: "0.2"}
    assert placement(RACK, [BookieId("0.2"), BookieId("0.3")]).replace(quorum, ensemble, {0, 1}) in (
        {0: "0.2"},
        {0: "0.3"},
    )
    assert placement(RACK, [BookieId("0.2")]).replace(quorum, ensemble, {1}) == {}


def seen_only(*gone: str) -> SpreadPlacement:
    """A strict placement of a process that never saw where these bookies stand. Bookies 0.2, 0.3, 1.2 are writable."""
    writable = [BookieId(b) for b in ("0.2", "0.3", "1.2")]

    def known(bookie: BookieId) -> NetworkLocation | None:
        return None if bookie in gone else locate(bookie)

    return SpreadPlacement(RACK, lambda exclude: [b for b in writable if b not in exclude], known, random.Random(1))


class TestUnknownLocations:
    """Members of an ensemble that were gone before this process looked."""

    QUORUM = Quorum(ensemble=4, write=2, ack=2)
    ENSEMBLE = tuple(BookieId(b) for b in ("0.0", "1.0", "0.1", "1.1"))

    def test_a_lost_one_may_have_been_what_kept_the_policy(self) -> None:
        chooser = seen_only("1.0")
        assert chooser.replace(self.QUORUM, self.ENSEMBLE, {1}) == {1: "1.2"}
        assert chooser.replace(self.QUORUM, self.ENSEMBLE, {1}, [BookieId("1.2")]) == {}
        for new, is_allowed in (("1.2", True), ("0.2", False)):
            after = (self.ENSEMBLE[0], BookieId(new), *self.ENSEMBLE[2:])
            assert chooser.allows(self.QUORUM, self.ENSEMBLE, after) is is_allowed

    def test_one_that_stays_counts_as_it_did(self) -> None:
        """Copies of several lost bookies are made again for one after the other."""
        chooser = seen_only("0.0", "1.0", "1.1")
        assert chooser.replace(self.QUORUM, self.ENSEMBLE, {1}, [BookieId("1.2")]) == {}, "0.1 stands beside it"
        assert chooser.replace(self.QUORUM, self.ENSEMBLE, {1}) == {1: "1.2"}
        after = (self.ENSEMBLE[0], BookieId("1.2"), *self.ENSEMBLE[2:])
        assert chooser.allows(self.QUORUM, self.ENSEMBLE, after)

    def test_if_not_strict_it_is_replaced_all_the_same(self) -> None:
        lax = seen_only("1.0").without_strict()
        assert set(lax.replace(self.QUORUM, self.ENSEMBLE, {1}, [BookieId("1.2")])) == {1}


def test_a_bookie_is_located_once_for_a_replacement_that_is_not_found() -> None:
    """A writer tries again and again while a rack is away; the cost does not grow with the levels that are tried."""
    asked = Counter[BookieId]()

    def counting(bookie: BookieId) -> NetworkLocation:
        asked[bookie] += 1
        return locate(bookie)

    spare = [BookieId(f"0.{i}") for i in range(10, 60)]
    chooser = SpreadPlacement(RACK, lambda _: spare, counting, random.Random(1))
    ensemble = tuple(BookieId(b) for b in ("0.0", "1.0", "0.1", "1.1"))
    assert chooser.replace(Quorum(ensemble=4, write=2, ack=2), ensemble, {1, 3}) == {}
    assert {asked[bookie] for bookie in spare} == {1}


@pytest.mark.parametrize("counts", [[6, 6], [9, 1, 1], [5, 5, 5, 5, 5], [2] * 10])
@pytest.mark.parametrize("needed", [2, 3, 5])
def test_a_search_through_a_large_ensemble_ends(counts: list[int], needed: int) -> None:
    quorum = Quorum(ensemble=10, write=5, ack=3)
    ranks = {str(domain): list(range(count)) for domain, count in enumerate(counts)}
    search = Arrangement(quorum, [None] * 10, range(10), [needed] * 10, ranks)
    found = search.find()
    assert search.steps <= STEPS_MAX + 10 * 10
    if found is not None:
        assert all(len({found[i] for i in indices}) >= needed for indices in write_quorums(quorum))


@given(quorums(5), policies, domains, st.sets(st.integers(0, 15)), st.integers())
def test_who_is_to_be_avoided_costs_no_domain_and_is_left_out_where_the_others_do(
    quorum: Quorum, policy: PlacementPolicy, counts: list[int], numbers: set[int], seed: int
) -> None:
    writable = bookies(counts)
    avoided = {writable[number] for number in numbers if number < len(writable)}

    def careful(writable: Collection[BookieId], avoids: Collection[BookieId]) -> SpreadPlacement:
        chooser = placement(policy, writable, seed)
        chooser._avoids = avoids.__contains__
        return chooser

    try:
        plain = placement(policy, writable, seed).choose(quorum)
    except NotEnoughBookiesError:
        with pytest.raises(NotEnoughBookiesError):
            careful(writable, avoided).choose(quorum)
        return
    chosen = careful(writable, avoided).choose(quorum)
    needed = min(policy.needed(quorum), quorum.write)
    assert min(fewest(policy, quorum, chosen), needed) == min(fewest(policy, quorum, plain), needed)
    try:
        without = placement(policy, [bookie for bookie in writable if bookie not in avoided], seed).choose(quorum)
    except NotEnoughBookiesError:
        return
    if fewest(policy, quorum, without) >= min(fewest(policy, quorum, plain), needed):
        assert not avoided.intersection(chosen)


def test_a_replacement_is_avoided_unless_it_keeps_the_policy_better() -> None:
    r1, r2, other_r2, other_r1 = (BookieId(name) for name in ("1.0", "2.0", "2.1", "1.1"))
    chooser = placement(PlacementPolicy(PolicyKind.RACK), [other_r2, other_r1])
    chooser._avoids = {other_r2}.__contains__
    quorum = Quorum(ensemble=2, write=2, ack=1)
    assert chooser.replace(quorum, [r1, r2], [1]) == {1: other_r2}, "the other one would leave one rack"
    assert chooser.replace(quorum, [r2, r1], [1]) == {1: other_r1}
