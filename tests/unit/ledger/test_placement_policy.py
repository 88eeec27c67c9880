"""What policies ask of an ensemble, and how a ledger remembers its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.ledger.placement_policy import (
    RACK,
    RANDOM,
    PlacementOptions,
    PlacementPolicy,
    PolicyKind,
    policy_metadata,
    policy_of,
)
from dlog.model.ids import BookieId
from dlog.model.location import NetworkLocation
from dlog.model.quorum import Quorum
from tests.unit.ledger.story import ledger

REGION = PlacementPolicy(PolicyKind.REGION, 2)
E422 = Quorum(ensemble=4, write=2, ack=2)


def locate(bookie: BookieId) -> NetworkLocation | None:
    """The bookie `eu.r1.7` stands in rack r1 of region eu; `?` stands nobody knows where."""
    region, _, rest = bookie.partition(".")
    return NetworkLocation(region, rest.split(".")[0]) if rest else None


def lacks(policy: PlacementPolicy, quorum: Quorum, *members: str) -> str:
    return str(policy.shortage(quorum, [BookieId(b) for b in members], locate) or "")


def test_every_write_quorum_has_two_racks_so_the_order_of_the_members_counts() -> None:
    assert lacks(RACK, E422, "x.r1.1", "x.r2.1", "x.r1.2", "x.r2.2") == ""
    found = lacks(RACK, E422, "x.r1.1", "x.r1.2", "x.r2.1", "x.r2.2")
    assert found == "2 of 4 write quorums with 1 racks, needed=2"
    assert lacks(RANDOM, E422, "x.r1.1", "x.r1.2", "x.r1.3", "x.r1.4") == ""


def test_one_copy_has_one_rack() -> None:
    assert lacks(RACK, Quorum(ensemble=2, write=1, ack=1), "x.r1.1", "x.r1.2") == ""


def test_racks_of_one_name_in_two_regions_are_two_and_regions_are_told_apart_by_name() -> None:
    assert lacks(RACK, Quorum(), "eu.r1.1", "us.r1.1", "eu.r1.2") == ""
    assert lacks(REGION, Quorum(), "eu.r1.1", "us.r1.1", "eu.r2.1") == ""
    assert lacks(REGION, Quorum(), "eu.r1.1", "eu.r2.1", "eu.r3.1") == "1 of 1 write quorums with 1 regions, needed=2"


def test_a_member_that_nobody_knows_counts_for_nothing_and_is_named() -> None:
    found = RACK.shortage(Quorum(), [BookieId(b) for b in ("x.r1.1", "x.r1.2", "?")], locate)
    assert found is not None and not found.is_certain and str(found).endswith("location_unknown=?")
    assert lacks(RACK, Quorum(), "x.r1.1", "x.r2.1", "?") == ""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("policy", [RACK, REGION, PlacementPolicy(PolicyKind.REGION, 12)])
def test_a_ledger_remembers_its_policy(policy: PlacementPolicy, strict: bool) -> None:
    policy = replace(policy, strict=strict)
    assert policy_of(replace(ledger(), custom=(("who", b"me"), *policy_metadata(policy)))) == policy


@pytest.mark.parametrize("text", [b"", b"strict", b"rack 2", b"region", b"region 0", b"region x", b"zone", b"\xff"])
def test_a_policy_that_this_version_does_not_know_asks_nothing(text: bytes) -> None:
    assert policy_of(replace(ledger(), custom=(("dlog.placement", text),))) == RANDOM


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("base", [RANDOM, RACK, REGION, PlacementPolicy(PolicyKind.REGION, 5)])
def test_a_ledger_remembers_its_min_regions(base: PlacementPolicy, strict: bool) -> None:
    base = replace(base, strict=strict)
    policy = base.with_min_regions(3)
    regions = max(3, base.regions) if strict else 3
    assert policy == PlacementPolicy(PolicyKind.REGION, regions, strict=True, min_regions=3)
    assert policy_of(replace(ledger(), custom=policy_metadata(policy))) == policy
    assert base.with_min_regions(1) is base


@pytest.mark.parametrize("text", ["2 min_regions 3 strict", "2 min_regions 2", "2 min_regions 0 strict"])
def test_min_regions_that_contradict_the_policy_ask_nothing(text: str) -> None:
    assert policy_of(replace(ledger(), custom=(("dlog.placement", f"region {text}".encode()),))) == RANDOM


def test_a_ledger_without_a_policy_has_none() -> None:
    assert policy_metadata(RANDOM) == ()
    assert policy_of(ledger()) == RANDOM


def test_the_default_looks_at_racks_once_there_are_several() -> None:
    one, other = NetworkLocation("x", "r1"), NetworkLocation("x", "r2")
    assert PlacementOptions().policy([one, one]) == PlacementOptions().policy([]) == RANDOM
    assert PlacementOptions().policy([one, other]) == RACK
    asked = PlacementOptions(placement="region", placement_regions=3, placement_strict=True)
    assert asked.policy([one]) == PlacementPolicy(PolicyKind.REGION, 3, strict=True)
    assert PlacementOptions(placement="random").policy([one, other]) == RANDOM


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="one of auto, random, rack, region"):
        PlacementOptions(placement="zone")
    with pytest.raises(ValueError, match="needs placement rack or region"):
        PlacementOptions(placement_strict=True)
    with pytest.raises(ValueError, match="placement_regions"):
        PlacementOptions(placement_regions=0)
    with pytest.raises(ValueError, match="a rack is named with"):
        PlacementOptions(rack="a b")


def test_a_process_stands_where_its_options_say_and_bookies_of_its_rack_are_nearest() -> None:
    assert PlacementOptions().location is None
    here = PlacementOptions(region="eu", rack="r1").location
    assert here == NetworkLocation("eu", "r1")
    places = [NetworkLocation("eu", "r1"), NetworkLocation("eu", "r2"), NetworkLocation("us", "r1"), None]
    assert [here.distance(place) for place in places] == [0, 1, 2, 2]
    assert PlacementOptions(region="eu").location == NetworkLocation("eu")
