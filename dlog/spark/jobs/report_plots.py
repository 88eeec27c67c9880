"""Draws plots as inline SVG: growth over time, bars, stripes, and sparklines for tables. Pure functions.

Invariants:
- a plot can be understood without colours: each mark has a title; colours are variables of the page;
- every name is escaped; nothing is fetched or executed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

COLOURS = 7  # streams with a colour of their own; the others share --rest
WIDTH = 1000
SAMPLES = 240
STRIPES_MAX = 60  # of one proxy; more would be too thin to see

_STEPS_MS = [
    *(1000 * s for s in (1, 5, 15, 30)),
    *(60_000 * m for m in (1, 5, 15, 30)),
    *(3_600_000 * h for h in (1, 3, 6, 12)),
    *(86_400_000 * d for d in (1, 2, 7, 14, 30, 90, 365)),
]
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size: float) -> str:
    """A number of bytes for display."""
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def time_text(unix_ms: int) -> str:
    return _moment(unix_ms).strftime("%Y-%m-%d %H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Series:
    """A growing quantity: [unix ms, bytes so far], in order. colour: a number below COLOURS, or -1 for --rest."""

    name: str
    colour: int
    points: Sequence[Sequence[int]]

    def at(self, unix_ms: float) -> float:
        """The value at a time: linear between two points, 0 before the first."""
        i = bisect_right(self.points, unix_ms, key=lambda point: point[0])
        if i == 0:
            return 0.0
        if i == len(self.points):
            return self.points[-1][1]
        (t0, v0), (t1, v1) = self.points[i - 1], self.points[i]
        return v0 + (v1 - v0) * (unix_ms - t0) / (t1 - t0)


def growth(series: Sequence[Series]) -> str:
    """Stacked areas. "" if nothing can be drawn."""
    times = [point[0] for one in series for point in one.points]
    if not times or max(times) <= min(times):
        return ""
    height, left, right, top, bottom = 320, 76, 8, 10, 28
    begin, end = min(times), max(times)
    moments = [begin + (end - begin) * i / (SAMPLES - 1) for i in range(SAMPLES)]
    stack = [[0.0] * SAMPLES]
    for one in series:
        stack.append([below + one.at(moment) for below, moment in zip(stack[-1], moments, strict=True)])
    ceiling, ticks = _scale(max(stack[-1]))

    def x(moment: float) -> float:
        return left + (WIDTH - left - right) * (moment - begin) / (end - begin)

    def y(value: float) -> float:
        return height - bottom - (height - top - bottom) * value / ceiling

    parts = []
    for value in ticks:
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(_text(left - 8, y(value) + 4, _short_size(value), "tick end"))
    step, marks = _moments(begin, end)
    for moment in marks:
        if x(moment) < WIDTH - 40:
            parts.append(_text(x(moment), height - 8, _time_label(moment, step), "tick middle"))
    for one, low, high in zip(series, stack[:-1], stack[1:], strict=True):
        up = [f"{x(m):.1f},{y(v):.1f}" for m, v in zip(moments, high, strict=True)]
        down = [f"{x(m):.1f},{y(v):.1f}" for m, v in zip(reversed(moments), reversed(low), strict=True)]
        told = escape(f"{one.name}: {size_text(one.points[-1][1] if one.points else 0)}")
        parts.append(
            f'<path class="area {_class(one.colour)}" d="M{" L".join(up + down)}Z"><title>{told}</title></path>'
        )
    label = f"Bytes kept from {time_text(int(begin))} to {time_text(int(end))}, now {size_text(stack[-1][-1])}"
    return _svg(height, label, parts)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar. tip: its title. colour as of Series; -2 is the accent."""

    label: str
    value: int
    text: str
    tip: str
    colour: int = -2


def bars(rows: Sequence[Bar], label: str) -> str:
    """Horizontal bars. "" if there are none."""
    if not rows:
        return ""
    step, left, right = 28, 290, 130
    most = max(1, *(row.value for row in rows))
    parts = []
    for number, row in enumerate(rows):
        top = number * step
        length = (WIDTH - left - right) * row.value / most
        name = escape(_cut(row.label, 38))
        tip = f"<title>{escape(row.tip)}</title>"
        parts.append(f'<g>{tip}<rect class="hit" x="0" y="{top}" width="{WIDTH}" height="{step}"/>')
        parts.append(f'<text class="name end" x="{left - 12}" y="{top + 18}">{name}</text>')
        parts.append(_bar(left, top + 6, max(2.0, length), 16, _class(row.colour)))
        parts.append(_text(left + max(2.0, length) + 8, top + 18, row.text, "value"))
        parts.append("</g>")
    return _svg(len(rows) * step, label, parts)


@dataclass(frozen=True, slots=True)
class Stripe:
    name: str
    value: int
    colour: int


