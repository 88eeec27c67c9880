"""Hundreds of histories of a stream, and proof that the checks would notice.

DLOG_SIM_SEEDS: how many seeds of each style (default 200; a nightly run sets thousands).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.mutants.stream import MUTANTS
from tests.simulation.stream_world import MUST_REACH, STYLES, draw_plan, run_plan
from tests.simulation.worlds import Mutant

SEEDS = int(os.environ.get("DLOG_SIM_SEEDS", "200"))


def test_every_history_keeps_the_invariants_and_every_mark_is_reached() -> None:
    reached: Counter[str] = Counter()
    broken: list[str] = []
    for style in STYLES:
        for seed in range(SEEDS):
            outcome = run_plan(draw_plan(seed, style))
            reached += outcome.reached
            if outcome.violation:
                broken.append(f"python -m tests.simulation stream --style {style} --seed {seed}: {outcome.text}")
    assert not broken, "\n".join(broken)
    assert not [mark for mark in MUST_REACH if not reached[mark]], "a mark was never reached, the batch proves nothing"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    for seed in range(mutant.seeds):
        outcome = run_plan(draw_plan(seed, mutant.style or "swarm"), mutant.parts)
        if outcome.violation in mutant.invariants:
            return
    pytest.fail(f"{mutant.seeds} seeds did not catch it, {mutant.invariants} should have")


def test_every_invariant_of_a_stream_has_a_mutant() -> None:
    caught = {name for mutant in MUTANTS for name in mutant.invariants[:1]}
    assert {f"S{n}" for n in range(1, 16)} | {f"T{n}" for n in range(1, 8)} <= caught


def hashes() -> list[int]:
    return [run_plan(draw_plan(seed, style)).trace_hash for style in STYLES for seed in range(5)]


def test_one_seed_has_one_history() -> None:
    assert hashes() == hashes()


def test_a_history_does_not_depend_on_the_hash_seed() -> None:
    program = "from tests.simulation.test_stream import hashes; print(hashes())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "4711")
    }
    assert len(seen) == 1
