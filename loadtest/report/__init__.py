"""Reports of a run: tables, plots and a page.

Invariants:
- reports are made from the run's JSON alone;
- a result that is not green has no figures.
"""

from __future__ import annotations

from loadtest.report.command import main

__all__ = ["main"]
