"""Configuration for every test: signals as in a terminal, no deadlines for examples, a second run of tests that failed
while the machine stood still (tests/real_time.py), and a list of missing parts at the end (tests/parts.py)."""

from __future__ import annotations

import signal

import hypothesis
import pytest
from _pytest.terminal import TerminalReporter

from tests import real_time
from tests.parts import MISSING

#: how fast it is is no question for a test; a busy machine needed 31 s for one input
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

RUN_AGAIN: list[str] = []


def pytest_configure() -> None:
    """Let Ctrl-C interrupt this process and every process that a test starts.

    A shell that starts a command in the background of a script makes it ignore SIGINT and SIGQUIT, and children inherit
    that: a process that a test interrupts would go on running.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with a slow test first; keep the order otherwise."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    return real_time.run(item, nextitem)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "setup":
        RUN_AGAIN.extend(f"{report.nodeid}: {why}" for name, why in report.user_properties if name == real_time.VOID)
    if report.skipped and isinstance(report.longrepr, tuple) and " is missing: " in report.longrepr[2]:
        part, how = report.longrepr[2].removeprefix("Skipped: ").split(" is missing: ", 1)
        MISSING[part] = how


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for why in RUN_AGAIN:
        terminalreporter.write_line(f"run again: {why}")
    for part, how in sorted(MISSING.items()):
        terminalreporter.write_line(f"not run for want of {part}: {how}")
