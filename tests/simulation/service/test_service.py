"""Runs the whole service under simulation: seeds of every style, planted defects, one trace on every Python.

DLOG_SIM_SEEDS: as for the other simulations; a trial costs a hundred times as much here, so a fiftieth of the number is
run of each style. `python -m tests.simulation service --seeds N` hunts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.parts import MISSING
from tests.simulation.judging import check_is_caught
from tests.simulation.service import drawing, pythons
from tests.simulation.service.room import room
from tests.simulation.worlds import Mutant, Outcome

SEEDS = max(4, int(os.environ.get("DLOG_SIM_SEEDS", "250")) // 50)
ROOM = room()
TRACED = 3  # the seed of each style whose traces are compared
HASH_SEED = "77"  # of the processes that repeat the traces
MARKS = ("ack", "delivered", "stream.owned", "segment.completed")  # so few seeds are not required to reach more marks


@pytest.mark.parametrize("style", drawing.STYLES)
def test_the_service_keeps_its_promises(style: str) -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcome = _traced(style) if seed == TRACED else ROOM.run(ROOM.draw(seed, style))
        assert not outcome.violation, f"--style {style} --seed {seed}: {outcome.text}"
        reached += outcome.reached
    assert all(reached[mark] for mark in MARKS), reached
    assert style == "quiet" or any(mark.startswith("fault.") for mark in reached), reached


@pytest.mark.parametrize("mutant", ROOM.mutants, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    check_is_caught(ROOM, mutant)


TRACES = f"""
from tests.simulation.service import drawing, world
for style in drawing.STYLES:
    outcome = world.run(drawing.draw({TRACED}, style))
    print(style, outcome.trace_hash, outcome.events, outcome.violation, sorted(outcome.reached.items()))
"""


@cache
def _traced(style: str) -> Outcome:
    """The outcome of the seed whose traces are compared. A run of all tests needs it twice."""
    return ROOM.run(ROOM.draw(TRACED, style))


@pytest.fixture(scope="module")
def here() -> str:
    """The traces in this process, whose hashes are seeded at random unless PYTHONHASHSEED is set."""
    told = [(style, _traced(style)) for style in drawing.STYLES]
    return "".join(f"{s} {o.trace_hash} {o.events} {o.violation} {sorted(o.reached.items())}\n" for s, o in told)


def test_a_seed_has_one_trace_whatever_hashes_are(here: str) -> None:
    assert _traces(sys.executable) == here
    assert len(here.splitlines()) == len(drawing.STYLES)


@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_a_seed_has_one_trace_on_every_python(version: str, here: str) -> None:
    interpreter = pythons.environments().get(version)
    if interpreter is None:  # a clean machine may have just one Python
        how = "make pythons" if version in pythons.interpreters() else f"install Python {version}, then make pythons"
        MISSING[f"Python {version} for the comparison of traces"] = how
        pytest.skip(f"no environment of Python {version}: {how}")
    assert _traces(interpreter) == here


@cache
def _traces(interpreter: str) -> str:
    """The traces in another process. For the Python of this process, two tests use the same run."""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED, "PYTHONPATH": root}
    ran = subprocess.run([interpreter, "-c", TRACES], capture_output=True, text=True, cwd=root, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout
