"""Charts as data: latency against load, bars, gaps, percentiles, costs; svg.py and png.py draw them.

Invariants:
- charts show only values of the run's tables and histograms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadtest.report.columns import number
from loadtest.report.figures import Figures, Result

PERCENTS = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99)


@dataclass(frozen=True, slots=True)
class Line:
    """One curve."""

    name: str
    system: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar and its spread, or one part of a stack."""

    group: str
    name: str
    system: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Chart:
    """kind: "lines" (both axes logarithmic), "percentiles", "bars", "stack", "dots" (logarithmic), "time"."""

    kind: str
    title: str
    says: str
    x: str
    y: str
    workload: str
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    dots: tuple[tuple[str, str, tuple[float, ...]], ...] = ()  # (group, system, values)
    systems: tuple[str, ...] = field(default=())

    @property
    def file(self) -> str:
        """A file name for it."""
        words = "".join(c if c.isalnum() else " " for c in f"{self.workload} {self.title}".lower()).split()
        return "-".join(words)[:80]


def charts(figures: Figures) -> list[Chart]:
    """The charts for which the run has figures."""
    return [chart for chart in _all(figures) if chart.lines or chart.bars or chart.dots]


def _all(figures: Figures) -> Iterator[Chart]:
    for workload in figures.workloads:
        match workload:
            case "W1":
                yield _percentiles(figures, workload, "response", "One append in flight")
            case "W2":
                yield from _curves(figures)
                yield _percentiles(
                    figures, workload, "response", "Open loop of 20,000/s", rate=20_000, record_bytes=100
                )
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


def _chart(figures: Figures, kind: str, workload: str, title: str, x: str, y: str, **data: object) -> Chart:
    says = str(figures.run.workloads[workload].get("asks", ""))
    return Chart(kind, title, says, x, y, workload, systems=tuple(figures.systems), **data)  # type: ignore[arg-type]


def _results(figures: Figures, workload: str) -> Iterator[tuple[str, str, Result]]:
    for label in figures.labels(workload):
        for system in figures.systems:
            result = figures.get(workload, label, system)
            if result is not None and not result.why:
                yield label, system, result


def _curves(figures: Figures) -> Iterator[Chart]:
    cells = figures.run.workloads["W2"].get("cells", ())
    for size in sorted({cell["shape"]["record_bytes"] for cell in cells}):
        rates = sorted({cell["shape"]["rate"] for cell in cells if cell["shape"]["record_bytes"] == size})
        lines = []
        for system in figures.systems:
            for name, dashed in (("p99", False), ("p50", True)):
                points = []
                for rate in rates:
                    result = figures.where("W2", system, record_bytes=size, rate=rate)
                    value = result.value(f"response_ms.{name}") if result else None
                    if value:
                        points.append((float(rate), value))
                if points:
                    lines.append(Line(f"{system} {name}", system, tuple(points), dashed))
        title = f"Latency against load, {size} B records"
        yield _chart(figures, "lines", "W2", title, "offered load, records/s", "ms", lines=tuple(lines))


def _percentiles(figures: Figures, workload: str, name: str, title: str, **cell: object) -> Chart:
    lines = []
    for system in figures.systems:
        result = figures.where(workload, system, **cell)
        histogram = result.histogram(name) if result is not None else None
        if histogram is not None and histogram.count:
            points = tuple((percent, max(0.001, histogram.percentile(percent) / 1000)) for percent in PERCENTS)
            lines.append(Line(system, system, points))
    return _chart(figures, "percentiles", workload, f"{title}: percentiles", "percentile", "ms", lines=tuple(lines))


def _bars(figures: Figures, workload: str, figure: str, title: str, unit: str) -> Chart:
    bars = []
    for label, system, result in _results(figures, workload):
        stat = result.stat(figure)
        if stat is not None:
            bars.append(Bar(label, system, system, stat.median, stat.low, stat.high))
    return _chart(figures, "bars", workload, title, "", unit, bars=tuple(bars))


def _stack(figures: Figures, workload: str, figure: str, scale: float, title: str, unit: str) -> Chart:
    bars = []
    label = next(iter(figures.labels(workload)), "")
    for _, system, result in (one for one in _results(figures, workload) if one[0] == label):
        for path in result.values:
            is_ours = path.startswith("usage.generator.")  # load generator, not the system
            if path.startswith("usage.") and path.endswith(f".{figure}") and not is_ours:
                value = (result.value(path) or 0.0) * scale
                bars.append(Bar(system, path.split(".")[1], system, value, value, value))
    return _chart(figures, "stack", workload, f"{title} ({label})", "", unit, bars=tuple(bars))


def _dots(figures: Figures, workload: str) -> Chart:
    dots = tuple(
        (system, system, tuple(max(1.0, gap) for gap in result.gaps_ms))
        for _, system, result in _results(figures, workload)
        if result.gaps_ms
    )
    name = str(figures.run.workloads[workload].get("name", ""))
    return _chart(figures, "dots", workload, f"{name}: each gap", "", "ms without an acknowledgement", dots=dots)


def _time(figures: Figures, workload: str) -> Chart:
    lines = tuple(
        Line(system, system, tuple((slot / 10, float(count * 10)) for slot, count in enumerate(result.timelines[0])))
        for _, system, result in _results(figures, workload)
        if result.timelines
    )
    name = str(figures.run.workloads[workload].get("name", ""))
    title = f"{name}: acknowledged over time, first round"
    return _chart(figures, "time", workload, title, "seconds", "records/s", lines=lines)


def nines(percent: float) -> float:
    """Position of a percentile on an axis on which each further nine takes the same width."""
    import math

    return -math.log10(max(1e-5, 1 - percent / 100))


def ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose the range."""
    import math

    first, last = math.floor(math.log10(max(low, 1e-9))), math.ceil(math.log10(max(high, 1e-9)))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


def steps(high: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to at least `high`."""
    import math

    if high <= 0:
        return [0.0, 1.0]
    raw = high / wanted
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    return [step * i for i in range(math.ceil(high / step) + 1)]


def short(value: float) -> str:
    """A number as an axis label."""
    for bound, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= bound:
            return f"{value / bound:g}{suffix}"
    return f"{value:g}"


def colour(systems: Sequence[str], system: str) -> str:
    """Colour of a system, by its place in `systems`; dlog is first."""
    return PALETTE[systems.index(system) % len(PALETTE)] if system in systems else PALETTE[-1]


PALETTE = ("#0f8b8d", "#d1495b", "#edae49", "#6a4c93", "#3d5a80", "#8ab17d", "#b56576", "#7f7f7f")
PARTS = ("#0f8b8d", "#59b3a4", "#a8d5ba", "#edae49", "#d1495b", "#6a4c93", "#3d5a80", "#b0b0b0")

__all__ = ["Bar", "Chart", "Line", "charts", "number"]
