"""Tests the hash ring: every member computes the same order, and a change of members moves few streams."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dlog.model.ids import ProxyId
from dlog.ownership.ring import Ring

KEYS = [f"stream-{i}" for i in range(500)]
members = st.lists(st.sampled_from([ProxyId(f"p{i}") for i in range(8)]), min_size=1, unique=True)


@given(members)
def test_the_order_of_members_does_not_matter(names: list[ProxyId]) -> None:
    one, two = Ring(names), Ring(reversed(names))
    assert one == two
    assert all(list(one.successors(key)) == list(two.successors(key)) for key in KEYS[:20])
    assert all(sorted(one.successors(key)) == sorted(names) for key in KEYS[:20])


@given(members.filter(lambda names: len(names) > 1))
def test_a_member_that_leaves_moves_only_its_own_and_to_its_successor(names: list[ProxyId]) -> None:
    whole, less = Ring(names), Ring(names[1:])
    for key in KEYS[:100]:
        order = list(whole.successors(key))
        assert less.owner(key) == (order[1] if order[0] == names[0] else order[0])


def test_streams_are_spread() -> None:
    ring = Ring([ProxyId(f"p{i}") for i in range(4)])
    counts = Counter(ring.owner(key) for key in KEYS)
    assert min(counts.values()) > len(KEYS) / 4 / 3


def test_the_place_of_a_stream_is_the_same_in_every_version() -> None:
    ring = Ring([ProxyId("a"), ProxyId("b"), ProxyId("c")])
    assert [ring.owner(key) for key in KEYS[:6]] == ["a", "a", "c", "c", "c", "b"]


def test_without_members_there_is_no_owner() -> None:
    assert Ring([]).owner("s") is None
