"""`dlog bookie decommission` shows how far it is and what it waits for: lines, or a progress bar on a terminal."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dlog.cli import bookie_changes
from dlog.cli.main import main
from dlog.io import decommission
from dlog.io.decommission import Decommissioned, Draining, WaitingLedgers
from dlog.model.ids import LedgerId

OFF = WaitingLedgers("repair is switched off for the cluster", 1_200, (LedgerId(3), LedgerId(5), LedgerId(8)))
OPEN = WaitingLedgers("they are open", 2, (LedgerId(9), LedgerId(11)))
LOCKED = WaitingLedgers("a worker has locked them", 40, (LedgerId(2),), is_moving=True)
REPORTS = (
    Draining(1_202, 1_202, (OFF, OPEN)),
    Draining(1_201, 1_202, (WaitingLedgers(OFF.reason, 1_199, OFF.first), OPEN)),
    Draining(40, 1_202, (LOCKED,)),
    Draining(39, 1_202, (LOCKED,)),
    Draining(0, 1_202, ()),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decommission that makes REPORTS."""

    @asynccontextmanager
    async def metadata_of(*_: object) -> AsyncIterator[tuple[None, None, None]]:
        yield None, None, None

    async def drain(_metadata: object, _bookie: object, progress: Callable[[Draining], None]) -> Decommissioned:
        for now in REPORTS:
            progress(now)
        return Decommissioned(1_202)

    monkeypatch.setattr(bookie_changes, "metadata_of", metadata_of)
    monkeypatch.setattr(decommission, "decommission", drain)


def test_lines_say_how_many_are_done_and_which_wait_for_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bookie", "decommission", "b:1", "--zookeeper", "z:1"]) == 0
    out, said = capsys.readouterr()
    assert out == "b:1 is out of the cluster: no ledger names it, 1,202 did at first\n"
    assert said.splitlines() == [
        "0 of 1,202 ledgers done: 1,200 ledgers (3, 5, 8, ...): repair is switched off for the cluster; "
        "2 ledgers (9, 11): they are open",
        "1,162 of 1,202 ledgers done: copying",
        "1,202 of 1,202 ledgers done: reading all ledgers again",
    ]


def test_on_a_terminal_it_has_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    assert main(["bookie", "decommission", "b:1", "--zookeeper", "z:1", "--json"]) == 0
    shown = terminal.getvalue()
    assert shown.count("1,200 ledgers (3, 5, 8, ...): repair is switched off for the cluster") == 1
    assert "2 ledgers (9, 11): they are open" in shown
    assert "1202/1202" in shown
    assert capsys.readouterr().out == '{"bookie":"b:1","ledgers":1202,"was_known":true}\n'
