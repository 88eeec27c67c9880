"""Runs the stored plans that once broke an invariant, as they were after shrinking: none of them may do so again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlog.log.changes import StartSegment
from dlog.log.reading import StreamReaderMachine
from dlog.log.start_position import StartPosition
from dlog.log.truncating import StreamTruncation
from dlog.objects.chain import ChainTail
from dlog.objects.deletion import ChainDeletion
from tests.simulation import rooms
from tests.simulation.mutants import edited
from tests.simulation.plan import Plan

PLANS = sorted((Path(__file__).parent / "plans").glob("*/*.json"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_plan_breaks_nothing(path: Path) -> None:
    room = rooms.load(path.parent.name)
    outcome = room.run(Plan.from_json(path.read_text()))
    assert outcome.violation == "", outcome.text


#: defects that random plans meet too rarely for a hunt of a minute: (plan, invariant, class, each edit of its methods)
RARE: tuple[tuple[Any, ...], ...] = (
    (
        "s9-stranger-810020268",
        "S9",
        StreamReaderMachine,
        ("_note_unlisted", "has_entries or stream.is_number_final(number)", "True"),
    ),
    (
        "s9-stranger-5300000043",
        "S9",
        StartPosition,
        ("_choose_dlsn", "stream.is_number_final(dlsn.segment)", "True"),
    ),
    (
        "r4-trim-900110068",
        "R4",
        StreamReaderMachine,
        ("_is_cut_off", "if start is not None and start.is_of_tail", "if False"),
    ),
    (
        "s9-stranger-7731014987",
        "S9",
        StreamTruncation,
        ("end", "t.phase is Phase.RECOVERING or t.value.in_progress or not t.value.segments", "t.value.segments"),
        ("end", "t.value.segments[-1].number + 1", "t.value.max_segment + 1"),
    ),
    ("s9-stranger-1473", "S9", StartSegment, ("apply", "self.segment.number <=", "self.segment.number ==")),
    ("c8-deleted-3400020008", "C8", ChainDeletion, ("_delete_chunks", "self.fences.union(", "set(")),
    ("c7-lost-3600020947", "C7", ChainTail, ("_heads_read", "_check_end(counting[-1].number, heads)", "pass")),
    ("r2-tail-900110440", "R2", StreamReaderMachine, ("_step", " or number > stop.last_segment", "")),
)


@pytest.mark.parametrize("row", RARE, ids=[row[0] for row in RARE])
def test_a_stored_plan_catches_the_defect_that_it_was_stored_for(row: tuple[Any, ...]) -> None:
    name, invariant, cls, *edits = row
    (path,) = (path for path in PLANS if path.stem == name)
    room = rooms.load(path.parent.name)
    outcome = room.run(Plan.from_json(path.read_text()), {"planted": ((cls, edited(cls, *edits)),)})
    assert outcome.violation == invariant, outcome.text