def stripes(rows: Sequence[tuple[str, Sequence[Stripe], str]], label: str) -> str:
    """A line for each (name, stripes, words), with a length in proportion to the sum of its stripes."""
    if not rows:
        return ""
    step, left, right = 44, 200, 260
    most = max(1, *(sum(stripe.value for stripe in row[1]) for row in rows))
    parts = []
    for number, (name, held, words) in enumerate(rows):
        top = number * step
        parts.append(f'<text class="name end" x="{left - 12}" y="{top + 26}">{escape(_cut(name, 28))}</text>')
        shown = _joined(held)
        room = WIDTH - left - right - 5 * len(shown)
        x = float(left)
        for stripe in shown:
            width = 3 + room * stripe.value / most
            tip = escape(f"{stripe.name}: {size_text(stripe.value)}")
            place = f'x="{x:.1f}" y="{top + 8}" width="{width:.1f}" height="28" rx="3"'
            parts.append(f'<rect class="{_class(stripe.colour)}" {place}><title>{tip}</title></rect>')
            x += width + 2
        parts.append(_text(max(x, left) + 8, top + 26, words, "value"))
    return _svg(len(rows) * step, label, parts)


def _joined(held: Sequence[Stripe]) -> list[Stripe]:
    if len(held) <= STRIPES_MAX:
        return list(held)
    rest = held[STRIPES_MAX - 1 :]
    return [*held[: STRIPES_MAX - 1], Stripe(f"{len(rest)} more streams", sum(s.value for s in rest), -1)]


def spark(points: Sequence[Sequence[int]], begin: int, end: int, name: str) -> str:
    """A sparkline over the time range shared by all; "" if there is nothing to draw."""
    if len(points) < 2 or end <= begin:
        return ""
    width, height = 120, 26
    one = Series(name, -2, points)
    most = max(1, points[-1][1])
    first = max(begin, points[0][0])
    moments = [first + (end - first) * i / 39 for i in range(40)]
    line = [
        f"{2 + (width - 4) * (m - begin) / (end - begin):.1f},{height - 3 - (height - 6) * one.at(m) / most:.1f}"
        for m in moments
    ]
    told = escape(f"{name}: {size_text(points[0][1])} to {size_text(points[-1][1])}")
    foot = f"{line[-1].split(',')[0]},{height} {line[0].split(',')[0]},{height}"
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{told}"><title>{told}</title>'
        f'<polygon points="{" ".join(line)} {foot}"/><polyline points="{" ".join(line)}"/></svg>'
    )


# ---- parts ----------------------------------------------------------------------------------------------------------


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    told = escape(label)
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{told}">'
        f"<title>{told}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, classes: str) -> str:
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _bar(x: float, y: float, width: float, height: float, classes: str) -> str:
    """A bar with round corners at its end."""
    r = min(4.0, width)
    return (
        f'<path class="{classes}" d="M{x:.1f},{y} h{width - r:.1f} q{r},0 {r},{r} v{height - 2 * r:.1f} '
        f'q0,{r} -{r},{r} h-{width - r:.1f} Z"/>'
    )


def _class(colour: int) -> str:
    return f"c{colour}" if colour >= 0 else "accent" if colour == -2 else "rest"


def _cut(text: str, most: int) -> str:
    """Shorten in the middle, where names differ least."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[len(text) - (most - 1 - half) :]}"


def _scale(most: float) -> tuple[float, list[float]]:
    """A round upper bound, and the values to mark."""
    unit = 1.0
    while most >= 1024 * unit:
        unit *= 1024
    most = max(most, 1.0)
    step = unit / 1000
    while True:
        for factor in (1, 2, 2.5, 5):
            if most <= 4 * step * factor:
                return 4 * step * factor, [step * factor * i for i in range(5)]
        step *= 10


def _short_size(size: float) -> str:
    text = size_text(size)
    number, unit = text.split(" ")
    return f"{number.removesuffix('.0')} {unit}" if size else "0"


def _moments(begin: float, end: float) -> tuple[int, list[float]]:
    """A few round times in the range, after the step between them."""
    step = next((step for step in _STEPS_MS if (end - begin) / step <= 8), _STEPS_MS[-1])
    first = -(-int(begin) // step) * step
    return step, [float(t) for t in range(first, int(end) + 1, step)]


def _time_label(unix_ms: float, step_ms: int) -> str:
    """The date at midnight, else the time of day."""
    moment = _moment(int(unix_ms))
    if step_ms >= 90 * 86_400_000:
        return moment.strftime("%b %Y")
    if not unix_ms % 86_400_000:
        return f"{moment:%b} {moment.day}"
    return moment.strftime("%H:%M:%S" if step_ms < 60_000 else "%H:%M")


def _moment(unix_ms: int) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
