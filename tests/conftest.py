"""What holds for every test: parts that are missing are named at the end of the run (tests/parts.py)."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

from tests.parts import MISSING


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple) and " is missing: " in report.longrepr[2]:
        part, how = report.longrepr[2].removeprefix("Skipped: ").split(" is missing: ", 1)
        MISSING[part] = how


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for part, how in sorted(MISSING.items()):
        terminalreporter.write_line(f"not run for want of {part}: {how}")
