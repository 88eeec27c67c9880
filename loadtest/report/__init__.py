"""Reports of a run: tables, plots and a page, all of them from the run's JSON and from nothing else.

The law of this room: no figure is made here that the JSON does not hold; what was not green has none.
"""

from __future__ import annotations

from loadtest.report.command import main

__all__ = ["main"]
