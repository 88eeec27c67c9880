"""A wanted replacement takes the place of another bookie wherever the policy's own choice would be no better."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.ledger.placement import RandomPlacement
from dlog.ledger.placement_policy import RANDOM, PlacementPolicy, PolicyKind, policy_metadata
from dlog.ledger.preferred_placement import PreferredPlacement
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import Fragment, LedgerMetadata
from dlog.model.location import NetworkLocation
from dlog.model.quorum import Quorum

#: the first part is the rack
A1, A2, A3, B1, B2, C1 = (BookieId(name) for name in ("a.1", "a.2", "a.3", "b.1", "b.2", "c.1"))
ALL = (A1, A2, A3, B1, B2, C1)
E332 = Quorum(ensemble=3, write=3, ack=2)
STRICT = PlacementPolicy(PolicyKind.RACK, strict=True)
LENIENT = PlacementPolicy(PolicyKind.RACK, strict=False)


def locate(bookie: BookieId) -> NetworkLocation:
    return NetworkLocation("region", bookie.split(".")[0])


def preferring(
    bookie: BookieId, policy: PlacementPolicy = RANDOM, writable: tuple[BookieId, ...] = ALL, seed: int = 1
) -> PreferredPlacement:
    spread = SpreadPlacement(
        policy, lambda exclude: [b for b in writable if b not in exclude], locate, random.Random(seed)
    )
    return PreferredPlacement(spread.under(policy), bookie)


@pytest.mark.parametrize("seed", range(8))
def test_the_wanted_bookie_takes_the_place(seed: int) -> None:
    assert preferring(C1, seed=seed).replace(E332, (A1, A2, B1), [1], {A2}) == {1: C1}
    assert preferring(B2, STRICT, seed=seed).replace(E332, (A1, A2, B1), [1], {A2}) == {1: B2}


@pytest.mark.parametrize(
    ("wanted", "writable", "exclude"),
    [(B1, ALL, {A2}), (C1, (A1, A2, A3, B1, B2), {A2}), (C1, ALL, {A2, C1})],
    ids=["a member already", "not writable", "excluded"],
)
def test_one_that_cannot_is_not_chosen(
    wanted: BookieId, writable: tuple[BookieId, ...], exclude: set[BookieId]
) -> None:
    (chosen,) = preferring(wanted, writable=writable).replace(E332, (A1, A2, B1), [1], exclude).values()
    assert chosen != wanted and chosen not in (A1, A2, B1)


@pytest.mark.parametrize("policy", [STRICT, LENIENT], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_the_policy_comes_first(policy: PlacementPolicy, seed: int) -> None:
    (chosen,) = preferring(A3, policy, seed=seed).replace(E332, (A1, A2, B1), [2], {B1}).values()
    assert chosen in (B2, C1), "A3 would put all copies into one rack"


def test_a_policy_that_cannot_be_kept_does_not_prevent_the_wanted_bookie() -> None:
    racks_away = preferring(A3, LENIENT, (A1, A2, A3, BookieId("a.4")))
    assert racks_away.replace(E332, (A1, A2, B1), [2], {B1}) == {2: A3}
    assert preferring(A3, STRICT, (A1, A2, A3)).replace(E332, (A1, A2, B1), [2], {B1}) == {}


def test_the_policy_of_each_ledger_counts() -> None:
    value = LedgerMetadata(quorum=E332, fragments=(Fragment(EntryId(0), (A1, A2, B1)),), custom=policy_metadata(STRICT))
    found = preferring(A3).placement
    assert isinstance(found, RandomPlacement)
    placed = PreferredPlacement(SpreadPlacement(RANDOM, lambda _: ALL, locate, random.Random(1)), A3).for_ledger(value)
    assert set(placed.replace(E332, (A1, A2, B1), [2], {B1}).values()) <= {B2, C1}
    assert placed.replace(E332, (A1, A2, B1), [1], {A2}) == {1: A3}


@given(st.permutations(ALL), st.integers(0, 2), st.sampled_from(ALL), st.booleans(), st.integers(0, 5))
def test_never_worse_than_the_policy_would_choose(
    order: list[BookieId], index: int, wanted: BookieId, strict: bool, seed: int
) -> None:
    policy = STRICT if strict else LENIENT
    ensemble = tuple(order[:3])
    found = preferring(wanted, policy, seed=seed).replace(E332, ensemble, [index], {ensemble[index]})
    alone = preferring(wanted, policy, seed=seed).placement.replace(E332, ensemble, [index], {ensemble[index]})
    assert found.keys() == alone.keys()
    for chosen, by_policy in zip(found.values(), alone.values(), strict=True):
        assert chosen not in ensemble
        racks = [
            len({locate(b).rack for b in (*ensemble[:index], new, *ensemble[index + 1 :])})
            for new in (chosen, by_policy)
        ]
        assert min(racks[0], 2) >= min(racks[1], 2)


def test_the_only_replacement_is_taken_where_the_policy_is_kept_as_well() -> None:
    def replaced(bookie: BookieId, policy: PlacementPolicy, *ensemble: BookieId) -> dict[int, BookieId]:
        spread = SpreadPlacement(policy, lambda exclude: [*{*ALL}.difference(exclude)], locate, random.Random(1))
        only = PreferredPlacement(spread.under(policy), bookie, is_only=True)
        return only.replace(E332, ensemble, [2])

    assert replaced(C1, RANDOM, A1, A2, B1) == {2: C1}
    assert replaced(A3, RANDOM, A1, A2, B1) == {2: A3}
    assert replaced(A2, RANDOM, A1, A2, B1) == {}, "a member"
    for policy in (STRICT, LENIENT):
        assert replaced(C1, policy, A1, A2, B1) == {2: C1}
        assert replaced(A3, policy, A1, A2, B1) == {}, "only one rack would be left, and nobody else is chosen"
        assert replaced(B1, policy, A1, A2, A3) == {2: B1}
