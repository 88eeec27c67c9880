"""Hundreds of histories of a stream, and proof that the checks would notice.

DLOG_SIM_SEEDS: how many seeds of each style (default 100; a nightly run sets thousands). The style `sink` gets twice as
many, because it alone reaches some marks, with one seed in fifty.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.judging import check_histories, check_is_caught, check_one_history
from tests.simulation.mutants.stream import MUTANTS
from tests.simulation.stream_world import room
from tests.simulation.worlds import Mutant

SEEDS = int(os.environ.get("DLOG_SIM_SEEDS", "100"))
ROOM = room()


def test_every_history_keeps_the_invariants_and_every_mark_is_reached() -> None:
    check_histories(ROOM, SEEDS, {"sink": 2 * SEEDS})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    check_is_caught(ROOM, mutant)


def test_every_invariant_of_a_stream_has_a_mutant() -> None:
    caught = {name for mutant in MUTANTS for name in mutant.invariants[:1]}
    assert {f"S{n}" for n in range(1, 16)} | {f"T{n}" for n in range(1, 8)} <= caught


def test_one_seed_has_one_history_in_every_process() -> None:
    check_one_history(ROOM.name, 5)
