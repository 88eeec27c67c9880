"""Renders the page of job `report`: one self-contained HTML file, from report_page.html, with plots by matplotlib.

Invariants:
- no script, style or image comes from elsewhere: the page forbids them;
- the page can be read in light and dark mode; the tables have what the plots show; every name is escaped;
- tables and plots are bounded, and say what they omit.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STREAMS_MAX = 1000  # rows of a table
BARS_MAX = 20
SAMPLES = 240  # of the plot of growth
SPARK_POINTS = 40
PALETTE = ("#2a6fdb", "#0f9d76", "#e0910a", "#7a4fd0", "#d8473c", "#0e93b4", "#c2559a")  # of the largest streams
REST = "#98978f"  # of the other streams
_INK = "#83827b"  # readable on white and on black
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dlog",
    "text.parse_math": False,
    "font.size": 9,
    "date.converter": "concise",
    "timezone": "UTC",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
}
_SVG_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNIX_MS_MAX = 2**47  # the year 6429: what a wrong clock wrote is drawn there at the latest

Row = Mapping[str, Any]


class Bar(NamedTuple):
    label: str
    value: float
    text: str
    colour: str


class Series(NamedTuple):
    """A growing quantity: [unix ms, bytes so far], in order."""

    name: str
    points: Sequence[Sequence[int]]
    colour: str

    def at(self, unix_ms: Any) -> Any:
        """The values at these times, an array: linear between two points, 0 before the first."""
        times, values = zip(*self.points, strict=True) if self.points else ([0], [0])
        return np.interp(unix_ms, np.asarray(times, float), np.asarray(values, float), left=0.0)


def page(
    counts: Mapping[str, int], items: Sequence[Row], failures: Sequence[Row], namespace: str, now_unix_ms: int
) -> str:
    """Render a report's rows."""
    streams = sorted((row for row in items if row["what"] == "stream"), key=lambda row: (-row["bytes"], row["stream"]))
    colours = {row["stream"]: colour for row, colour in zip(streams, PALETTE, strict=False) if row["bytes"]}
    readers = sorted(
        (row for row in items if row["what"] == "reader"),
        key=lambda row: (-(row["behind_records"] or 0), row["reader"], row["stream"]),
    )
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"size": size_text, "time": time_text, "short": _short, "duration": _duration}
    begin = min((point[0] for row in streams[:STREAMS_MAX] for point in row["growth"]), default=0)
    return pages.get_template("report_page.html").render(
        namespace=namespace,
        now_unix_ms=now_unix_ms,
        counts=counts,
        failures=failures,
        streams=streams,
        readers=readers,
        proxies=[row for row in items if row["what"] == "proxy"],
        unowned=sum(row["owner"] is None for row in streams),
        growth=growth(_series(streams, colours)),
        sizes=bars(
            [
                Bar(row["stream"], row["bytes"], size_text(row["bytes"]), colours.get(row["stream"], REST))
                for row in streams[:BARS_MAX]
            ]
        ),
        lags=bars(
            [
                Bar(f"{row['reader']} · {row['stream']}", behind, f"{_short(behind)} records", PALETTE[0])
                for row in readers[:BARS_MAX]
                if (behind := row["behind_records"])
            ]
        ),
        spark=lambda points: spark_points(points, begin, now_unix_ms),
        rows_max=STREAMS_MAX,
        bars_max=BARS_MAX,
    )


def _series(streams: Sequence[Row], colours: Mapping[str, str]) -> list[Series]:
    """The growth of the largest streams, and of all others together."""
    own = [Series(row["stream"], row["growth"], colour) for row in streams if (colour := colours.get(row["stream"]))]
    rest = [Series("", row["growth"], REST) for row in streams if row["stream"] not in colours]
    times = sorted({point[0] for one in rest for point in one.points})
    if times:
        times = [times[i] for i in np.unique(np.linspace(0, len(times) - 1, 100).round().astype(int))]
        totals = sum(one.at(times) for one in rest)
        points = [[time, round(total)] for time, total in zip(times, totals, strict=True)]
        own.append(Series(f"{len(rest):,} other streams", points, REST))
    return own


# ---- plots ----------------------------------------------------------------------------------------------------------


@matplotlib.rc_context(_STYLE)
def growth(series: Sequence[Series]) -> str:
    """Stacked areas. "" if nothing can be drawn."""
    times = [min(point[0], _UNIX_MS_MAX) for one in series for point in one.points]
    if not times or max(times) <= min(times):
        return ""
    moments = np.linspace(min(times), max(times), SAMPLES)
    areas = np.array([one.at(moments) for one in series])
    power = min(int(np.log2(max(1.0, areas.sum(0).max())) // 10), len(_UNITS) - 1)
    figure, axes = _empty(3.2)
    colours = [one.colour for one in series]
    drawn = axes.stackplot(moments.astype("datetime64[ms]"), areas / 1024**power, colors=colours)
    axes.set_ylabel(_UNITS[power])
    axes.margins(x=0)
    axes.grid(axis="y", color=_INK, alpha=0.25, linewidth=0.6)
    names = [" " + _cut(one.name, 38) for one in series]  # matplotlib leaves out names that begin with _
    figure.legend(drawn[::-1], names[::-1], loc="outside right upper", frameon=False)
    return _svg(figure)


@matplotlib.rc_context(_STYLE)
def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars. "" if there are none."""
    if not rows:
        return ""
    figure, axes = _empty(0.26 * len(rows) + 0.2)
    drawn = axes.barh(range(len(rows)), [row.value for row in rows], 0.6, color=[row.colour for row in rows])
    axes.bar_label(drawn, [row.text for row in rows], padding=4)
    axes.set_yticks(range(len(rows)), [_cut(row.label, 38) for row in rows])
    axes.set_xticks([])
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, max(1, *(1.15 * row.value for row in rows))))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return _svg(figure)


def spark_points(points: Sequence[Sequence[int]], begin: int, end: int) -> str:
    """The line of a sparkline of 120 by 26, over the time range shared by all; "" if there is nothing to draw."""
    if len(points) < 2 or end <= begin:
        return ""
    most = max(1, points[-1][1])
    shown = points[:: -max(1, len(points) // SPARK_POINTS)]
    return " ".join(
        f"{2 + 116 * min(1.0, (time - begin) / (end - begin)):.1f},{23 - 20 * size / most:.1f}" for time, size in shown
    )


def _empty(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    """An element for a page, without a background."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata=_SVG_METADATA)
    return text.getvalue().partition("<svg")[2].join(("<svg", ""))


def _cut(text: str, most: int) -> str:
    """Shorten in the middle, where names differ least."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[len(text) - (most - 1 - half) :]}"


# ---- numbers as text ------------------------------------------------------------------------------------------------


def size_text(size: float) -> str:
    """A number of bytes for display."""
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def time_text(unix_ms: int) -> str:
    return _moment(unix_ms).strftime("%Y-%m-%d %H:%M:%SZ")


def _moment(unix_ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(unix_ms, _UNIX_MS_MAX))


def _short(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            return f"{number / (1000 if unit == 'k' else size):,.1f} {unit}"
    return f"{number:,}"


def _duration(seconds: float) -> str:
    if not seconds:
        return "ever"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds / size)} {unit}"
    return f"{seconds} s"
