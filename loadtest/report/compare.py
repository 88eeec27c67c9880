"""Where we win, where we lose: every figure that decides, against every peer, and every goal that is missed, with what
was noted about it.

The law of this file: both lists come out of one rule; five hundredths either way is even, and is told as even. A goal
that is missed is told whether somebody noted why or not.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.report import columns, goals
from loadtest.report.figures import OURS, Figures

EVEN = 0.05
_FIELDS = frozenset({"text", "workload", "system", "figure", "goal"})  # of a note


@dataclass(frozen=True, slots=True)
class Note:
    """Why something is as it is, by a person. An empty field fits all. goal: of a goal that is missed; `system` is the
    peer then, and nothing else is said."""

    text: str
    workload: str = ""
    system: str = ""
    figure: str = ""
    goal: str = ""

    @property
    def is_general(self) -> bool:
        """Of everything: told once, and not beside each comparison."""
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
    """One figure of ours beside a peer's. `better`: how many times better ours is; below 1 it is worse."""

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
    """The clearest first."""
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
    """Every goal that was measured and is not reached, in words."""
    found = []
    own = ""  # what "the same" is of
    for one in goals.judged(figures):
        goal = one.goal
        own = own if goal.peer else goal.says
        if one.met is not False or one.ours is None:
            continue
        said = f"{columns.number(one.ours)} {goal.unit}".strip()
        if one.ratio is not None and one.theirs is not None:
            said = f"{said} against {columns.number(one.theirs)}, {columns.number(one.ratio)}x"
        why = [note.text for note in notes if note.fits_goal(goal)]
        says = goal.says.replace("the same", own, 1)
        found.append(". ".join([f"{goal.id}, {says}: {said}; {one.bound(goal.base)} asked", *why]))
    return found


def read_notes(path: Path) -> list[Note]:
    """TOML: [[note]] tables with text, and workload, system, figure or goal where it is not about all. Raises
    ValueError."""
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"notes cannot be read: file={path} {error}") from error
    notes = told.pop("note", [])
    if told or not isinstance(notes, list):
        raise ValueError(f"notes are [[note]] tables and nothing else: file={path}")
    found = []
    for note in notes:
        is_note = isinstance(note, dict) and set(note) <= _FIELDS and bool(note.get("text"))
        if not is_note or not all(isinstance(value, str) for value in note.values()):
            raise ValueError(f"a note has text, workload, system, figure, goal: file={path} note={note!r:.60}")
        if note.get("goal") and (note.get("workload") or note.get("figure")):
            raise ValueError(f"a goal's note names its peer at most: file={path} note={note!r:.60}")
        if note.get("goal") and note["goal"] not in {goal.id for goal in goals.GOALS}:
            raise ValueError(f"no such goal: file={path} goal={note['goal']!r:.20}")
        found.append(Note(**note))
    return found
