"""Draws the charts of charts.py as SVG for the page: selectable text, no scripts, no dependency.

Text has the colour of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

from loadtest.report.charts import PARTS, Chart, Line, colour, nines, short, steps, ticks

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 14, 42
_INNER_W, _INNER_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


def svg(chart: Chart) -> str:
    """One picture with its legend."""
    draw = {
        "lines": _lines,
        "percentiles": _percentiles,
        "time": _time,
        "bars": _bars,
        "stack": _stack,
        "dots": _dots,
    }[chart.kind]
    body, legend = draw(chart)
    label = escape(f"{chart.workload}: {chart.title}", quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(body)}{_axis_names(chart)}</svg>{_legend(legend)}"
    )


def _lines(chart: Chart) -> tuple[list[str], list[tuple[str, str, bool]]]:
    xs, ys = _range(chart.lines, 0), _range(chart.lines, 1)
    across, up = ticks(*xs), ticks(*ys)
    x, y = _log(across[0], across[-1], LEFT, _INNER_W), _log(up[0], up[-1], TOP + _INNER_H, -_INNER_H)
    return [*_grid(up, y), *_marks(across, x), *_curves(chart, x, y)], _names(chart)


def _percentiles(chart: Chart) -> tuple[list[str], list[tuple[str, str, bool]]]:
    up = ticks(*_range(chart.lines, 1))
    marks = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99]
    y = _log(up[0], up[-1], TOP + _INNER_H, -_INNER_H)

    def x(percent: float) -> float:
        return LEFT + nines(percent) / nines(99.99) * _INNER_W

    return [*_grid(up, y), *_marks(marks, x), *_curves(chart, x, y)], _names(chart)


def _time(chart: Chart) -> tuple[list[str], list[tuple[str, str, bool]]]:
    up, across = steps(_range(chart.lines, 1)[1]), steps(_range(chart.lines, 0)[1], 8)
    y, x = _linear(up[-1], TOP + _INNER_H, -_INNER_H), _linear(across[-1], LEFT, _INNER_W)
    return [*_grid(up, y), *_marks(across, x), *_curves(chart, x, y, dots=False)], _names(chart)


def _bars(chart: Chart) -> tuple[list[str], list[tuple[str, str, bool]]]:
    up = steps(max(bar.high for bar in chart.bars))
    y = _linear(up[-1], TOP + _INNER_H, -_INNER_H)
    groups = list(dict.fromkeys(bar.group for bar in chart.bars))
    wide = _INNER_W / len(groups)
    body = _grid(up, y)
    for at, group in enumerate(groups):
        bars = [bar for bar in chart.bars if bar.group == group]
        each = min(46.0, wide * 0.8 / len(bars))
        left = LEFT + at * wide + (wide - each * len(bars)) / 2
        for i, bar in enumerate(bars):
            fill, top, x = colour(chart.systems, bar.system), y(bar.value), left + i * each
            said = escape(f"{bar.name}, {group}: {short(round(bar.value, 3))} {chart.y}")
            body.append(
                f'<rect x="{x + 1:.1f}" y="{top:.1f}" width="{each - 2:.1f}" height="{y(0) - top:.1f}" rx="2" '
                f'fill="{fill}"><title>{said}</title></rect>'
            )
            if bar.high > bar.low:
                body.append(f'<path class="spread" d="M{x + each / 2:.1f} {y(bar.low):.1f}V{y(bar.high):.1f}"/>')
        body.append(_text(LEFT + (at + 0.5) * wide, TOP + _INNER_H + 16, group, "middle"))
    return body, _names(chart)


def _stack(chart: Chart) -> tuple[list[str], list[tuple[str, str, bool]]]:
    groups = list(dict.fromkeys(bar.group for bar in chart.bars))
    parts = list(dict.fromkeys(bar.name for bar in chart.bars))
    up = steps(max(sum(bar.value for bar in chart.bars if bar.group == group) for group in groups))
    y = _linear(up[-1], TOP + _INNER_H, -_INNER_H)
    wide = _INNER_W / len(groups)
    body = _grid(up, y)
    for at, group in enumerate(groups):
        below = 0.0
        each = min(80.0, wide * 0.6)
        for bar in (bar for bar in chart.bars if bar.group == group):
            top, bottom = y(below + bar.value), y(below)
            below += bar.value
            said = escape(f"{group} {bar.name}: {short(round(bar.value, 2))} {chart.y}")
            body.append(
                f'<rect x="{LEFT + (at + 0.5) * wide - each / 2:.1f}" y="{top:.1f}" width="{each:.1f}" '
                f'height="{bottom - top:.1f}" fill="{part_colour(parts, bar.name)}"><title>{said}</title></rect>'
            )
        body.append(_text(LEFT + (at + 0.5) * wide, TOP + _INNER_H + 16, group, "middle"))
    return body, [(part, part_colour(parts, part), False) for part in parts]


def _dots(chart: Chart) -> tuple[list[str], list[tuple[str, str, bool]]]:
    values = [value for _, _, found in chart.dots for value in found]
    up = ticks(min(values), max(values))
    y = _log(up[0], up[-1], TOP + _INNER_H, -_INNER_H)
    wide = _INNER_W / len(chart.dots)
    body = _grid(up, y)
    for at, (group, system, found) in enumerate(chart.dots):
        middle = LEFT + (at + 0.5) * wide
        for i, value in enumerate(found):
            x = middle + (i % 7 - 3) * min(9.0, wide / 10)
            body.append(
                f'<circle cx="{x:.1f}" cy="{y(value):.1f}" r="4" fill="{colour(chart.systems, system)}" '
                f'fill-opacity="0.75"><title>{escape(group)}: {value:.0f} ms</title></circle>'
            )
        body.append(_text(middle, TOP + _INNER_H + 16, group, "middle"))
    return body, []


# ---- parts of every picture -----------------------------------------------------------------------------------------


def _curves(chart: Chart, x: Callable[[float], float], y: Callable[[float], float], *, dots: bool = True) -> list[str]:
    body = []
    for line in chart.lines:
        stroke = colour(chart.systems, line.system)
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line.points)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        body.append(f'<polyline fill="none" stroke="{stroke}" stroke-width="2"{dash} points="{points}"/>')
        if dots:
            for a, b in line.points:
                said = escape(f"{line.name} at {a:g}: {b:.2f} {chart.y}")
                body.append(
                    f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{stroke}"><title>{said}</title></circle>'
                )
    return body


def _grid(values: Iterable[float], y: Callable[[float], float]) -> list[str]:
    body = []
    for value in values:
        at = y(value)
        body.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{LEFT + _INNER_W}"/>')
        body.append(_text(LEFT - 6, at + 4, short(value), "end"))
    return body


def _marks(values: Iterable[float], x: Callable[[float], float]) -> list[str]:
    return [_text(x(value), TOP + _INNER_H + 16, short(value), "middle") for value in values]


def _axis_names(chart: Chart) -> str:
    across = _text(LEFT + _INNER_W / 2, HEIGHT - 6, chart.x, "middle") if chart.x else ""
    middle = -(TOP + _INNER_H / 2)
    return f'{across}<text transform="rotate(-90)" x="{middle}" y="13" text-anchor="middle">{escape(chart.y)}</text>'


def _text(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _names(chart: Chart) -> list[tuple[str, str, bool]]:
    if chart.lines:
        return [(line.name, colour(chart.systems, line.system), line.dashed) for line in chart.lines]
    return [(name, colour(chart.systems, name), False) for name in dict.fromkeys(bar.name for bar in chart.bars)]


def _legend(names: Iterable[tuple[str, str, bool]]) -> str:
    items = "".join(
        f'<li><i style="{"border-top:2px dashed " + fill if dashed else "background:" + fill}"></i>{escape(name)}</li>'
        for name, fill, dashed in names
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def part_colour(parts: list[str], name: str) -> str:
    """Colour of a part of a stack."""
    return PARTS[parts.index(name) % len(PARTS)]


def _range(lines: Iterable[Line], axis: int) -> tuple[float, float]:
    values = [point[axis] for line in lines for point in line.points]
    return min(values), max(values)


def _log(low: float, high: float, begin: float, length: float) -> Callable[[float], float]:
    import math

    span = math.log10(high / low)
    return lambda value: begin + math.log10(max(value, low) / low) / span * length


def _linear(high: float, begin: float, length: float) -> Callable[[float], float]:
    return lambda value: begin + value / high * length
