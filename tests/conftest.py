"""What holds for every test: signals as a terminal gives them, and at the end of the run the names of parts that are
missing (tests/parts.py)."""

from __future__ import annotations

import signal

import pytest
from _pytest.terminal import TerminalReporter

from tests.parts import MISSING


def pytest_configure() -> None:
    """Hear Ctrl-C, here and in every process that a test starts.

    A shell that starts a command in the background of a script has it ignore SIGINT and SIGQUIT, and children inherit
    that: what a test interrupts would live on.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple) and " is missing: " in report.longrepr[2]:
        part, how = report.longrepr[2].removeprefix("Skipped: ").split(" is missing: ", 1)
        MISSING[part] = how


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for part, how in sorted(MISSING.items()):
        terminalreporter.write_line(f"not run for want of {part}: {how}")
