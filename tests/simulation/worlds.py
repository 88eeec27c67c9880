"""The rooms that can be simulated: each registers how a seed becomes a plan and how a plan is run.

A new room adds itself in rooms.py; `python -m tests.simulation ROOM` then hunts in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one plan. `violation`: the invariant broken, "" if none; `text`: how."""

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
    """A planted defect: which invariant must catch it, in which style of plan it is likely to show.

    parts: what replaces the true machines; its meaning is the room's own.
    """

    name: str
    invariants: tuple[str, ...]
    parts: Mapping[str, Any]
    style: str = ""
    seeds: int = 400  # within which it must be caught


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One room: plans by seed and style, a way to run them, what a batch must have reached, and the mutants.

    must_reach: marks without which a batch of all styles proves nothing; the first of them is what any batch must show.
    progress: what a hunt counts for everybody ("acks", "take-overs"), each by the marks whose counts it sums.
    rare: states that a long hunt should have been in; told when it was not, and no failure.
    """

    name: str
    styles: tuple[str, ...]
    draw: Callable[[int, str], Plan]
    run: Callable[..., Outcome]  # run(plan, parts={}, trace=False)
    must_reach: tuple[str, ...]
    mutants: tuple[Mutant, ...] = ()
    progress: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rare: tuple[str, ...] = ()
