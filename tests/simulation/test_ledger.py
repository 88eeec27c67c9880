"""Thousands of histories of a ledger, and proof that the checks would notice.

DLOG_SIM_SEEDS: how many seeds of each style (default 250; a nightly run sets thousands).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.ledger_drawing import draw_plan
from tests.simulation.ledger_world import MUST_REACH, room, run_plan
from tests.simulation.mutants.ledger import MUTANTS, WHO_DENIED
from tests.simulation.plan import Plan
from tests.simulation.worlds import Mutant

SEEDS = int(os.environ.get("DLOG_SIM_SEEDS", "250"))
STYLES = room().styles


def test_every_history_keeps_the_invariants_and_every_mark_is_reached() -> None:
    reached: Counter[str] = Counter()
    broken: list[str] = []
    for style in STYLES:
        for seed in range(SEEDS):
            outcome = run_plan(draw_plan(seed, style))
            reached += outcome.reached
            if outcome.violation:
                broken.append(f"python -m tests.simulation ledger --style {style} --seed {seed}: {outcome.text}")
    assert not broken, "\n".join(broken)
    assert not [mark for mark in MUST_REACH if not reached[mark]], "a mark was never reached, the batch proves nothing"


def test_a_planted_defect_is_caught_by_the_plan_that_found_it() -> None:
    name = "a-denial-by-who-was-replaced-before-the-entry-came"
    plan = Plan.from_json((Path(__file__).parent / "plans" / "ledger" / f"{name}.json").read_text())
    assert run_plan(plan, WHO_DENIED.parts).violation in WHO_DENIED.invariants


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    for seed in range(mutant.seeds):
        outcome = run_plan(draw_plan(seed, mutant.style or "swarm"), mutant.parts)
        if outcome.violation in mutant.invariants:
            return
    pytest.fail(f"{mutant.seeds} seeds did not catch it, {mutant.invariants} should have")


def test_every_invariant_of_a_ledger_has_a_mutant() -> None:
    caught = {name for mutant in MUTANTS for name in mutant.invariants[:1]}
    assert {f"L{n}" for n in range(1, 13)} | {"liveness"} <= caught


def hashes() -> list[int]:
    return [run_plan(draw_plan(seed, style)).trace_hash for style in STYLES for seed in range(8)]


def test_one_seed_has_one_history() -> None:
    assert hashes() == hashes()


def test_a_history_does_not_depend_on_the_hash_seed() -> None:
    program = "from tests.simulation.test_ledger import hashes; print(hashes())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4711")
    }
    assert len(seen) == 1
