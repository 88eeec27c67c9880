"""A minute without ZooKeeper: owners of unfenced segments go on serving, and everything recovers by itself."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pytest

from tests.history import History
from tests.simulation.plan import Fault, FaultKind, Plan
from tests.simulation.service import drawing, world
from tests.simulation.service.loop import S

GONE_S, AWAY_S = 5.0, 60.0
SILENCE_S_MAX = 2.0  # of a stream that is written about ten times a second


def plan(seed: int) -> Plan:
    """Two streams that are written all the time and never roll, and a minute in which no session can be kept."""
    drawn = drawing.draw(seed, "quiet")
    config = {**drawn.config, "drawn": False, "events_lost": 0.0, "streams": 2, "cancels": 0.0, "truncates": False}
    config |= {"pace_s": 0.1, "session_s": 4.0, "duration_s": GONE_S + AWAY_S + 5.0, "record_bytes": 200}
    config["settings"] = {**config["settings"], "segment_bytes": 10_000_000, "segment_age_s": 3600.0}
    return Plan(
        seed=seed, config=config, faults=(Fault(kind=FaultKind.CRASH, a="zookeeper", at_s=GONE_S, for_s=AWAY_S),)
    )


@pytest.mark.parametrize("seed", (1, 2))
def test_owners_serve_on_for_a_minute_without_zookeeper_and_everything_comes_back(seed: int) -> None:
    heard: dict[str, list[int]] = {}
    ok = History.ok

    def hear(self: History, op: int, at: int, *args: Any, **options: Any) -> None:
        heard.setdefault(self.name, []).append(at)
        ok(self, op, at, *args, **options)

    with mock.patch.object(History, "ok", hear):
        outcome = world.run(plan(seed))
    assert not outcome.violation, outcome.text
    assert outcome.reached["fault.crash"] == 1
    processes = sum(plan(seed).config[kind] for kind in ("bookies", "writers", "readers"))
    assert outcome.reached["metadata.lost"] >= processes, "each says so, once a loss"
    assert outcome.reached["metadata.regained"] == outcome.reached["metadata.lost"]
    assert not outcome.reached["take-over"], "nobody lost a stream"
    assert len(heard) == 2
    for stream, times in heard.items():
        assert times[-1] - times[0] > AWAY_S * S
        silence_s = max(later - earlier for earlier, later in itertools.pairwise(times)) / S
        assert silence_s < SILENCE_S_MAX, f"{stream} was silent for {silence_s:.2f} s"
