"""Draws the charts of charts.py as PNG files with matplotlib, for documents that cannot show SVG.

It opens no window and uses no global state of matplotlib.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.report.charts import PARTS, Chart, charts, colour, nines, short
from loadtest.report.figures import Figures

_INCHES = (7.2, 3.8)
_DOTS = 150


def draw_all(figures: Figures, directory: Path) -> list[Path]:
    """Write a file for every chart of a run."""
    return [draw(chart, directory / f"{chart.file}.png") for chart in charts(figures)]


def draw(chart: Chart, path: Path) -> Path:
    """Write one chart."""
    figure = Figure(figsize=_INCHES, dpi=_DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    match chart.kind:
        case "bars":
            _bars(chart, axes)
        case "stack":
            _stack(chart, axes)
        case "dots":
            _dots(chart, axes)
        case _:
            _lines(chart, axes)
    axes.set_title(f"{chart.workload}: {chart.title}", loc="left", fontsize=11)
    axes.set_ylabel(chart.y)
    axes.set_xlabel(chart.x)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    figure.savefig(path, format="png", metadata={"Software": None})
    return path


def _lines(chart: Chart, axes: Axes) -> None:
    for line in chart.lines:
        xs = [nines(x) if chart.kind == "percentiles" else x for x, _ in line.points]
        ys = [y for _, y in line.points]
        axes.plot(
            xs,
            ys,
            label=line.name,
            color=colour(chart.systems, line.system),
            linestyle="--" if line.dashed else "-",
            marker=None if chart.kind == "time" else "o",
            markersize=3,
        )
    if chart.kind == "lines":
        axes.set_xscale("log")
    if chart.kind in ("lines", "percentiles"):
        axes.set_yscale("log")
    if chart.kind == "percentiles":
        marks = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
        axes.set_xticks([nines(mark) for mark in marks], [short(mark) for mark in marks])


def _bars(chart: Chart, axes: Axes) -> None:
    groups = list(dict.fromkeys(bar.group for bar in chart.bars))
    names = list(dict.fromkeys(bar.name for bar in chart.bars))
    wide = 0.8 / len(names)
    for i, name in enumerate(names):
        bars = [bar for bar in chart.bars if bar.name == name]
        axes.bar(
            [groups.index(bar.group) + (i - (len(names) - 1) / 2) * wide for bar in bars],
            [bar.value for bar in bars],
            width=wide * 0.92,
            label=name,
            color=colour(chart.systems, name),
            yerr=[[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]],
            error_kw={"linewidth": 1},
        )
    axes.set_xticks(range(len(groups)), groups)


def _stack(chart: Chart, axes: Axes) -> None:
    groups = list(dict.fromkeys(bar.group for bar in chart.bars))
    below = dict.fromkeys(groups, 0.0)
    for i, name in enumerate(dict.fromkeys(bar.name for bar in chart.bars)):
        bars = [bar for bar in chart.bars if bar.name == name]
        axes.bar(
            [groups.index(bar.group) for bar in bars],
            [bar.value for bar in bars],
            bottom=[below[bar.group] for bar in bars],
            width=0.6,
            label=name,
            color=PARTS[i % len(PARTS)],
        )
        for bar in bars:
            below[bar.group] += bar.value
    axes.set_xticks(range(len(groups)), groups)


def _dots(chart: Chart, axes: Axes) -> None:
    for at, (_, system, values) in enumerate(chart.dots):
        xs = [at + (i % 7 - 3) * 0.05 for i in range(len(values))]
        axes.scatter(xs, values, color=colour(chart.systems, system), s=22, alpha=0.75)
    axes.set_yscale("log")
    axes.set_xticks(range(len(chart.dots)), [group for group, _, _ in chart.dots])
