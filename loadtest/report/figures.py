"""Joins the rounds of a run: for each cell and system the median, the least and the greatest of each figure.

Invariants:
- everything comes from the run's JSON;
- a cell with a round that was not green has no figures;
- void rounds do not count; those kept in bad host conditions are marked.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadtest.histogram import Histogram, joined
from loadtest.runfile import Run

OURS = "dlog"
_DIRECTORIES = re.compile(r"(?<![\w.:/~-])~?/(?:[\w.+@%-]+/)+")
BREACHES = ("lost", "duplicated", "reordered", "misplaced", "early", "invented", "diverged")
GENERATOR_BUSY = 0.8  # share of a CPU above which the generator may be the bottleneck


class Stat(NamedTuple):
    """A figure over rounds."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass(slots=True)
class Result:
    """One cell of one system, all rounds. why: the reason if there are no figures."""

    workload: str
    label: str
    system: str
    why: str = ""
    is_failure: bool = False  # `why` is a verdict or an error, not "not applicable"
    rounds: int = 0
    marks: list[str] = field(default_factory=list)  # remarks on the figures
    values: dict[str, list[float]] = field(default_factory=dict)
    gaps_ms: list[float] = field(default_factory=list)
    _histograms: dict[str, list[Any]] = field(default_factory=dict)
    timelines: list[list[int]] = field(default_factory=list)

    def stat(self, name: str) -> Stat | None:
        """A figure by its path, such as "response_ms.p99" or "usage.bookie.rss_bytes"."""
        if name in ("gap_p50_ms", "gap_max_ms") and self.gaps_ms:  # over the faults of all rounds
            value = statistics.median(self.gaps_ms) if name == "gap_p50_ms" else max(self.gaps_ms)
            return Stat(value, min(self.gaps_ms), max(self.gaps_ms), len(self.gaps_ms))
        values = self.values.get(name)
        if not values or self.why:
            return None
        return Stat(statistics.median(values), min(values), max(values), len(values))

    def value(self, name: str) -> float | None:
        found = self.stat(name)
        return None if found is None else found.median

    def histogram(self, name: str) -> Histogram | None:
        """The sum over all rounds."""
        found = self._histograms.get(name)
        return joined(found) if found and not self.why else None

    def take(self, row: Mapping[str, Any], faults: Sequence[str]) -> None:
        """Add a round."""
        if "not_applicable" in row:
            self.why = self.why or f"not applicable: {plain(row['not_applicable'])}"
            return
        if "error" in row or not row.get("green"):
            self.is_failure = True
            self.why = f"failed: {plain(row['error'])}" if "error" in row else not_green(row)
            return
        self.rounds += 1
        figures = {**row["figures"], "usage": row.get("usage", {})}
        for name, value in _flat(figures):
            self.values.setdefault(name, []).append(value)
        self.gaps_ms += [float(gap) for gap in figures.get("gaps_ms", ())]
        for name, histogram in row.get("histograms", {}).items():
            self._histograms.setdefault(name, []).append(histogram)
        if row.get("timeline"):
            self.timelines.append(row["timeline"])
        if faults:
            self._mark("bad host conditions")
        if any(one.get("busy", 0.0) > GENERATOR_BUSY for one in row.get("generators", ())):
            self._mark("generator busy")
        if figures.get("behind"):
            self._mark("fell behind the schedule")
        if figures.get("failed"):
            self._mark("client saw errors")

    def _mark(self, text: str) -> None:
        if text not in self.marks:
            self.marks.append(text)


@dataclass(slots=True)
class Figures:
    """All of a run."""

    run: Run
    results: dict[tuple[str, str, str], Result]  # by workload, label, system

    @property
    def systems(self) -> list[str]:
        """dlog's variants first."""
        return sorted(self.run.systems, key=lambda name: (name.partition("-")[0] != OURS, name))

    @property
    def peers(self) -> list[str]:
        return [name for name in self.systems if name.partition("-")[0] != OURS]

    @property
    def workloads(self) -> list[str]:
        return list(self.run.workloads)

    def labels(self, workload: str) -> list[str]:
        """The cells of a workload, in its order."""
        listed = [cell["label"] for cell in self.run.workloads.get(workload, {}).get("cells", ())]
        return listed + [label for w, label, _ in self.results if w == workload and label not in listed]

    def get(self, workload: str, label: str, system: str) -> Result | None:
        return self.results.get((workload, label, system))

    def where(self, workload: str, system: str, **cell: Any) -> Result | None:
        """The result of the first cell whose shape has these values."""
        for one in self.run.workloads.get(workload, {}).get("cells", ()):
            if all(one["shape"].get(key) == value for key, value in cell.items()):
                return self.get(workload, one["label"], system)
        return None

    def letter(self, system: str) -> str:
        """The durability class: F or P."""
        return str(self.run.systems[system].get("durability", {}).get("letter", "?"))


def collect(run: Run) -> Figures:
    """Join the rounds of a run."""
    faults = {
        (turn["part"], turn["round"], turn["workload"], turn["system"]): turn.get("faults", []) for turn in run.turns
    }
    results: dict[tuple[str, str, str], Result] = {}
    for row in run.results:
        if row["void"]:
            continue
        key = (row["workload"], row["label"], row["system"])
        result = results.setdefault(key, Result(*key))
        result.take(row, faults.get((row["part"], row["round"], row["workload"], row["system"]), ()))
    return Figures(run, results)


def not_green(row: Mapping[str, Any]) -> str:
    """The breaches that the judge found, as text."""
    verdict = row["verdict"]
    found = ", ".join(f"{verdict[name]} {name}" for name in BREACHES if verdict.get(name))
    return f"NOT GREEN: {found}"


def plain(text: str) -> str:
    """The text on one line, without directories of the machine."""
    return " ".join(_DIRECTORIES.sub("", text).split())


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{name}", float(value)
