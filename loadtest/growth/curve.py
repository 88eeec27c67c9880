"""Growth curves: cost of one operation at several sizes, the exponent of cost over size, and bounds.

Invariants:
- The exponent is the slope of log(cost) over log(size) by least squares, over all measured sizes.
- A bound on a figure is judged at the size that it names; if that size was not measured the bound is not judged.
- A curve with a breach found by the checker or a failed append has no figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.judge import Verdict

COST_RATIO = "cost_ratio"  # figure of a whole curve: cost at the bound's size over cost at the least size
_COST_MIN = 1e-6  # replaces costs below the resolution of the measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A figure that the table prints, at one size, and its upper bound.

    says: the figure with its unit. at_most: None: printed, not judged.
    """

    figure: str
    says: str
    size: int
    at_most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Parameters of one measurement.

    room: an empty directory. minutes: of a soak. is_quick: few repetitions and short waits, to see that it works.
    on_progress: called with progress messages.
    """

    size: int
    room: Path
    minutes: float = 0.0
    is_quick: bool = False
    on_progress: Callable[[str], None] = lambda _: None


@dataclass(slots=True, kw_only=True)
class Point:
    """One measurement. cost: in the unit of its curve. failed: appends and reads that failed, as text."""

    cost: float
    figures: dict[str, float] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    failed: list[str] = field(default_factory=list)
    size: int = 0

    @property
    def is_green(self) -> bool:
        return self.verdict.is_green and not self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One row of the table.

    grows: unit of sizes. cost: the measured cost, with its unit. exponent_max: None for a soak, which has one size.
    """

    name: str
    says: str
    grows: str
    cost: str
    sizes: tuple[int, ...]
    measure: Callable[[Request], Awaitable[Point]]
    exponent_max: float | None = None
    bounds: tuple[Bound, ...] = ()
    minutes: float = 0.0  # of a soak; --minutes replaces it

    @property
    def is_soak(self) -> bool:
        return self.exponent_max is None


@dataclass(frozen=True, slots=True)
class JudgedBound:
    """A bound and its result. measured: None if its size was not measured. is_met: None if not judged."""

    bound: Bound
    measured: float | None
    is_met: bool | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A curve and its results. error: why a size could not be measured, else "".

    exponent: None with one size. exponent and bounds: empty if not green.
    """

    curve: Curve
    points: tuple[Point, ...]
    exponent: float | None
    is_exponent_met: bool | None
    bounds: tuple[JudgedBound, ...]
    error: str = ""

    @property
    def is_green(self) -> bool:
        """Whether every size was measured and the checker found no error."""
        return not self.error and all(point.is_green for point in self.points)

    @property
    def is_met(self) -> bool:
        """Whether no judged bound is exceeded."""
        return self.is_exponent_met is not False and all(one.is_met is not False for one in self.bounds)

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "curve": self.curve.name,
            "grows": self.curve.grows,
            "cost": self.curve.cost,
            "sizes": [point.size for point in self.points],
            "green": self.is_green,
            "error": self.error,
            "verdicts": [point.verdict.as_json() | {"failed": point.failed[:10]} for point in self.points],
        }
        if self.is_green:
            fields |= {
                "costs": [point.cost for point in self.points],
                "figures": [point.figures for point in self.points],
                "exponent": self.exponent,
                "exponent_max": self.curve.exponent_max,
                "exponent_met": self.is_exponent_met,
                "bounds": [
                    {
                        "figure": one.bound.figure,
                        "size": one.bound.size,
                        "measured": one.measured,
                        "at_most": one.bound.at_most,
                        "met": one.is_met,
                    }
                    for one in self.bounds
                ],
                "met": self.is_met,
            }
        return fields


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """The slope of log(cost) over log(size) by least squares; None with fewer than two different sizes.

    A cost too small to be measured counts as _COST_MIN.
    """
    if len(set(sizes)) < 2:
        return None
    xs = [math.log(size) for size in sizes]
    ys = [math.log(max(cost, _COST_MIN)) for cost in costs]
    return statistics.linear_regression(xs, ys).slope


def judge(curve: Curve, points: Sequence[Point], error: str = "") -> Judged:
    """Judge the bounds of a curve; a curve that is not green is not judged."""
    if error or not all(point.is_green for point in points):
        return Judged(curve, tuple(points), None, None, (), error)
    slope = exponent([point.size for point in points], [point.cost for point in points])
    is_met = None if slope is None or curve.exponent_max is None else slope <= curve.exponent_max
    return Judged(curve, tuple(points), slope, is_met, tuple(_judge(bound, points) for bound in curve.bounds))


def _judge(bound: Bound, points: Sequence[Point]) -> JudgedBound:
    point = next((point for point in points if point.size == bound.size), None)
    least = min(points, key=lambda point: point.size, default=None)
    if point is None or least is None or (bound.figure == COST_RATIO and least is point):
        return JudgedBound(bound, None, None)
    measured = point.cost / max(least.cost, _COST_MIN) if bound.figure == COST_RATIO else point.figures[bound.figure]
    return JudgedBound(bound, measured, None if bound.at_most is None else measured <= bound.at_most)
