"""Tests quorums against their definition, by enumeration."""

from __future__ import annotations

from itertools import combinations

import pytest

from dlog.errors import InvalidRequestError
from dlog.model.quorum import Quorum

SHAPES = [Quorum(ensemble=e, write=w, ack=a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize("quorum", SHAPES, ids=lambda q: f"{q.ensemble}-{q.write}-{q.ack}")
def test_covered_means_that_no_entry_can_have_been_confirmed_unheard(quorum: Quorum) -> None:
    """An entry is confirmed when some Qa of its write set stored it; it is missed if none of those Qa answered."""
    confirmers = {
        frozenset(acked)
        for entry in range(quorum.ensemble)
        for acked in combinations(quorum.write_set(entry), quorum.ack)
    }
    for size in range(quorum.ensemble + 1):
        for answered in combinations(range(quorum.ensemble), size):
            heard = all(acked & set(answered) for acked in confirmers)
            assert quorum.covered(answered) == heard, answered


@pytest.mark.parametrize("quorum", SHAPES, ids=lambda q: f"{q.ensemble}-{q.write}-{q.ack}")
def test_enough_negatives_meet_every_ack_quorum_and_one_less_does_not(quorum: Quorum) -> None:
    members = quorum.write_set(0)
    for count, certain in ((quorum.negatives_needed, True), (quorum.negatives_needed - 1, False)):
        for negatives in combinations(members, count):
            met = all(set(acked) & set(negatives) for acked in combinations(members, quorum.ack))
            assert met == certain


def test_write_sets_walk_round_the_ensemble() -> None:
    quorum = Quorum(ensemble=5, write=3, ack=2)
    assert [quorum.write_set(e) for e in (0, 3, 4, 5)] == [(0, 1, 2), (3, 4, 0), (4, 0, 1), (0, 1, 2)]
    for member in range(5):
        assert sum(member in quorum.write_set(e) for e in range(5)) == 3


@pytest.mark.parametrize("sizes", [(0, 0, 0), (3, 4, 2), (3, 2, 3), (3, 3, 0), (-1, -1, -1), (3, 0, 0)])
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequestError, match="quorum"):
        Quorum(ensemble=sizes[0], write=sizes[1], ack=sizes[2])
