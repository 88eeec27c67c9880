"""Hundreds of histories of a segment in files, step by step, and proof that the checks would notice."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.file_world import MUST_REACH, STYLES, draw_plan, run_plan
from tests.simulation.mutants.files import MUTANTS
from tests.simulation.worlds import Mutant

SEEDS = int(os.environ.get("DLOG_SIM_SEEDS", "240"))


def test_every_history_keeps_the_contract_and_every_mark_is_reached() -> None:
    reached: Counter[str] = Counter()
    broken: list[str] = []
    for style in STYLES:
        for seed in range(SEEDS):
            outcome = run_plan(draw_plan(seed, style))
            reached += outcome.reached
            if outcome.violation:
                broken.append(f"python -m tests.simulation files --style {style} --seed {seed}: {outcome.text}")
    assert not broken, "\n".join(broken)
    assert not [mark for mark in MUST_REACH if not reached[mark]], "a mark was never reached, the batch proves nothing"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    for seed in range(mutant.seeds):
        outcome = run_plan(draw_plan(seed, mutant.style or "swarm"), mutant.parts)
        if outcome.violation in mutant.invariants:
            return
    pytest.fail(f"{mutant.seeds} seeds did not catch it, {mutant.invariants} should have")


def test_one_seed_has_one_history() -> None:
    def hashes() -> list[int]:
        return [run_plan(draw_plan(seed, style)).trace_hash for style in STYLES for seed in range(20)]

    assert hashes() == hashes()
