"""Plans that once broke something, and what was left of them when they were shrunk: none of them may again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import rooms
from tests.simulation.plan import Plan

PLANS = sorted((Path(__file__).parent / "plans").glob("*/*.json"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_plan_breaks_nothing(path: Path) -> None:
    room = rooms.load(path.parent.name)
    outcome = room.run(Plan.from_json(path.read_text()))
    assert outcome.violation == "", outcome.text
