"""Hunting: runs seed after seed in every style of every simulation, on several cores, until one breaks an invariant.

Invariants:
- A hunt reports only what it counted.
- A batch fails if a mark that it must reach has a count of zero.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice, takewhile
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.plan import Plan, shrink
from tests.simulation.rooms import load
from tests.simulation.worlds import Room

CHUNK_SEEDS = 25
FAULT = "fault."


@dataclass(frozen=True, slots=True)
class Chunk:
    """Seeds `first` .. `first + seeds - 1` of one style of a simulation."""

    room: str
    style: str
    first: int
    seeds: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A seed that broke an invariant."""

    room: str
    style: str
    seed: int
    invariant: str
    text: str


@dataclass(slots=True)
class Tally:
    """The sum of some chunks of one simulation."""

    seeds: Counter[str] = field(default_factory=Counter)  # by style
    reached: Counter[str] = field(default_factory=Counter)
    events: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    broken: list[Broken] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.seeds.update(other.seeds)
        self.reached.update(other.reached)
        self.events += other.events
        self.virtual_s += other.virtual_s
        self.cpu_s += other.cpu_s
        self.broken += other.broken

    @property
    def faults(self) -> dict[str, int]:
        """How often each kind of fault struck."""
        return {mark.removeprefix(FAULT): n for mark, n in sorted(self.reached.items()) if mark.startswith(FAULT)}

    def progress(self, room: Room) -> dict[str, int]:
        """The simulation's counts for its users."""
        return {name: sum(self.reached[mark] for mark in marks) for name, marks in room.progress.items()}

    def missed(self, room: Room) -> list[str]:
        """Marks that had to be reached and were not; a hunt in only some styles must reach only the first of them."""
        due = room.must_reach if set(self.seeds) >= set(room.styles) else room.must_reach[:1]
        return [mark for mark in due if not self.reached[mark]]


def run_chunk(chunk: Chunk) -> Tally:
    """Run all seeds of a chunk in a worker."""
    room = load(chunk.room)
    tally = Tally()
    gc.collect()
    gc.freeze()  # a trial collects cycles several times; without this each collection visits every module too
    begun = time.process_time()
    for seed in range(chunk.first, chunk.first + chunk.seeds):
        outcome = room.run(room.draw(seed, chunk.style))
        tally.seeds[chunk.style] += 1
        tally.reached.update(outcome.reached)
        tally.events += outcome.events
        tally.virtual_s += outcome.virtual_s
        if outcome.violation:
            tally.broken.append(Broken(chunk.room, chunk.style, seed, outcome.violation, outcome.text))
    gc.collect()
    tally.cpu_s = time.process_time() - begun
    return tally


def chunks(styles: Sequence[tuple[str, str]], first: int, seeds: int | None) -> Iterator[Chunk]:
    """Chunks of all (simulation, style) pairs in turn, so that a hunt cut short has covered all; seeds None: for
    ever."""
    done = 0
    while seeds is None or done < seeds:
        size = CHUNK_SEEDS if seeds is None else min(CHUNK_SEEDS, seeds - done)
        for room, style in styles:
            yield Chunk(room, style, first + done, size)
        done += size


def run_all(work: Iterable[Chunk], *, jobs: int, until: float | None) -> Iterator[tuple[Chunk, Tally]]:
    """Each chunk with its tally as it is done; none is begun after `until` (of time.monotonic)."""
    due = takewhile(lambda _: until is None or time.monotonic() < until, work)
    if jobs == 1:
        for chunk in due:
            yield chunk, run_chunk(chunk)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: dict[Future[Tally], Chunk] = {pool.submit(run_chunk, c): c for c in islice(due, jobs * 2)}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
                running.update((pool.submit(run_chunk, c), c) for c in islice(due, 1))


def shrunk(room: Room, plan: Plan, invariant: str) -> Plan:
    """The fewest faults with which the plan still breaks that invariant."""
    return shrink(plan, lambda candidate: room.run(candidate).violation == invariant)


def store(directory: Path, broken: Broken, plan: Plan) -> Path:
    """Write a plan where the regression test finds it; returns the file."""
    folder = directory / broken.room
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{broken.invariant.lower()}-{broken.style}-{broken.seed}.json"
    path.write_text(plan.to_json() + "\n")
    return path


def report(room: Room, tally: Tally) -> str:
    """The report of a finished hunt about one simulation."""
    lines = []
    total = tally.seeds.total()
    styles = ", ".join(f"{style} {seeds}" for style, seeds in tally.seeds.items())
    lines.append(
        f"{room.name}: {total} seeds ({styles}), {tally.events} events, {tally.virtual_s:.0f} simulated s, "
        f"{tally.cpu_s:.1f} CPU s, {60 * total / max(tally.cpu_s, 1e-9):.0f} seeds a CPU minute"
    )
    lines.append("  " + ", ".join(f"{name} {count}" for name, count in tally.progress(room).items()))
    lines.append("  faults: " + ", ".join(f"{kind} {count}" for kind, count in tally.faults.items()))
    marks = [f"{m} {n}" for m, n in sorted(tally.reached.items()) if not m.startswith(FAULT)]
    lines.append("  reached: " + ", ".join(marks))
    rare = [mark for mark in room.rare if not tally.reached[mark]]
    if rare:
        lines.append(f"  rare states that were not met: {', '.join(rare)}")
    missed = tally.missed(room)
    if missed:
        lines.append(f"  NEVER REACHED, so this proves nothing about it: {', '.join(missed)}")
    return "\n".join(lines)
