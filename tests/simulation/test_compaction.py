"""Histories of uploads, compactions, deletions and lagging readers, and proof that the checks would notice."""

from __future__ import annotations

import os

import pytest

from tests.simulation.compaction_world import room
from tests.simulation.judging import check_histories, check_is_caught, check_one_history
from tests.simulation.mutants.compaction import MUTANTS
from tests.simulation.worlds import Mutant

SEEDS = int(os.environ.get("DLOG_SIM_SEEDS", "60"))
ROOM = room()


def test_every_history_keeps_the_entries_and_every_mark_is_reached() -> None:
    check_histories(ROOM, SEEDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    check_is_caught(ROOM, mutant)


def test_one_seed_has_one_history_in_every_process() -> None:
    check_one_history(ROOM.name, 10)
