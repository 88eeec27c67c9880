"""The table of planted defects: each with the invariant that catches it, the first seed that does, and its cost.

Invariants:
- A mutant is hunted from seed 0 on in the style it names.
- It counts as caught only if the broken invariant is one that it names.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.simulation.worlds import Mutant, Room

CPU_S_MAX = 60.0  # to the first catch, of the slowest


@dataclass(frozen=True, slots=True)
class Row:
    """One mutant. invariant "": it was not caught. hits: by invariant, over `seeds` seeds."""

    room: str
    name: str
    invariant: str
    style: str
    seed: int
    cpu_s: float
    hits: dict[str, int]
    seeds: int

    @property
    def is_caught(self) -> bool:
        return bool(self.invariant)

    def as_json(self) -> dict[str, Any]:
        """The form that is stored in the record."""
        kept = asdict(self)
        del kept["hits"], kept["seeds"]
        return {**kept, "cpu_s": round(self.cpu_s, 2)}

    def __str__(self) -> str:
        if not self.is_caught:
            return f"{self.room:7} NEVER CAUGHT in {self.seeds} seeds: {self.name} [{self.style}]"
        text = (
            f"{self.room:7} {self.invariant:10} {self.style:7} seed {self.seed:5} {self.cpu_s:6.2f} CPU s  {self.name}"
        )
        if sum(self.hits.values()) > 1:
            text += f"  ({', '.join(f'{k} {n}' for k, n in self.hits.items())} of {self.seeds})"
        return text


def hunt(room: Room, mutant: Mutant, *, count_hits: bool = False) -> Row:
    """Run a mutant seed by seed until it is caught; count_hits: over all its seeds."""
    begun = time.process_time()
    style = mutant.style or room.styles[0]
    hits: Counter[str] = Counter()
    first, first_invariant, cpu_s, run = -1, "", 0.0, 0
    for seed in range(mutant.seeds):
        outcome = room.run(room.draw(seed, style), mutant.parts)
        run += 1
        if outcome.violation in mutant.invariants:
            hits[outcome.violation] += 1
            if first < 0:
                first, first_invariant, cpu_s = seed, outcome.violation, time.process_time() - begun
            if not count_hits:
                break
    if first < 0:
        cpu_s = time.process_time() - begun
    return Row(room.name, mutant.name, first_invariant, style, first, cpu_s, dict(hits), run)


def table(rooms: list[Room], *, count_hits: bool = False) -> Iterator[Row]:
    """The rows of all mutants of some simulations."""
    for room in rooms:
        for mutant in room.mutants:
            yield hunt(room, mutant, count_hits=count_hits)
