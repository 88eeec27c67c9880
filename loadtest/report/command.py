"""`python -m loadtest report RUN.json`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest import runfile
from loadtest.report import compare, figures, tables


def main(arguments: Sequence[str]) -> int:
    """Exit 0: written; 2: wrong usage or unreadable run file."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest report",
        description="Make tables, plots and a page from a run file. Without an output option, print the Markdown.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.json")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write goals, comparisons and tables")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page (needs plots)")
    parser.add_argument("--png", type=Path, metavar="DIR", help="write plots into this directory (needs plots)")
    parser.add_argument("--notes", type=Path, metavar="FILE", help="TOML file of explanations to print with figures")
    parser.add_argument("--section", default="", metavar="TITLE", help="write a section of another report in Markdown")
    given = parser.parse_args(arguments)
    try:
        run = runfile.read(given.run)
        notes = compare.read_notes(given.notes) if given.notes else []
        collected = figures.collect(run)
        if given.markdown:
            given.markdown.write_text(tables.markdown(collected, notes, section=given.section))
        if given.html:
            from loadtest.report import page  # needs the group `plots`, as charts does

            given.html.write_text(page.html(collected, notes))
        if given.png:
            from loadtest.report.charts import draw_all

            given.png.mkdir(parents=True, exist_ok=True)
            for path in draw_all(collected, given.png):
                print(path)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"loadtest report: {error}", file=sys.stderr)
        return 2
    if not (given.markdown or given.html or given.png):
        print(tables.markdown(collected, notes, section=given.section))
    return 0
