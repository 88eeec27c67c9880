"""Histories of a ledger whose lost copies are made again, and proof that the checks would notice.

DLOG_SIM_SEEDS: how many seeds of each style (default 40; a nightly run sets thousands).
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.judging import check_histories, check_is_caught, check_one_history
from tests.simulation.mutants.repair import MUTANTS
from tests.simulation.repair_world import room
from tests.simulation.worlds import Mutant

SEEDS = int(os.environ.get("DLOG_SIM_SEEDS", "40"))
ROOM = room()


def test_every_history_keeps_the_invariants_and_every_mark_is_reached() -> None:
    check_histories(ROOM, SEEDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    check_is_caught(ROOM, mutant)


def test_every_invariant_of_a_repair_has_a_mutant() -> None:
    assert {"L13", "L15", "L16", "L17", "L18", "L31", "L34"} <= {mutant.invariants[0] for mutant in MUTANTS}


def test_one_seed_has_one_history_in_every_process() -> None:
    check_one_history(ROOM.name, 2)
