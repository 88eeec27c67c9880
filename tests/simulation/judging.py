"""Checks shared by the tests of all simulations: histories, planted defects, and that a seed means one history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from tests.simulation import rooms
from tests.simulation.mutant_table import hunt
from tests.simulation.record import seed_of_catch
from tests.simulation.worlds import Mutant, Room


def check_histories(room: Room, seeds: int, seeds_of: Mapping[str, int] = MappingProxyType({})) -> None:
    """Run this many seeds of each style: none breaks an invariant, and together they reach every mark that they must.

    seeds_of: another number for some styles, whose marks are rare. A mark that is not reached means that the run proves
    nothing about it.
    """
    reached: Counter[str] = Counter()
    broken: list[str] = []
    for style in room.styles:
        for seed in range(seeds_of.get(style, seeds)):
            outcome = room.run(room.draw(seed, style))
            reached += outcome.reached
            if outcome.violation:
                broken.append(f"python -m tests.simulation {room.name} --style {style} --seed {seed}: {outcome.text}")
    assert not broken, "\n".join(broken)
    missed = [mark for mark in room.must_reach if not reached[mark]]
    assert not missed, f"never reached: {missed}"


def check_is_caught(room: Room, mutant: Mutant) -> None:
    """Check that the planted defect breaks an invariant that it names, within the seeds that it names.

    The seed of the record is tried first, because the seeds before it caught nothing when it was recorded. If that seed
    does not catch it either, all seeds are tried from 0 on.
    """
    seed = seed_of_catch(room, mutant)
    if seed is not None:
        outcome = room.run(room.draw(seed, mutant.style or room.styles[0]), mutant.parts)
        if outcome.violation in mutant.invariants:
            return
    assert hunt(room, mutant).is_caught, f"{mutant.seeds} seeds did not catch it, {mutant.invariants} should have"


def check_one_history(name: str, seeds: int, styles: tuple[str, ...] = ()) -> None:
    """Check that a seed of the simulation `name` means one history, in this process and in others with any
    PYTHONHASHSEED. styles: only these."""
    expected = trace_hashes(name, seeds, styles)
    assert trace_hashes(name, seeds, styles) == expected
    program = f"from tests.simulation.judging import trace_hashes; print(trace_hashes({name!r}, {seeds}, {styles}))"
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(expected)


def trace_hashes(name: str, seeds: int, styles: tuple[str, ...] = ()) -> list[int]:
    """The trace hashes of the first seeds of each style of a simulation."""
    room = rooms.load(name)
    return [room.run(room.draw(seed, style)).trace_hash for style in styles or room.styles for seed in range(seeds)]
