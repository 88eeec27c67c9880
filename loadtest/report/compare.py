"""Comparisons of dlog with every other system, and missed goals, each with the explanatory notes for it.

Invariants:
- one rule makes the lists of better and worse figures; a difference of at most 5 % is even;
- every missed goal is listed, also one without a note.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.report import columns, goals
from loadtest.report.figures import OURS, Figures

EVEN = 0.05
SAME = "the same "  # begins a goal that is about what the last one without a peer was about
_FIELDS = frozenset({"text", "workload", "system", "figure", "goal"})  # keys of a note


@dataclass(frozen=True, slots=True)
class Note:
    """An explanation by a person. An empty field matches everything. goal: the missed goal that the note explains; only
    `system`, the goal's peer, may be set with it."""

    text: str
    workload: str = ""
    system: str = ""
    figure: str = ""
    goal: str = ""

    @property
    def is_general(self) -> bool:
        """Applies to everything; printed once, not with each comparison."""
        return not (self.workload or self.system or self.figure or self.goal)

    def fits(self, workload: str, system: str, figure: str) -> bool:
        return not self.goal and all(
            not mine or mine == theirs
            for mine, theirs in ((self.workload, workload), (self.system, system), (self.figure, figure))
        )

    def fits_goal(self, goal: goals.Goal) -> bool:
        return self.goal == goal.id and self.system == goal.peer


@dataclass(frozen=True, slots=True)
class Duel:
    """One figure of dlog and of a peer. better: how many times better dlog is; below 1 it is worse."""

    workload: str
    label: str
    system: str
    column: columns.Column
    ours: float
    theirs: float
    better: float
    notes: tuple[str, ...] = ()

    @property
    def is_win(self) -> bool:
        return self.better > 1 + EVEN

    @property
    def is_loss(self) -> bool:
        return self.better < 1 / (1 + EVEN)


def duels(figures: Figures, notes: Sequence[Note] = ()) -> list[Duel]:
    """All comparisons, the largest advantage first."""
    found = []
    for workload in figures.workloads:
        for label in figures.labels(workload):
            mine = figures.get(workload, label, OURS)
            for peer in figures.peers:
                theirs = figures.get(workload, label, peer)
                if mine is None or theirs is None:
                    continue
                for column in columns.of(workload):
                    ours, other = mine.value(column.figure), theirs.value(column.figure)
                    if not column.decides or ours is None or other is None or ours < 0 or other < 0:
                        continue
                    if not (ours or other):
                        continue
                    up, down = (ours, other) if column.more_is_better else (other, ours)
                    better = up / down if down else float("inf")
                    fitting = tuple(n.text for n in notes if not n.is_general and n.fits(workload, peer, column.figure))
                    found.append(Duel(workload, label, peer, column, ours, other, better, fitting))
    return sorted(found, key=lambda duel: -duel.better)


def missed(figures: Figures, notes: Sequence[Note] = ()) -> list[str]:
    """Every goal that was measured and missed, as text."""
    found = []
    own = ""  # the last goal without a peer: SAME refers to it
    for one in goals.judged(figures):
        goal = one.goal
        own = own if goal.peer else goal.says
        if one.met is not False or one.ours is None:
            continue
        measured = f"{columns.number(one.ours)} {goal.unit}".strip()
        if one.ratio is not None and one.theirs is not None:
            measured = f"{measured} against {columns.number(one.theirs)}, {columns.number(one.ratio)}x"
        why = [note.text for note in notes if note.fits_goal(goal)]
        says = f"{own} {goal.says.removeprefix(SAME)}" if goal.says.startswith(SAME) else goal.says
        found.append(". ".join([f"{goal.id}, {says}: {measured}; goal {one.bound(goal.base)}", *why]))
    return found


def read_notes(path: Path) -> list[Note]:
    """Read a TOML file of [[note]] tables with text, and optionally workload, system, figure or goal. Raises
    ValueError."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"the notes cannot be read: file={path} {error}") from error
    notes = content.pop("note", [])
    if content or not isinstance(notes, list):
        raise ValueError(f"notes consist of [[note]] tables and nothing else: file={path}")
    found = []
    for note in notes:
        is_note = isinstance(note, dict) and set(note) <= _FIELDS and bool(note.get("text"))
        if not is_note or not all(isinstance(value, str) for value in note.values()):
            raise ValueError(
                "a note needs text and may have workload, system, figure, goal, all strings: "
                f"file={path} note={note!r:.60}"
            )
        if note.get("goal") and (note.get("workload") or note.get("figure")):
            raise ValueError(f"a note on a goal may name only its system besides: file={path} note={note!r:.60}")
        if note.get("goal") and note["goal"] not in goals.ids():
            raise ValueError(f"no such goal: file={path} goal={note['goal']!r:.20}")
        found.append(Note(**note))
    return found
