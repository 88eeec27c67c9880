"""A plan is drawn from its seed alone, contains every kind of fault, and is the same after it was written and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import WARM_UP_S, make_plan, read_plan


def test_the_same_seed_draws_the_same_plan() -> None:
    assert make_plan(7, 120, 3.0) == make_plan(7, 120, 3.0)
    assert make_plan(7, 120, 3.0) != make_plan(8, 120, 3.0)


def test_a_few_minutes_meet_every_kind() -> None:
    kinds = {fault.kind for fault in make_plan(1, 180, 3.0).faults}
    assert kinds == {
        *("kill", "pause", "cut", "cut-requests", "cut-replies", "reset", "slow"),
        *("fill", "expire", "restart", "release", "unplug"),
    }


def test_faults_lie_within_the_time_of_the_load() -> None:
    plan = make_plan(3, 60, 1.0)
    times = [fault.at_s for fault in plan.faults]
    assert times == sorted(times)
    assert times[0] >= WARM_UP_S
    assert times[-1] < 60


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(9, 120, 3.0)
    plan.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    (tmp_path / "other.json").write_text('{"seed": 1}')
    with pytest.raises(ValueError, match="not a plan"):
        read_plan(tmp_path / "other.json")
