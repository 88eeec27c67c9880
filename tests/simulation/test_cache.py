"""Hundreds of histories of a read proxy's cache, and proof that the checks would notice.

DLOG_SIM_SEEDS: as for the other simulations; a third of it is run here, because a trial costs more.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.cache_world import room
from tests.simulation.judging import check_histories, check_is_caught, check_one_history
from tests.simulation.mutants.cache import MUTANTS
from tests.simulation.worlds import Mutant

SEEDS = max(40, int(os.environ.get("DLOG_SIM_SEEDS", "150")) // 3)
ROOM = room()


def test_every_history_keeps_the_invariants_and_every_mark_is_reached() -> None:
    check_histories(ROOM, SEEDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    check_is_caught(ROOM, mutant)


def test_one_seed_has_one_history_in_every_process() -> None:
    check_one_history(ROOM.name, 4)
