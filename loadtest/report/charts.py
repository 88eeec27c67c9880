"""Charts of a run, drawn by matplotlib as SVG text or PNG files: latency against load, bars, gaps, percentiles, costs.

Invariants:
- charts show only values of the run's tables and histograms;
- they open no window, and leave matplotlib's global settings as they were.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from loadtest.report.columns import number
from loadtest.report.figures import Figures, Result

PERCENTS = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99)
PALETTE = ("#0f8b8d", "#d1495b", "#edae49", "#6a4c93", "#3d5a80", "#8ab17d", "#b56576", "#7f7f7f")
_INK = "#7b8794"  # readable on white and on black
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dlog",
    "text.parse_math": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
}
_SVG_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Draw = Callable[[Axes], object]
Picture = tuple[str, Draw | None]  # its title; None: the run has no figures for it


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. draw: puts it on empty axes."""

    workload: str
    title: str
    draw: Draw

    @property
    def file(self) -> str:
        """A file name for it."""
        words = "".join(c if c.isalnum() else " " for c in f"{self.workload} {self.title}".lower()).split()
        return "-".join(words)[:80]

    def svg(self) -> str:
        """An element for a page, without a background."""
        text = io.StringIO()
        with matplotlib.rc_context(_STYLE):
            self._figure().savefig(text, format="svg", transparent=True, metadata=_SVG_METADATA)
        return text.getvalue().partition("<svg")[2].join(("<svg", ""))

    def png(self, path: Path) -> None:
        """Write a file with title."""
        with matplotlib.rc_context(_STYLE):
            figure = self._figure()
            figure.axes[0].set_title(f"{self.workload}: {self.title}", loc="left", fontsize=11)
            figure.savefig(path, format="png", dpi=150, metadata={"Software": None})

    def _figure(self) -> Figure:
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.subplots()
        self.draw(axes)
        axes.grid(axis="y", color=_INK, alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside right upper", fontsize=8, frameon=False)
        return figure


def charts(figures: Figures) -> list[Chart]:
    """The charts for which the run has figures."""
    return [
        Chart(workload, title, draw)
        for workload in figures.workloads
        for title, draw in _pictures(figures, workload)
        if draw is not None
    ]


def draw_all(figures: Figures, directory: Path) -> list[Path]:
    """Write a PNG file for every chart of a run."""
    paths = []
    for chart in charts(figures):
        paths.append(directory / f"{chart.file}.png")
        chart.png(paths[-1])
    return paths


def _pictures(figures: Figures, workload: str) -> Iterator[Picture]:
    match workload:
        case "W1":
            yield _percentiles(figures, workload, "response", "One append in flight")
        case "W2":
            yield from _curves(figures)
            yield _percentiles(figures, workload, "response", "Open loop of 20,000/s", rate=20_000, record_bytes=100)
        case "W3":
            yield _bars(figures, workload, "records_per_s", "Maximum throughput of one log", "records/s")
            yield _stack(figures, workload, "rss_peak_bytes", 1e-6, "Memory meanwhile, by process", "MB")
        case "W4":
            yield _bars(figures, workload, "mb_per_s", "Maximum throughput of one log, in batches", "MB/s")
            yield _stack(figures, workload, "cpu_s", 1.0, "CPU meanwhile, by process", "CPU-seconds")
        case "W5":
            yield _bars(figures, workload, "response_ms.p99", "Many logs, p99", "ms")
        case "W6":
            yield _percentiles(figures, workload, "delivery", "End to end at 20,000/s", rate=20_000)
        case "W7":
            yield _bars(figures, workload, "delivered_mb_per_s", "Fan-out", "MB/s out")
        case "W8":
            yield _bars(figures, workload, "catch_up_mb_per_s", "Catch-up read during appends", "MB/s")
        case "W10" | "W11" | "W12" | "W14" | "W21":
            yield _dots(figures, workload)
            yield _time(figures, workload)
        case "W13":
            yield _bars(figures, workload, "first_append_s", "Everything killed: first append", "s")
        case "W19":
            yield _stack(figures, workload, "rss_bytes", 1e-6, "Idle memory, by process", "MB")
            yield _bars(figures, workload, "start_s", "Start until ready", "s")
        case "W22":
            yield _bars(figures, workload, "used_max_mb", "Maximum disk usage of a bookie", "MB")
        case "W20":
            yield _bars(figures, workload, "records_per_s", "One awaited append per record, 256 tasks", "records/s")


def _results(figures: Figures, workload: str) -> Iterator[tuple[str, str, Result]]:
    for label in figures.labels(workload):
        for system in figures.systems:
            result = figures.get(workload, label, system)
            if result is not None and not result.why:
                yield label, system, result


# ---- lines ----------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


def _draw_lines(axes: Axes, lines: Sequence[_Line], x: str, y: str, *, marker: str = "o") -> None:
    for line in lines:
        style = "--" if line.is_dashed else "-"
        axes.plot(*zip(*line.points, strict=True), style, label=line.name, color=line.colour, marker=marker, ms=3)
    axes.set(xlabel=x, ylabel=y)
    _plain_numbers(axes)


def _curves(figures: Figures) -> Iterator[Picture]:
    cells = [cell["shape"] for cell in figures.run.workloads["W2"].get("cells", ())]
    for size in sorted({shape["record_bytes"] for shape in cells}):
        rates = sorted({shape["rate"] for shape in cells if shape["record_bytes"] == size})
        lines = []
        for system in figures.systems:
            results = [(float(rate), figures.where("W2", system, record_bytes=size, rate=rate)) for rate in rates]
            for name in ("p99", "p50"):
                found = [(rate, one.value(f"response_ms.{name}") or 0.0) for rate, one in results if one]
                if points := [point for point in found if point[1]]:
                    lines.append(_Line(f"{system} {name}", _colour(figures, system), points, name == "p50"))

        def draw(axes: Axes, lines: Sequence[_Line] = lines) -> None:
            axes.set(xscale="log", yscale="log")
            _draw_lines(axes, lines, "offered load, records/s", "ms")

        yield f"Latency against load, {size} B records", draw if lines else None


def _percentiles(figures: Figures, workload: str, name: str, title: str, **cell: object) -> Picture:
    lines = []
    for system in figures.systems:
        result = figures.where(workload, system, **cell)
        histogram = result.histogram(name) if result is not None else None
        if histogram is not None and histogram.count:
            points = [(nines(percent), max(0.001, histogram.percentile(percent) / 1000)) for percent in PERCENTS]
            lines.append(_Line(system, _colour(figures, system), points))

    def draw(axes: Axes) -> None:
        axes.set_yscale("log")
        _draw_lines(axes, lines, "percentile", "ms")
        marks = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
        axes.set_xticks([nines(mark) for mark in marks], [f"{mark:g}" for mark in marks])

    return f"{title}: percentiles", draw if lines else None


def nines(percent: float) -> float:
    """Position of a percentile on an axis on which each further nine takes the same width."""
    return -math.log10(max(1e-5, 1 - percent / 100))


def _time(figures: Figures, workload: str) -> Picture:
    lines = [
        _Line(system, _colour(figures, system), [(i / 10, count * 10.0) for i, count in enumerate(one.timelines[0])])
        for _, system, one in _results(figures, workload)
        if one.timelines
    ]
    name = figures.run.workloads[workload].get("name", "")
    draw = (lambda axes: _draw_lines(axes, lines, "seconds", "records/s", marker="")) if lines else None
    return f"{name}: acknowledged over time, first round", draw


# ---- bars and dots --------------------------------------------------------------------------------------------------


def _bars(figures: Figures, workload: str, figure: str, title: str, unit: str) -> Picture:
    found = [(label, system, result.stat(figure)) for label, system, result in _results(figures, workload)]
    stats = {(label, system): stat for label, system, stat in found if stat is not None}
    labels, systems = (list(dict.fromkeys(keys)) for keys in zip(*stats, strict=True)) if stats else ([], [])
    wide = 0.8 / max(1, len(systems))

    def draw(axes: Axes) -> None:
        for i, system in enumerate(systems):
            mine = {at: stats[label, system] for at, label in enumerate(labels) if (label, system) in stats}
            spread = zip(*((stat.median - stat.low, stat.high - stat.median) for stat in mine.values()), strict=True)
            bars = axes.bar(
                [at + (i - (len(systems) - 1) / 2) * wide for at in mine],
                [stat.median for stat in mine.values()],
                width=wide * 0.92,
                label=system,
                color=_colour(figures, system),
                yerr=list(spread),
                error_kw={"linewidth": 1, "ecolor": _INK},
            )
            axes.bar_label(bars, [number(stat.median) for stat in mine.values()], fontsize=7)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_ylabel(unit)
        _plain_numbers(axes)

    return title, draw if stats else None


def _stack(figures: Figures, workload: str, figure: str, scale: float, title: str, unit: str) -> Picture:
    label = next(iter(figures.labels(workload)), "")
    used: dict[str, dict[str, float]] = {}  # by part, by system
    for _, system, result in (one for one in _results(figures, workload) if one[0] == label):
        for path in result.values:
            part = path.split(".")[1] if path.startswith("usage.") and path.endswith(f".{figure}") else ""
            if part and part != "generator":  # the load generator is not of the system
                used.setdefault(part, {})[system] = (result.value(path) or 0.0) * scale
    systems = [system for system in figures.systems if any(system in values for values in used.values())]

    def draw(axes: Axes) -> None:
        heights = [[values.get(system, 0.0) for system in systems] for values in used.values()]
        below = accumulate(heights, lambda *rows: [sum(pair) for pair in zip(*rows, strict=True)])
        bottoms = [[0.0] * len(systems), *below]
        for i, (part, height) in enumerate(zip(used, heights, strict=True)):
            axes.bar(systems, height, 0.6, bottoms[i], label=part, color=PALETTE[i % len(PALETTE)])
        axes.set_ylabel(unit)
        _plain_numbers(axes)

    return f"{title} ({label})", draw if used else None


def _dots(figures: Figures, workload: str) -> Picture:
    gaps = [(system, one.gaps_ms) for _, system, one in _results(figures, workload) if one.gaps_ms]

    def draw(axes: Axes) -> None:
        for at, (system, values) in enumerate(gaps):
            xs = [at + (i % 7 - 3) * 0.05 for i in range(len(values))]
            axes.scatter(xs, [max(1.0, gap) for gap in values], color=_colour(figures, system), s=22, alpha=0.75)
        axes.set_yscale("log")
        axes.set_xticks(range(len(gaps)), [system for system, _ in gaps])
        axes.set_ylabel("ms without an acknowledgement")
        _plain_numbers(axes)

    return f"{figures.run.workloads[workload].get('name', '')}: each gap", draw if gaps else None


def _plain_numbers(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        if axis is axes.yaxis or axis.get_scale() == "log":
            axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
            axis.set_minor_formatter(NullFormatter())


def _colour(figures: Figures, system: str) -> str:
    """Colour of a system, by its rank; dlog is first."""
    return PALETTE[figures.systems.index(system) % len(PALETTE)]
