"""Thousands of histories of a ledger, and proof that the checks would notice.

DLOG_SIM_SEEDS: how many seeds of each style (default 125; a nightly run sets thousands).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.judging import check_histories, check_is_caught, check_one_history
from tests.simulation.ledger_world import room, run_plan
from tests.simulation.mutants.ledger import MUTANTS, WHO_DENIED
from tests.simulation.plan import Plan
from tests.simulation.worlds import Mutant

SEEDS = int(os.environ.get("DLOG_SIM_SEEDS", "125"))
ROOM = room()


def test_every_history_keeps_the_invariants_and_every_mark_is_reached() -> None:
    check_histories(ROOM, SEEDS)


def test_a_planted_defect_is_caught_by_the_plan_that_found_it() -> None:
    name = "a-denial-by-who-was-replaced-before-the-entry-came"
    plan = Plan.from_json((Path(__file__).parent / "plans" / "ledger" / f"{name}.json").read_text())
    assert run_plan(plan, WHO_DENIED.parts).violation in WHO_DENIED.invariants


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    check_is_caught(ROOM, mutant)


def test_every_invariant_of_a_ledger_has_a_mutant() -> None:
    caught = {name for mutant in MUTANTS for name in mutant.invariants[:1]}
    assert {f"L{n}" for n in range(1, 13)} | {"P1", "P2", "L29", "L30", "L33", "liveness"} <= caught


def test_one_seed_has_one_history_in_every_process() -> None:
    check_one_history(ROOM.name, 8)
