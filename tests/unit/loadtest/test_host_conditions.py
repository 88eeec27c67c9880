"""HostConditions decides by thresholds alone; probes read the real machine, and no speed is asserted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import host_conditions
from loadtest.host_conditions import CpuTimes, HostConditions, Thresholds, Turn

GOOD = HostConditions(
    idle=0.97,
    steal=0.0,
    fdatasync_p50_ms=0.1,
    fdatasync_p99_ms=0.5,
    wake_p50_ms=0.05,
    wake_p99_ms=0.2,
    memcpy_gb_per_s=10.0,
    load_average=0.1,
)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (replace(GOOD, idle=0.5), "idle 50% < 85%"),
        (replace(GOOD, steal=0.2), "steal 20% > 5%"),
        (replace(GOOD, fdatasync_p99_ms=9.0), "fdatasync p99 9.00 ms > 5 ms"),
        (replace(GOOD, wake_p99_ms=7.0), "wake-up p99 7.00 ms > 5 ms"),
    ],
)
def test_each_threshold_says_what_was_wrong(bad: HostConditions, said: str) -> None:
    assert GOOD.faults(Thresholds()) == []
    assert bad.faults(Thresholds()) == [said]


def test_a_turn_is_judged_by_what_others_took_while_it_ran() -> None:
    for steal, foreign, count in ((0.0, 0.0, 0), (0.3, 0.0, 1), (0.0, 0.3, 1), (0.3, 0.3, 2)):
        turn = Turn(GOOD, steal, foreign)
        turn.judge(Thresholds())
        assert len(turn.faults) == count
        assert turn.as_json()["faults"] == turn.faults


def test_shares_of_cpu() -> None:
    before, now = CpuTimes(100.0, 50.0, 1.0), CpuTimes(200.0, 110.0, 11.0)
    assert now.since(before) == pytest.approx((0.6, 0.1))
    assert now.busy_since(before) == pytest.approx(30.0)


def test_thresholds_may_be_changed_but_not_invented() -> None:
    assert host_conditions.thresholds({"idle_min": 0.5}).idle_min == 0.5
    with pytest.raises(ValueError, match="no such threshold"):
        host_conditions.thresholds({"mood": 1.0})


def test_a_look_at_this_machine(tmp_path: Path) -> None:
    seen = asyncio.run(host_conditions.look(tmp_path))
    assert 0 <= seen.idle <= 1 and 0 <= seen.steal <= 1
    assert 0 <= seen.fdatasync_p50_ms <= seen.fdatasync_p99_ms
    assert 0 <= seen.wake_p50_ms <= seen.wake_p99_ms
    assert seen.memcpy_gb_per_s > 0
    assert set(seen.as_json()) == set(HostConditions.__dataclass_fields__)
    assert list(tmp_path.iterdir()) == []
