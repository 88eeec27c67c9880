"""The HTML report of a run: one self-contained page without scripts or external resources, from page.html.

Invariants:
- the page contains no figure that the Markdown report lacks: both have the same tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtest.report import charts, compare, tables
from loadtest.report.figures import OURS, Figures, plain

MARKED = {"met": "met", "moonshot": "moonshot", "MISSED": "missed"}  # CSS classes of outcomes


def html(figures: Figures, notes: Sequence[compare.Note] = ()) -> str:
    """The page."""
    pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    run = figures.run
    about = {"began": None, "commit": None, "rounds": None, "scale": None} | (run.parts[-1] if run.parts else {})
    drawn = charts.charts(figures)
    return pages.get_template("page.html").render(
        ours=OURS,
        marked=MARKED,
        part=about,
        machine=dict.fromkeys(("cpus", "cpu", "kernel")) | about.get("machine", {}),
        n=tables.counts(figures),
        commands=dict.fromkeys(plain(str(one.get("plan") or one.get("command"))) for one in run.parts),
        goals=tables.goal_table(figures),
        missed=compare.missed(figures, notes),
        duels=tables.duel_lists(figures, notes),
        general=[note.text for note in notes if note.is_general],
        systems=_systems(figures),
        host_bounds=tables.host_bounds(figures),
        host=tables.host_table(figures),
        workloads=[
            {
                "title": f"{workload} {run.workloads[workload].get('name', '')}",
                "asks": run.workloads[workload].get("asks", ""),
                "table": tables.workload_table(figures, workload),
                "charts": [chart for chart in drawn if chart.workload == workload],
            }
            for workload in figures.workloads
        ],
    )


def _systems(figures: Figures) -> tables.Table:
    rows = []
    for name in figures.systems:
        about = figures.run.systems[name]
        versions, options = (
            plain(", ".join(f"{key} {value}" for key, value in about.get(section, {}).items()))
            for section in ("versions", "configuration")
        )
        durability = f"{figures.letter(name)}: {about.get('durability', {}).get('sentence', '')}"
        rows.append((name, durability, str(about.get("says", "")), versions, options))
    return tables.Table(("system", "class", "description", "versions", "configuration"), rows)
