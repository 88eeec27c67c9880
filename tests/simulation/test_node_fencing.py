"""Tests the fence of a node in every order of events, and that a defect in any part of it is found."""

from __future__ import annotations

import pytest

from dlog.objects.failover import NodeRecovery
from dlog.objects.node_wal import WalWriter
from tests.simulation.mutants import edited, planting
from tests.simulation.node_fencing import SHIPPED, Explorer, Parts, main


@pytest.mark.parametrize(("appends", "others"), [(1, "n"), (1, "ww"), (2, "w")])
def test_what_is_acknowledged_lies_below_the_end_in_every_order_of_events(appends: int, others: str) -> None:
    explorer = Explorer(appends=appends, others=others)
    assert explorer.run() == ""
    assert explorer.visited > 1000


_NOT_REGISTERED = (
    "_register",
    "lambda _: self._registered(segment), self.over)",
    "lambda _: None, self.over)\n    self._registered(segment)",
)

DEFECTS: dict[str, tuple[str, tuple[tuple[type, tuple[str, str, str]], ...], Parts]] = {
    "a WAL segment is registered under an epoch that is over": ("F1", (), Parts(checks_registration=False)),
    "a recovery fences no segment": ("F1", (), Parts(fences=False)),
    "a WAL segment is appended to before it is registered": ("F1", ((WalWriter, _NOT_REGISTERED),), SHIPPED),
    "what is in flight is acknowledged together": (
        "F1",
        (
            (
                WalWriter,
                ("_confirm", "while self._in_flight and self._in_flight[0].is_confirmed:", "while self._in_flight:"),
            ),
        ),
        SHIPPED,
    ),
    "a WAL segment is appended to while the one before is not confirmed": (
        "F3",
        (
            (
                WalWriter,
                ("_advance", "if self._next is not None and not self._in_flight:", "if self._next is not None:"),
            ),
        ),
        SHIPPED,
    ),
    "only the first segment is recovered": (
        "F1 F2",
        ((NodeRecovery, ("_node_opened", "if segment.number >= state.flush_point.segment]", "][:1]")),),
        SHIPPED,
    ),
    "the scan ends after the first entry of a segment": (
        "F1",
        ((NodeRecovery, ("_scan", "self._scan(at, first + len(payloads))", "self._scan(at + 1, 0)")),),
        SHIPPED,
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    invariants, edits, parts = DEFECTS[name]
    found = ""
    with planting([(cls, edited(cls, edit)) for cls, edit in edits]):
        for appends in (1, 2, 3):
            found = found or Explorer(parts, appends=appends, others="w").run()
    assert found[:2] in invariants.split(), found


def test_the_command_prints_the_number_of_states(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--appends", "1"]) == 0
    assert "states; no violation" in capsys.readouterr().out
