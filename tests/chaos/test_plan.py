"""A plan is drawn from its seed alone, contains every kind of fault, and is the same after it was written and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import WARM_UP_S, make_plan, read_plan
from tests.chaos.storage import FAULTS


def test_the_same_seed_draws_the_same_plan() -> None:
    assert make_plan(7, 120, 3.0) == make_plan(7, 120, 3.0)
    assert make_plan(7, 120, 3.0) != make_plan(8, 120, 3.0)


def test_a_few_minutes_meet_every_kind() -> None:
    kinds = {fault.kind for fault in make_plan(1, 180, 3.0).faults}
    assert kinds == {
        *("kill", "pause", "cut", "cut-requests", "cut-replies", "reset", "slow"),
        *("fill", "expire", "restart", "release", "unplug", "isolate", "lose"),
    }


def test_no_plan_loses_two_directories() -> None:
    """Two may be both copies of an entry that was just acknowledged."""
    for seed in range(20):
        assert [fault.kind for fault in make_plan(seed, 300, 1.0).faults].count("lose") == 1


@pytest.mark.parametrize("store", ["s3", "s3-direct"])
def test_a_plan_for_streams_in_objects_hurts_the_storage_too(store: str) -> None:
    plan = make_plan(1, 240, 3.0, store)
    assert {fault.target for fault in plan.faults if fault.kind == "storage"} == set(FAULTS)
    targets = {fault.target for fault in plan.faults}
    assert {"versitygw", "*>versitygw"} <= targets
    assert ("owner:_dlog.objects" in targets) == (store == "s3")
    assert all(settings["store"] == store for settings in plan.streams.values())
    assert not [fault for fault in make_plan(1, 240, 3.0).faults if "versitygw" in fault.target]


def test_faults_lie_within_the_time_of_the_load() -> None:
    plan = make_plan(3, 60, 1.0)
    times = [fault.at_s for fault in plan.faults]
    assert times == sorted(times)
    assert times[0] >= WARM_UP_S
    assert times[-1] < 60


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(9, 120, 3.0, "s3", "s3-direct")
    plan.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    (tmp_path / "other.json").write_text('{"seed": 1}')
    with pytest.raises(ValueError, match="not a plan"):
        read_plan(tmp_path / "other.json")
