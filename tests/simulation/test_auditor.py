"""Histories of the auditor, workers, and a decommission, and proof that the checks would notice.

DLOG_SIM_SEEDS: how many seeds of each style times ten (default 20; a nightly run sets thousands).
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.auditor_world import room
from tests.simulation.judging import check_histories, check_is_caught, check_one_history
from tests.simulation.mutants.auditor import MUTANTS
from tests.simulation.worlds import Mutant

SEEDS = max(1, int(os.environ.get("DLOG_SIM_SEEDS", "20")) // 10)
ROOM = room()


def test_every_history_keeps_the_invariants_and_every_mark_is_reached() -> None:
    check_histories(ROOM, SEEDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    check_is_caught(ROOM, mutant)


def test_every_invariant_of_the_room_has_a_mutant() -> None:
    assert {mutant.invariants[0] for mutant in MUTANTS} == {f"L{number}" for number in range(19, 29)}


def test_one_seed_has_one_history_in_every_process() -> None:
    check_one_history(ROOM.name, 1, ("lost", "decommission"))
