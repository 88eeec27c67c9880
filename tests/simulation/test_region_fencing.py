"""Tests the rule of regions in every order of events, and that a defect in any part of it is found."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.region.counting import Batch, CountingRule, Entry, RegionFence, RegionWriter, TableEnd
from tests.simulation.mutants import edited
from tests.simulation.region_fencing import Explorer, Parts, main


@pytest.mark.parametrize(
    ("items", "owners", "recoveries"), [(3, "ab", "rs"), (5, "ab", ""), (4, "a", "rs"), (4, "a", "rd"), (4, "ab", "r")]
)
def test_what_is_acknowledged_counts_in_every_order_of_events(items: int, owners: str, recoveries: str) -> None:
    explorer = Explorer(items, owners=owners, recoveries=recoveries)
    assert explorer.run() == ""
    assert explorer.visited > 1000


def _rule(*edits: tuple[str, str, str]) -> dict[str, Any]:
    return {"rule": edited(CountingRule, *edits)()}


DEFECTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "the fence of a deposed owner is in force again": ("N2", _rule(("after", "if epoch > self.epoch", "if True")), 5),
    "batches count under any nonce": ("N1 N2", _rule(("after", "nonce == self.nonce and ", "")), 5),
    "a second copy of a batch counts": ("N2", _rule(("after", " and number == self.number", "")), 4),
    "a table goes on behind its end": ("N3", _rule(("after", "self.ended | {table}", "self.ended")), 4),
    "a table goes on after it was dropped": (
        "N3",
        _rule(("after", "TableEnd(table) | TableDropped(table)", "TableEnd(table)")),
        4,
    ),
    "what lies before a batch is not read": ("N1", {"reads_others": False}, 4),
    "all that was appended is acknowledged": (
        "N1",
        {
            "writer": edited(
                RegionWriter, ("appended", "tuple(own)", "tuple(enumerate(getattr(item, 'entries', ()), offset))")
            )
        },
        4,
    ),
    "a writer begins again under its old nonce": ("N1 N2", {"changes_nonce": False}, 5),
    "a recovery reads up to less than its end of the table": ("N3", {"waits_for_end": False}, 4),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    invariants, parts, items = DEFECTS[name]
    found = ""
    for owners, recoveries in (("ab", ""), ("a", "rs"), ("a", "rd"), ("ab", "r")):
        found = found or Explorer(items, Parts(**parts), owners=owners, recoveries=recoveries).run()
    assert found[:2] in invariants.split(), found


def test_the_command_prints_the_number_of_states(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--items", "2"]) == 0
    assert "states; no violation" in capsys.readouterr().out


def test_an_offset_below_the_expected_one_is_not_that_of_the_batch() -> None:
    writer = RegionWriter(b"a", CountingRule(1, b"a"), 7)
    with pytest.raises(ValueError, match="6 < 7"):
        writer.appended(writer.batch((Entry(1, 1),)), 6)


def test_the_writer_of_an_ended_table_writes_to_the_others() -> None:
    fence, end = RegionFence(b"a", 1), TableEnd(1)
    rule, _ = CountingRule().after(fence)
    writer = RegionWriter(b"a", rule, 1)
    batch = writer.batch((Entry(1, 1), Entry(2, 1)))
    writer, own, counting = writer.appended(batch, 2, [(1, end)])
    assert own == counting == ((3, Entry(2, 1)),)
    assert (writer.expected, writer.is_deposed) == (4, False)
    assert writer.appended(Batch(b"a", 1, (Entry(2, 2),)), 4).own == ((4, Entry(2, 2)),)


def test_what_another_owner_wrote_is_not_acknowledged() -> None:
    rule, _ = CountingRule().after(RegionFence(b"a", 1))
    writer = RegionWriter(b"a", rule, 1)
    other = Batch(b"b", 0, (Entry(1, 1, b"other"),))
    appended = writer.appended(writer.batch((Entry(1, 1),)), 3, [(1, RegionFence(b"b", 2)), (2, other)])
    assert appended.writer.is_deposed
    assert appended.own == ()
    assert appended.counting == ((2, other.entries[0]),)
