"""The table of a run: one row per curve, one row per bounded figure, and the checker's verdict on each curve."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.growth.curve import Judged
from loadtest.judge import Verdict

_CURVE_HEAD = ("curve", "sizes", "cost", "at each size", "exponent", "bound", "")
_FIGURE_HEAD = ("figure", "size", "measured", "bound", "")


def as_text(curves: Sequence[Judged]) -> str:
    """As text. A curve that is not green has no figures."""
    lines = [*_table([_CURVE_HEAD, *map(_curve_row, curves)])]
    figures = [row for curve in curves if curve.is_green for row in _figure_rows(curve)]
    if figures:
        lines += ["", *_table([_FIGURE_HEAD, *figures])]
    lines.append("")
    for curve in curves:
        lines.append(f"{curve.curve.name}: {_checked(curve)}")
    return "\n".join(lines)


def number(value: float) -> str:
    """With about three significant digits."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"


def _curve_row(judged: Judged) -> tuple[str, ...]:
    curve = judged.curve
    sizes = " ".join(f"{point.size:,}" for point in judged.points) or "-"
    head = (curve.name, f"{sizes} {curve.grows}", curve.cost)
    if not judged.is_green:
        return (*head, "-", "-", "-", "FAILED" if judged.error else "NOT GREEN")
    slope = "-" if judged.exponent is None else f"{judged.exponent:.2f}"
    bound = "-" if curve.exponent_max is None else f"<= {curve.exponent_max:.2f}"
    costs = " ".join(number(point.cost) for point in judged.points)
    return (*head, costs, slope, bound, _met(judged.is_exponent_met))


def _figure_rows(judged: Judged) -> list[tuple[str, ...]]:
    return [
        (
            f"{judged.curve.name}: {one.bound.says}",
            f"{one.bound.size:,}",
            "not measured" if one.measured is None else number(one.measured),
            "-" if one.bound.at_most is None else f"<= {number(one.bound.at_most)}",
            _met(one.is_met),
        )
        for one in judged.bounds
    ]


def _met(is_met: bool | None) -> str:
    return {True: "met", False: "MISSED", None: ""}[is_met]


def _checked(judged: Judged) -> str:
    whole = Verdict()
    for point in judged.points:
        whole.add(point.verdict)
    failed = [text for point in judged.points for text in point.failed]
    counts = " ".join(f"{k}={v}" for k, v in whole.as_json().items() if k != "examples")
    if judged.is_green:
        return f"green: {counts}"
    errors = [judged.error] if judged.error else []
    return "\n  ".join([f"NOT GREEN, so no figures: {counts}", *errors, *whole.examples, *failed[:10]])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
