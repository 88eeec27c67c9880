"""What a simulation is: a `Room` registers how a seed becomes a plan and how a plan is run.

A new one adds itself in rooms.py; `python -m tests.simulation ROOM` then hunts in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one plan. `violation`: the invariant broken, "" if none; `text`: how."""

    plan: Plan
    violation: str = ""
    text: str = ""
    reached: Counter[str] = field(default_factory=Counter)
    trace_hash: int = 0
    events: int = 0
    virtual_s: float = 0.0
    lines: list[str] | None = None
    story: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A planted defect: which invariant must catch it, and in which style of plan it is likely to show.

    parts: what replaces the production machines; each simulation defines its meaning.
    """

    name: str
    invariants: tuple[str, ...]
    parts: Mapping[str, Any]
    style: str = ""
    seeds: int = 400  # within which it must be caught


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One simulation: plans by seed and style, a way to run them, marks that a batch must reach, and the mutants.

    must_reach: marks without which a batch of all styles proves nothing; the first of them is required of any batch.
    progress: what a hunt reports ("acks", "take-overs"), each with the marks whose counts it sums. rare: states that a
    long hunt should reach; reported when it did not, and not a failure.
    """

    name: str
    styles: tuple[str, ...]
    draw: Callable[[int, str], Plan]
    run: Callable[..., Outcome]  # run(plan, parts={}, trace=False)
    must_reach: tuple[str, ...]
    mutants: tuple[Mutant, ...] = ()
    progress: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rare: tuple[str, ...] = ()
